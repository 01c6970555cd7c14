"""The cases of a wheel of ours, with the peers that live in the same environment."""

import importlib.metadata

import numpy as np
import torch

import taichi as ti

from bench import latency, rl
from bench.arrays import Arrays
from bench.clocks import clock_of, device_clock
from bench.measures import CLONE, COPIES, IN_PLACE, LATENCY, OURS, REFERENCE, RL, KB
from bench.sampling import Case

DISTRIBUTIONS = ("taichi", "torch", "numpy", "jax", "warp-lang", "apache-tvm-ffi")


@ti.kernel
def touch(x: ti.types.ndarray(dtype=ti.f32, ndim=1)):
    """What remains of a launch when the kernel does next to nothing."""
    x[0] += 1.0


def export_torch(arrays):
    """Torch's view of an ndarray, against that of a NumPy array."""
    return {
        OURS: Case("from_dlpack(nd)", from_dlpack=torch.from_dlpack, nd=arrays.nd),
        REFERENCE: Case("from_dlpack(array)", from_dlpack=torch.from_dlpack, array=arrays.numpy),
    }


def capsule(arrays):
    """A capsule that nobody consumes."""
    return {
        OURS: Case("nd.__dlpack__(max_version=(1, 0))", nd=arrays.nd),
        REFERENCE: Case("array.__dlpack__(max_version=(1, 0))", array=arrays.numpy),
    }


def import_torch(arrays):
    """An ndarray on a tensor, against a tensor on a tensor."""
    return {
        OURS: Case("from_dlpack(tensor)", from_dlpack=ti.from_dlpack, tensor=arrays.tensor),
        REFERENCE: Case("from_dlpack(tensor)", from_dlpack=torch.from_dlpack, tensor=arrays.tensor),
    }


def export_tvm(arrays):
    """tvm-ffi's view: over the C exchange API, where the class has it."""
    import tvm_ffi  # pylint: disable=C0415

    return {
        OURS: Case("from_dlpack(nd)", from_dlpack=tvm_ffi.from_dlpack, nd=arrays.nd),
        REFERENCE: Case("from_dlpack(tensor)", from_dlpack=tvm_ffi.from_dlpack, tensor=arrays.tensor),
    }


def field_torch(arrays):
    """Torch's view of a field, against that of an ndarray."""
    return {
        OURS: Case("from_dlpack(field)", from_dlpack=torch.from_dlpack, field=arrays.field),
        REFERENCE: Case("from_dlpack(nd)", from_dlpack=torch.from_dlpack, nd=arrays.nd),
    }


def field_quadrants(arrays):
    """The same view of a field. Quadrants has an environment of its own."""
    return {OURS: Case("from_dlpack(field)", from_dlpack=torch.from_dlpack, field=arrays.field)}


def launch(arrays):
    """A kernel on an ndarray whose memory is torch's, against Taichi's own."""
    clock = clock_of(arrays.device)
    return {
        OURS: Case("touch(imported)", clock, touch=touch, imported=arrays.imported),
        REFERENCE: Case("touch(nd)", clock, touch=touch, nd=arrays.nd),
    }


EXCHANGE = (export_torch, capsule, import_torch, export_tvm, field_torch, field_quadrants, launch)


def copy_to_numpy(source, arrays):
    """A copy to the host, against a plain copy: into new memory, and into memory that is there."""
    if arrays.device == "cpu":
        return {
            OURS: Case("source.to_numpy()", source=source),
            REFERENCE: Case("array.copy()", array=arrays.numpy),
            IN_PLACE: Case("copyto(there, array)", copyto=np.copyto, there=arrays.there, array=arrays.numpy),
        }
    return {
        OURS: Case("source.to_numpy()", device_clock, source=source),
        REFERENCE: Case("tensor.cpu()", device_clock, tensor=arrays.tensor),
        IN_PLACE: Case("there.copy_(tensor)", device_clock, there=arrays.tensor.cpu(), tensor=arrays.tensor),
    }


def copy_to_torch(source, arrays):
    """The same to torch; on a GPU the copy stays there."""
    if arrays.device == "cpu":
        cases = {OURS: Case("source.to_torch()", source=source), CLONE: Case("tensor.clone()", tensor=arrays.tensor)}
        return {**copy_to_numpy(source, arrays), **cases}
    return {
        OURS: Case("source.to_torch(device)", device_clock, source=source, device=arrays.device),
        REFERENCE: Case("tensor.clone()", device_clock, tensor=arrays.tensor),
        IN_PLACE: Case("there.copy_(tensor)", device_clock, there=arrays.tensor.clone(), tensor=arrays.tensor),
    }


def copy_cases(name, arrays):
    """The cases of one of COPIES."""
    source = arrays.nd if name.startswith("nd") else arrays.field
    return (copy_to_numpy if name.endswith("numpy") else copy_to_torch)(source, arrays)


def facts_of(nd, arch):
    """What the reader should know of the environment."""
    facts = {
        "versions": {name: version for name in DISTRIBUTIONS if (version := version_of(name))},
        "c_exchange_api": hasattr(type(nd), "__dlpack_c_exchange_api__"),
    }
    if arch == "cuda":
        facts["gpu"] = torch.cuda.get_device_name()
    return facts


def version_of(distribution):
    """The installed version, or None."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def prepare(cases, arch):
    """Adds all cases to `cases`; returns what the reader should know of the environment."""
    torch.set_num_threads(1)
    ti.init(arch=getattr(ti, arch), offline_cache=False, log_level=ti.ERROR, cpu_max_num_threads=1)
    if not hasattr(ti, "from_dlpack"):
        raise RuntimeError(f"got taichi {ti.__version__} without ti.from_dlpack, wanted a wheel of `make wheel`")
    if arch == "cuda" and ti.lang.impl.current_cfg().arch != ti.cuda:
        raise RuntimeError("Taichi fell back to the CPU; is the NVIDIA driver there? (nvidia-smi)")
    device = "cuda" if arch == "cuda" else "cpu"
    for size in cases.plan.exchange_sizes:
        arrays = Arrays(size, device)
        for make in EXCHANGE:
            cases.add(make.__name__, size, lambda make=make, arrays=arrays: make(arrays))
    for size in cases.plan.copy_sizes:
        arrays = Arrays(size, device).fill()
        for measure in COPIES:
            cases.add(measure.name, size, lambda name=measure.name, arrays=arrays: copy_cases(name, arrays))
    small = Arrays(KB, device).fill()
    for label, make in latency.EXCHANGES.items():
        cases.add(LATENCY, KB, lambda label=label, make=make: {label: make(small)}, label)
    for count in cases.plan.environments:
        cases.add(RL, count, lambda count=count: rl.cases(count, device, clock_of(device)))
    return facts_of(small.nd, arch)
