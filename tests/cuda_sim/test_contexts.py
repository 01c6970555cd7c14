"""Taichi works in its own context, whichever is current on the calling thread: another GPU's, or none.

The core's own frees, allocations, copies and waits. What is shared is in test_devices.py and test_memory_life.py.
"""

import ctypes
import gc

import pytest
import taichi as ti

import sim
from shared_arrays import (
    COUNT,
    Memory,
    Producer,
    address_of,
    consume,
    context_of,
    init,
    launch,
    ndarray,
    needs_core,
    on_a_thread,
    values_of,
)

pytestmark = [pytest.mark.usefixtures("cuda"), needs_core]


def rows_at(ptr):
    """The live allocations that hold the address."""
    return [row for row in sim.live_allocations() if row["ptr"] <= ptr < row["ptr"] + row["size"]]


@pytest.fixture
def other_gpu():
    """The other GPU's context is current, and stays."""
    with context_of(1) as other:
        yield
        context = ctypes.c_void_p()
        sim.cu("cuCtxGetCurrent", ctypes.byref(context))
        assert context.value == other


@pytest.mark.parametrize("is_exported", [False, True], ids=["plain", "exported"])
def test_a_thread_without_a_context_drops_an_ndarray(is_exported):
    held = [ndarray()]
    ptr = address_of(held[0])
    if is_exported:
        consume(held[0]).delete()
    on_a_thread(held.clear)
    gc.collect()
    assert not rows_at(ptr)


def test_a_thread_without_a_context_copies():
    nd, producer = ndarray(5), Producer(Memory(4))
    view = on_a_thread(lambda: consume(nd, copy=True))
    assert view.data != address_of(nd) and rows_at(view.data)[0]["device"] == 0
    view.delete()
    x = on_a_thread(lambda: ti.from_dlpack(producer, copy=True))
    assert address_of(x) != producer.pointer and rows_at(address_of(x))[0]["device"] == 0


def test_a_thread_without_a_context_reads_writes_and_fills():
    nd = ndarray(5)

    def use():
        seen = nd[0]
        nd[1] = 6
        nd.fill(nd[1] + seen)
        ti.sync()

    on_a_thread(use)
    assert values_of(nd) == [11] * COUNT


def test_new_memory_is_on_taichi_s_gpu(other_gpu):  # pylint: disable=W0613,W0621
    nd = ti.ndarray(ti.i32, COUNT)
    (row,) = rows_at(address_of(nd))
    assert row["device"] == nd.__dlpack_device__()[1] == 0


def test_a_free_comes_after_the_kernels(other_gpu):  # pylint: disable=W0613,W0621
    nd = ndarray(1)
    ptr = address_of(nd)
    sim.order("late")
    with context_of(0):
        launch(nd)
    del nd
    gc.collect()
    sim.drain()
    assert not rows_at(ptr)


def read(nd):
    return nd[0]


def synchronize(nd):
    ti.sync()
    return values_of(nd)[0]


@pytest.mark.parametrize("look", [read, synchronize])
def test_a_result_is_waited_for(look):
    nd = ndarray(1)
    sim.order("late")
    launch(nd)
    with context_of(1):
        assert look(nd) == 2


def test_a_fill_comes_after_the_kernels():
    nd = ndarray(1)
    sim.order("random", 7)
    launch(nd)
    with context_of(1):
        nd.fill(5)
    ti.sync()
    assert values_of(nd) == [5] * COUNT


def test_a_field_made_meanwhile_is_zero():
    field, builder = ti.field(ti.i32), ti.FieldsBuilder()
    builder.dense(ti.i, COUNT).place(field)
    with context_of(1):
        tree = builder.finalize()
        view = consume(field)
        ti.sync()
        (row,) = rows_at(view.data)
        assert row["device"] == 0
        assert sim.values(view.data, COUNT) == [0] * COUNT
        tree.destroy()
    view.delete()


def test_a_program_that_ends_meanwhile_frees_after_its_kernels():
    nd = ndarray(1)
    ptr = address_of(nd)
    sim.order("late")
    launch(nd)
    with context_of(1):
        ti.reset()
    assert not rows_at(ptr)
    init()
