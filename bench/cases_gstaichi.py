"""The cases of GsTaichi, a fork of Taichi; its `to_torch` copies."""

import importlib.metadata

import gstaichi as gs
import torch

from bench.measures import ITEM_SIZE, KB, LATENCY
from bench.sampling import Case


def field_copy():
    """A tensor with the values of a field."""
    field = gs.field(gs.f32, KB // ITEM_SIZE)
    field.fill(1.0)
    return Case("field.to_torch()", field=field)


def prepare(cases, arch):
    """Adds all cases to `cases`; returns what the reader should know of the environment."""
    torch.set_num_threads(1)
    gs.init(arch=getattr(gs, arch), offline_cache=False, log_level=gs.ERROR, cpu_max_num_threads=1)
    cases.add(LATENCY, KB, lambda: {"GsTaichi: field to torch, a copy": field_copy()})
    return {"versions": {name: importlib.metadata.version(name) for name in ("gstaichi", "torch")}}
