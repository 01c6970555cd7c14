"""The simulated memory, by calls of the driver alone: no Taichi here."""

import ctypes
import signal

import pytest

import processes
import sim
from plain_calls import (
    allocate,
    allocate_async,
    allocate_managed,
    allocate_pinned,
    attribute,
    COUNT,
    DEVICE_ORDINAL,
    fill,
    IS_MANAGED,
    live,
    make_event,
    MEMORY_TYPE,
    NBYTES,
    RANGE_SIZE,
    read_back,
    record,
    refuses,
    wait,
)

pytestmark = pytest.mark.usefixtures("context")


def test_memory_keeps_what_is_written():
    ptr = allocate()
    fill(ptr, 7)
    assert read_back(ptr) == [7] * COUNT
    data = bytes(range(NBYTES))
    sim.cu("cuMemcpyHtoD_v2", ptr, data, NBYTES)
    assert sim.read(ptr, NBYTES) == data


def test_the_host_dies_of_touching_device_memory():
    code = """
    sim.cu("cuInit", 0)
    context, ptr = ctypes.c_void_p(), ctypes.c_uint64()
    sim.cu("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    sim.cu("cuCtxSetCurrent", context)
    sim.cu({allocate}, ctypes.byref(ptr), 64{more})
    {before}
    ctypes.memset(ptr.value, 0, 4)
    """
    device = code.format(allocate='"cuMemAlloc_v2"', more="", before="")
    assert processes.run_python(device).code == -signal.SIGSEGV
    managed = code.format(allocate='"cuMemAllocManaged"', more=", 1", before="{}")
    assert processes.run_python(managed.format("")).code == 0
    assert processes.run_python(managed.format('sim.cu("cuMemFree_v2", ptr)')).code == -signal.SIGSEGV


def test_the_host_may_touch_pinned_and_managed_memory():
    for ptr in (allocate_pinned(), allocate_managed()):
        ctypes.memset(ptr, 3, NBYTES)
        assert sim.read(ptr, NBYTES) == bytes([3] * NBYTES)


def test_fresh_memory_holds_no_zeros():
    assert sim.read(allocate(), NBYTES) == bytes([0xA5] * NBYTES)


def test_addresses_do_not_come_back_and_are_aligned_to_no_more_than_promised():
    seen = set()
    for _ in range(100):
        ptr = allocate()
        assert ptr % 256 == 0 and ptr % 4096 != 0
        seen.add(ptr)
        sim.cu("cuMemFree_v2", ptr)
    assert len(seen) == 100


def test_access_out_of_bounds():
    ptr = allocate()
    with sim.expect_fault("OUT_OF_BOUNDS"):
        assert refuses(sim.INVALID_VALUE, "cuMemsetD8_v2", ptr, 0, NBYTES + 1)
    with sim.expect_fault("OUT_OF_BOUNDS"):
        assert refuses(sim.INVALID_VALUE, "cuMemsetD8_v2", ptr - 4, 0, 4)
    with sim.expect_fault("OUT_OF_BOUNDS"):
        assert refuses(sim.INVALID_VALUE, "cuMemcpyDtoD_v2", ptr + 4, ptr, NBYTES)


def test_use_after_free():
    ptr = allocate()
    sim.cu("cuMemFree_v2", ptr)
    with sim.expect_fault("USE_AFTER_FREE"):
        assert refuses(sim.INVALID_VALUE, "cuMemsetD8_v2", ptr, 0, 4)
    ptr = allocate_async()
    sim.order("late")
    sim.cu("cuMemFreeAsync", ptr, sim.NULL)
    with sim.expect_fault("USE_AFTER_FREE"):
        assert refuses(sim.INVALID_VALUE, "cuMemsetD8_v2", ptr, 0, 4)


@pytest.mark.parametrize(
    "make, free",
    [
        (allocate, lambda ptr: sim.cu("cuMemFree_v2", ptr)),
        (allocate_async, lambda ptr: sim.cu("cuMemFreeAsync", ptr, sim.NULL)),
        (allocate_async, lambda ptr: sim.cu("cuMemFree_v2", ptr)),
        (allocate_managed, lambda ptr: sim.cu("cuMemFree_v2", ptr)),
        (allocate_pinned, lambda ptr: sim.cu("cuMemFreeHost", ptr)),
    ],
    ids=["plain", "pool", "pool, freed plainly", "managed", "pinned"],
)
def test_each_kind_is_freed_once(make, free):
    ptr = make()
    free(ptr)
    assert ptr not in live()
    with sim.expect_fault("DOUBLE_FREE"), pytest.raises(sim.DriverError):
        free(ptr)


def test_memory_is_freed_by_the_call_of_its_kind_at_its_start():
    plain, pinned = allocate(), allocate_pinned()
    for name, *arguments in (
        ("cuMemFreeAsync", plain, sim.NULL),
        ("cuMemFreeHost", plain),
        ("cuMemFree_v2", pinned),
        ("cuMemFree_v2", plain + 256),
    ):
        with sim.expect_fault("INVALID_FREE"):
            assert refuses(sim.INVALID_VALUE, name, *arguments)
    sim.cu("cuMemFree_v2", 0)


def test_plain_memory_freed_while_work_is_pending():
    ptr = allocate()
    sim.order("late")
    fill(ptr, 1)
    sim.cu("cuMemFree_v2", ptr)
    assert [fault.kind for fault in sim.faults()] == ["FREE_WHILE_IN_USE"]
    sim.clear_faults()
    with sim.expect_fault("USE_AFTER_FREE"):
        sim.drain()


def test_another_library_takes_memory_back():
    ptr, side = sim.allocate(NBYTES, "pool"), sim.Stream(non_blocking=True)
    sim.order("late")
    side.fill(ptr, COUNT, 1)
    with sim.expect_fault("FREE_WHILE_IN_USE"):
        sim.reclaim(ptr)
    with sim.expect_fault("USE_AFTER_FREE"):
        sim.drain()
    other = sim.allocate(NBYTES)
    sim.reclaim(other)
    assert not {ptr, other} & live() and not sim.calls()


def test_freeing_can_synchronize():
    sim.configure(free_synchronizes=True)
    try:
        ptr = allocate()
        sim.order("late")
        fill(ptr, 1)
        sim.cu("cuMemFree_v2", ptr)
        assert sim.calls()[-1].blocking
    finally:
        sim.configure(free_synchronizes=False)


def test_freeing_in_stream_order_needs_no_wait():
    ptr = allocate_async()
    sim.order("late")
    fill(ptr, 1)
    sim.cu("cuMemFreeAsync", ptr, sim.NULL)
    assert ptr in live()
    sim.drain()
    assert ptr not in live()


def test_freeing_must_be_ordered_after_other_streams():
    side = sim.Stream(non_blocking=True)
    sim.order("late")
    ptr = allocate_async()
    sim.cu("cuStreamSynchronize", sim.NULL)
    side.fill(ptr, COUNT, 1)
    with sim.expect_fault("FREE_NOT_ORDERED"):
        sim.cu("cuMemFreeAsync", ptr, sim.NULL)
    side.run()

    ptr = allocate_async()
    sim.cu("cuStreamSynchronize", sim.NULL)
    side.fill(ptr, COUNT, 1)
    event = make_event()
    record(event, side.handle)
    wait(sim.NULL, event)
    sim.cu("cuMemFreeAsync", ptr, sim.NULL)


def test_pool_memory_is_used_after_its_allocation():
    side = sim.Stream(non_blocking=True)
    sim.order("late")
    ptr = allocate_async(sim.NULL)
    fill(ptr, 0)
    with sim.expect_fault("USE_BEFORE_ALLOCATED"):
        side.fill(ptr, COUNT, 1)
    ptr = allocate_async(sim.NULL)
    event = make_event()
    record(event)
    wait(side.handle, event)
    side.fill(ptr, COUNT, 1)


def test_memory_runs_out():
    total, available = ctypes.c_size_t(), ctypes.c_size_t()
    ptr = allocate(1 << 30)
    sim.cu("cuMemGetInfo_v2", ctypes.byref(available), ctypes.byref(total))
    assert total.value - available.value >= 1 << 30
    assert refuses(sim.OUT_OF_MEMORY, "cuMemAlloc_v2", ctypes.byref(ctypes.c_uint64()), total.value)
    sim.cu("cuMemFree_v2", ptr)


def test_host_and_device_pointers_are_told_apart():
    ptr, host = allocate(), ctypes.create_string_buffer(NBYTES)
    with sim.expect_fault("NOT_DEVICE_MEMORY"):
        assert refuses(sim.INVALID_VALUE, "cuMemsetD8_v2", ctypes.addressof(host), 0, 4)
    with sim.expect_fault("NOT_HOST_MEMORY"):
        assert refuses(sim.INVALID_VALUE, "cuMemcpyHtoD_v2", ptr, ptr, 4)


@pytest.mark.parametrize(
    "make, expected",
    [
        (allocate, {MEMORY_TYPE: 2, IS_MANAGED: 0, DEVICE_ORDINAL: 0, RANGE_SIZE: NBYTES}),
        (allocate_async, {MEMORY_TYPE: 2, IS_MANAGED: 0, DEVICE_ORDINAL: 0}),
        (allocate_managed, {MEMORY_TYPE: 2, IS_MANAGED: 1}),
        (allocate_pinned, {MEMORY_TYPE: 1, IS_MANAGED: 0}),
    ],
)
def test_what_a_pointer_is(make, expected):
    ptr = make()
    for address in (ptr, ptr + NBYTES - 1):
        assert {number: attribute(number, address) for number in expected} == expected


def test_memory_that_the_driver_does_not_know():
    host = ctypes.create_string_buffer(64)
    value = ctypes.c_int(7)
    address = ctypes.addressof(host)
    assert refuses(sim.INVALID_VALUE, "cuPointerGetAttribute", ctypes.byref(value), MEMORY_TYPE, address)
    kinds = (ctypes.c_int * 2)(MEMORY_TYPE, DEVICE_ORDINAL)
    kind, ordinal = ctypes.c_uint(7), ctypes.c_int(7)
    data = (ctypes.c_void_p * 2)(ctypes.addressof(kind), ctypes.addressof(ordinal))
    sim.cu("cuPointerGetAttributes", 2, kinds, data, address)
    assert (kind.value, ordinal.value) == (0, -2)
