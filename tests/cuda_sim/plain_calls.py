"""Calls of the driver by name, with the pointers to results that they want: what the simulator's own tests use."""

import ctypes

import pytest

import sim

COUNT = 16
NBYTES = COUNT * sim.ITEM_SIZE

# Numbers of cuPointerGetAttribute.
MEMORY_TYPE, IS_MANAGED, DEVICE_ORDINAL, RANGE_SIZE = 2, 8, 9, 12


def primary_context(device):
    handle = ctypes.c_void_p()
    sim.cu("cuDevicePrimaryCtxRetain", ctypes.byref(handle), device)
    return handle.value


def allocate(nbytes=NBYTES):
    ptr = ctypes.c_uint64()
    sim.cu("cuMemAlloc_v2", ctypes.byref(ptr), nbytes)
    return ptr.value


def allocate_async(stream=sim.NULL, nbytes=NBYTES):
    ptr = ctypes.c_uint64()
    sim.cu("cuMemAllocAsync", ctypes.byref(ptr), nbytes, stream)
    return ptr.value


def allocate_pinned(nbytes=NBYTES):
    ptr = ctypes.c_uint64()
    sim.cu("cuMemHostAlloc", ctypes.byref(ptr), nbytes, 0)
    return ptr.value


def allocate_managed(nbytes=NBYTES):
    ptr = ctypes.c_uint64()
    sim.cu("cuMemAllocManaged", ctypes.byref(ptr), nbytes, 1)
    return ptr.value


def make_event(flags=2):
    event = ctypes.c_void_p()
    sim.cu("cuEventCreate", ctypes.byref(event), flags)
    return event.value


def record(event, stream=sim.NULL):
    sim.cu("cuEventRecord", event, stream)


def wait(stream, event):
    sim.cu("cuStreamWaitEvent", stream, event, 0)


def is_ready(event):
    code = sim.driver().cuEventQuery(ctypes.c_void_p(event))
    assert code in (sim.SUCCESS, sim.NOT_READY)
    return code == sim.SUCCESS


def is_ready_stream(stream):
    return sim.driver().cuStreamQuery(ctypes.c_void_p(stream)) == sim.SUCCESS


def fill(ptr, value, count=COUNT):
    sim.cu("cuMemsetD32_v2", ptr, value, count)


def read_back(ptr, count=COUNT):
    out = ctypes.create_string_buffer(count * sim.ITEM_SIZE)
    sim.cu("cuMemcpyDtoH_v2", out, ptr, len(out))
    return sim.unpack(out.raw)


def live():
    """The addresses of live allocations."""
    return {row["ptr"] for row in sim.live_allocations()}


def refuses(code, name, *arguments):
    """Whether a call returns this error code."""
    with pytest.raises(sim.DriverError) as caught:
        sim.cu(name, *arguments)
    return caught.value.code == code


def attribute(number, ptr):
    value = ctypes.c_uint64()
    sim.cu("cuPointerGetAttribute", ctypes.byref(value), number, ptr)
    return value.value
