"""The GPU as these tests use it: work that takes a known time, copies on any stream, memory of other kinds."""

import ctypes
import gc
import sys

import numpy as np
import taichi as ti

import helpers

PER_THREAD = 2  # the handle of the per-thread default stream
_ATTACH_GLOBAL = 1
_driver = helpers._driver  # pylint: disable=W0212

# Cycles with which the speed of the slow kernel is measured.
_TRIAL_CYCLES = 20_000_000


@ti.kernel
def put(x: ti.types.ndarray(dtype=ti.i32, ndim=1), value: ti.i32):
    for i in x:
        x[i] = value


@ti.kernel
def add(x: ti.types.ndarray(dtype=ti.i32, ndim=1), value: ti.i32):
    for i in x:
        x[i] += value


@ti.kernel
def copy(source: ti.types.ndarray(dtype=ti.i32, ndim=1), target: ti.types.ndarray(dtype=ti.i32, ndim=1)):
    for i in source:
        target[i] = source[i]


def array(value, count=1024):
    """A Taichi ndarray of i32, all `value`, and done."""
    nd = ti.ndarray(ti.i32, count)
    nd.fill(value)
    ti.sync()
    return nd


def values(nd):
    """The different numbers in an ndarray, after all of Taichi's launches."""
    ti.sync()
    return sorted(set(helpers.values_of(nd).reshape(-1).tolist()))


class Gpu:
    """What torch and the driver do for these tests."""

    cycles_per_ms = None  # of the slow kernel, measured once

    def __init__(self, torch):
        self.torch = torch
        self.default = torch.cuda.default_stream()
        Gpu.cycles_per_ms = Gpu.cycles_per_ms or self._measure()

    def _measure(self):
        """Runs the slow kernel twice, and takes the time of the second."""
        for _ in range(2):
            start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record(self.default)
            self.sleep(self.default, cycles=_TRIAL_CYCLES)
            end.record(self.default)
            end.synchronize()
        return _TRIAL_CYCLES / start.elapsed_time(end)

    def sleep(self, stream, milliseconds=0, cycles=None):
        """A kernel on a stream of torch's that does nothing, for a time."""
        with self.torch.cuda.stream(stream):
            self.torch.cuda._sleep(int(cycles or milliseconds * self.cycles_per_ms))

    def side_stream(self):
        """A new stream of torch's, which waits for nobody unasked."""
        return self.torch.cuda.Stream()

    def tensor(self, value, count=1024):
        """A torch tensor of int32, all `value`, and done."""
        tensor = self.torch.full((count,), value, dtype=self.torch.int32, device="cuda")
        self.torch.cuda.synchronize()
        return tensor

    def take(self, x, **asked):
        """A tensor on the memory of x, through a capsule asked for in this way."""
        return self.torch.utils.dlpack.from_dlpack(x.__dlpack__(max_version=(1, 0), **asked))

    def free_memory(self):
        """Free bytes of the device, once nothing is left to do and torch has given back what it can."""
        gc.collect()
        ti.sync()
        self.torch.cuda.synchronize()
        self.torch.cuda.empty_cache()
        return self.torch.cuda.mem_get_info()[0]


def copy_on_stream(stream, target, source, nbytes):
    """Copies on a stream of any library; says nothing to anybody about it."""
    _driver().call(
        "cuMemcpyDtoDAsync_v2",
        ctypes.c_uint64(target),
        ctypes.c_uint64(source),
        ctypes.c_size_t(nbytes),
        ctypes.c_void_p(stream),
    )


def synchronize_stream(stream):
    """The host waits for a stream of any library."""
    _driver().call("cuStreamSynchronize", ctypes.c_void_p(stream))


class Managed(helpers.Memory):
    """Bytes that the host and the device both see."""

    def __init__(self, array):  # pylint: disable=W0231,W0621
        array = np.ascontiguousarray(array)
        self.nbytes = array.nbytes
        pointer = ctypes.c_uint64()
        _driver().call(
            "cuMemAllocManaged", ctypes.byref(pointer), ctypes.c_size_t(self.nbytes), ctypes.c_uint(_ATTACH_GLOBAL)
        )
        self.pointer = pointer.value
        ctypes.memmove(self.pointer, array.tobytes(), self.nbytes)

    def on_host(self, dtype):
        """The bytes as NumPy, on the host."""
        return np.frombuffer(ctypes.string_at(self.pointer, self.nbytes), dtype)


class Pinned(helpers.Memory):
    """Page-locked bytes of the host."""

    def __init__(self, array):  # pylint: disable=W0231,W0621
        array = np.ascontiguousarray(array)
        self.nbytes = array.nbytes
        pointer = ctypes.c_void_p()
        _driver().call("cuMemAllocHost_v2", ctypes.byref(pointer), ctypes.c_size_t(self.nbytes))
        self.pointer = pointer.value
        ctypes.memmove(self.pointer, array.tobytes(), self.nbytes)

    def __del__(self, is_finalizing=sys.is_finalizing):
        if not is_finalizing() and hasattr(self, "pointer"):
            _driver().call("cuMemFreeHost", ctypes.c_void_p(self.pointer))


class Interface:
    """An array that offers nothing but the CUDA array interface of another one."""

    def __init__(self, x, **changes):
        self.held = x
        self.__cuda_array_interface__ = {**x.__cuda_array_interface__, **changes}
