"""The cases of Quadrants, a successor of Taichi that shares fields and ndarrays with torch."""

import importlib.metadata

import quadrants as qd
import torch

from bench.measures import FIELD_QUADRANTS, ITEM_SIZE, KB, LATENCY, REFERENCE
from bench.pages import give_back
from bench.sampling import Case


def dense_field(size):
    """A field of so many bytes, with its memory."""
    field = qd.field(qd.f32, size // ITEM_SIZE)
    view = field.to_torch(copy=False)
    if view.device.type == "cpu":
        give_back(view)
    return field


def field_view(size):
    """Torch's view of a field."""
    return Case("field.to_torch(copy=False)", field=dense_field(size))


def ndarray_view():
    """Torch's view of an ndarray. It has no `__dlpack__`, but a function that makes the capsule."""
    nd = qd.ndarray(qd.f32, KB // ITEM_SIZE)
    return Case("from_dlpack(nd.to_dlpack())", from_dlpack=torch.utils.dlpack.from_dlpack, nd=nd)


def prepare(cases, arch):
    """Adds all cases to `cases`; returns what the reader should know of the environment."""
    torch.set_num_threads(1)
    qd.init(arch=getattr(qd, arch), offline_cache=False, log_level=qd.ERROR, cpu_max_num_threads=1)
    for size in cases.plan.exchange_sizes:
        cases.add(FIELD_QUADRANTS.name, size, lambda size=size: {REFERENCE: field_view(size)})
    cases.add(LATENCY, KB, lambda: {"Quadrants: field to torch": field_view(KB)})
    cases.add(LATENCY, KB, lambda: {"Quadrants: ndarray to torch": ndarray_view()})
    return {"versions": {name: importlib.metadata.version(name) for name in ("quadrants", "torch")}}
