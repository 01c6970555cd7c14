"""Taichi on the simulated driver, and another library with which it shares memory there."""

import contextlib
import ctypes
import gc
import importlib.metadata
import os
import sys
import threading

import numpy as np
import pytest
import taichi as ti
from taichi._lib import core as ti_core
from taichi.lang import impl

import dl_structs as dl
import helpers
import sim

IS_FAST = (
    os.environ.get("TI_TEST_WHEEL") == "fast"
    if "TI_TEST_WHEEL" in os.environ
    else importlib.metadata.version("taichi").endswith(".fast")
)

needs_core = pytest.mark.skipif(IS_FAST, reason="fast wheel: the released core cannot do this")

# The environment of a machine whose driver has no memory pools.
NO_POOLS = {"CUDA_SIM_MEMORY_POOLS": "0", "CUDA_SIM_FREE_SYNCHRONIZES": "1"}
if IS_FAST:
    # The released core leaves it to chance whether it takes such a driver for one with pools. This makes fresh memory
    # zero, which decides it.
    NO_POOLS["GLIBC_TUNABLES"] = "glibc.malloc.tcache_count=0:glibc.malloc.perturb=255"

# What the imports made lives on: the tests' many collections need not look at it.
gc.collect()
gc.freeze()

COUNT = 8
NBYTES = COUNT * sim.ITEM_SIZE

# What only finds out or sets which context a thread has. Whether it is called depends on the thread.
CONTEXT_CALLS = ("cuCtxGetCurrent", "cuCtxSetCurrent")


def init(**options):
    """ti.init on the simulated GPU, and nowhere else in silence."""
    ti.init(**{"arch": ti.cuda, "enable_fallback": False, "log_level": ti.ERROR, **options})


def ask_what_is_asked_once():
    """An export makes some calls once in a process. After this it makes those only that it makes each time."""
    ndarray().__dlpack__(stream=2)


@ti.kernel
def work(x: ti.types.ndarray()):
    # A constant range makes one launch of it.
    for i in range(COUNT):
        x[i] += 1


def launch(nd, value=1):
    """Has Taichi launch a kernel that adds `value` to the elements of an ndarray of i32."""
    sim.clear_emulations()
    sim.emulate("work", "add", address_of(nd), COUNT, value)
    work(nd)


def ndarray(value=0, dtype=ti.i32):
    """An ndarray of COUNT elements, all of this value, with nothing pending."""
    nd = ti.ndarray(dtype, COUNT)
    nd.fill(value)
    sim.drain()
    return nd


def address_of(nd):
    """Where an ndarray's memory is; asks nobody."""
    return impl.get_runtime().prog.get_ndarray_data_ptr_as_int(nd.arr)


def values_of(nd):
    """An ndarray's elements as they are in memory now."""
    return sim.values(address_of(nd), COUNT)


def driver_calls(made):
    """The names of recorded calls but those about the current context."""
    return [call.name for call in made if call.name not in CONTEXT_CALLS]


def assert_no_copy(made):
    """Fails where a recorded call moves data, launches, allocates or makes the host wait."""
    moving = [call for call in made if call.name.startswith(("cuMemcpy", "cuMemset", "cuMemAlloc", "cuLaunch"))]
    assert not moving, moving
    assert_no_wait(made)


def assert_no_wait(made):
    waiting = [call for call in made if call.blocking]
    assert not waiting, waiting


def on_a_thread(action):
    """Runs a function on a new thread, which has no current context; gives its result, or raises what it raised."""
    results, errors = [], []

    def run():
        try:
            results.append(action())
        except BaseException as error:  # pylint: disable=W0718
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


# --- consumers ------------------------------------------------------------------------------------


def consume(nd, **request):
    """Exports an ndarray and takes the capsule over; the caller owes one call of `delete`."""
    return helpers.take(nd.__dlpack__(**request))


# --- producers ------------------------------------------------------------------------------------


_contexts = {}


@contextlib.contextmanager
def context_of(device):
    """The primary context of a device, current in the block."""
    if device not in _contexts:
        _contexts[device] = ctypes.c_void_p()
        sim.cu("cuDevicePrimaryCtxRetain", ctypes.byref(_contexts[device]), device)
    sim.cu("cuCtxPushCurrent_v2", _contexts[device])
    try:
        yield _contexts[device].value
    finally:
        sim.cu("cuCtxPopCurrent_v2", None)


class Memory:
    """COUNT elements of i32 of another library: "device", "pool", "managed" or "pinned" memory."""

    def __init__(self, value=0, kind="device", device=0):
        self.is_freed = False
        self.pointer = sim.allocate(NBYTES, kind, device)
        sim.write(self.pointer, np.full(COUNT, value, np.int32).tobytes())

    @property
    def values(self):
        """The elements as they are now."""
        return sim.values(self.pointer, COUNT)

    def __del__(self):
        if sys is not None and not sys.is_finalizing():
            self.free()

    def free(self):
        """Takes the memory back at once, which is a fault while anything uses it."""
        if not self.is_freed:
            self.is_freed = True
            sim.reclaim(self.pointer)


class Producer(helpers.Fake):
    """Another library's DLPack array. It frees the memory in the deleter: whoever calls that too early makes a fault.

    Args:
        memory: a Memory; default: fresh device memory.
        writer: the stream on which the library works. As the standard asks, `__dlpack__` makes the consumer's stream
            wait for it.
        device: the DLPack device that it claims.
    """

    def __init__(self, memory=None, *, writer=None, device=(dl.CUDA, 0), **options):
        self._deleted = 0
        self.keep = False
        super().__init__(np.zeros(COUNT, np.int32), device=device, **options)
        self.memory = memory or Memory()
        self.writer = writer

    @property
    def deleted(self):
        """How often the deleter was called."""
        return self._deleted

    @deleted.setter
    def deleted(self, count):
        self._deleted = count
        if count and not self.keep:
            self.memory.free()

    def __dlpack__(self, **keywords):
        capsule = super().__dlpack__(**keywords)
        stream = keywords.get("stream")
        if self.writer is not None and stream != -1:
            make_wait(sim.NULL if stream is None else stream, self.writer)
        return capsule


class InterfaceProducer:
    """Another library's array with `__cuda_array_interface__`. It frees the memory when it dies."""

    def __init__(self, memory=None, stream=None):
        self.memory = memory or Memory()
        self.stream = stream

    @property
    def __cuda_array_interface__(self):
        return {
            "shape": (COUNT,),
            "typestr": "<i4",
            "data": (self.memory.pointer, False),
            "strides": None,
            "version": 3,
            "stream": self.stream,
        }

    def __del__(self):
        if sys is not None and not sys.is_finalizing():
            self.memory.free()


def make_wait(stream, writer):
    """Makes a stream wait for what another holds so far, with an event of the other library's own."""
    event = ctypes.c_void_p()
    with context_of(writer.device):
        sim.cu("cuEventCreate", ctypes.byref(event), 2)
        sim.cu("cuEventRecord", event, writer.handle)
        sim.cu("cuStreamWaitEvent", stream, event, 0)
        sim.cu("cuEventDestroy_v2", event)


def outcomes_of_import(make_source, side):
    """What Taichi's kernel, which adds 1, makes of memory into which another stream is writing 10.

    11 where the kernel comes after the write.
    """
    seen = set()
    for seed in (None, *range(50)):
        sim.order("program")
        side.order("late")
        memory = Memory(0)
        source = make_source(memory, side)
        if seed is not None:
            side.order(None)
            sim.order("random", seed)
        side.fill(memory.pointer, COUNT, 10)
        x = ti.from_dlpack(source)
        launch(x, 1)
        sim.drain()
        seen.update(memory.values)
        del x, source
        ti.sync()
    return seen


# --- state between tests --------------------------------------------------------------------------


def settle():
    """Collects garbage and lets Taichi give back what nothing uses any more."""
    sim.drain()
    gc.collect()
    if impl.get_runtime().prog is not None:
        ti.sync()


def program():
    """Taichi's program on the simulated GPU, or None."""
    prog = impl.get_runtime().prog
    return prog if prog is not None and prog.config().arch == ti_core.Arch.cuda else None
