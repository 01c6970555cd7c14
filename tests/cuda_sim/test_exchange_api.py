"""The C exchange API on CUDA: it makes no stream wait for Taichi, and Taichi waits for the streams of others."""

import ctypes
import gc

import pytest
import taichi as ti
from taichi._lib import core as ti_core

import dl_structs as dl
import exchange
import sim
from shared_arrays import (
    COUNT,
    Memory,
    Producer,
    address_of,
    assert_no_copy,
    assert_no_wait,
    ndarray,
    outcomes_of_import,
)

pytestmark = pytest.mark.usefixtures("cuda")


class Exchanging(Producer):
    """Another library's array whose type has a table. `writer`: the stream that the library works on."""

    def __init__(self, memory=None, writer=None):
        super().__init__(memory)
        self.other = exchange.Exchanging(self, stream=None if writer is None else writer.handle)

    @property
    def array(self):
        return self.other.cls()


def test_an_export_makes_no_call():
    nd = ndarray()
    with sim.recording() as made:
        view = exchange.managed_tensor_of(nd)
    assert not made
    assert (view.data, view.device) == (address_of(nd), (dl.CUDA, 0))
    view.delete()


@pytest.mark.parametrize("alive", [False, True], ids=["ndarray gone", "ndarray alive"])
def test_memory_stays_until_a_consumer_s_work_is_done(side, alive):
    """The consumer may work on any stream: Taichi waits before it frees."""
    nd = ndarray()
    view = exchange.managed_tensor_of(nd)
    sim.order("late")
    side.fill(view.data, COUNT, 7)
    if alive:
        view.delete()
    del nd
    gc.collect()
    if not alive:
        view.delete()
    gc.collect()
    sim.drain()


def test_memory_stays_until_the_work_of_a_borrower_is_done(side):
    """A borrowed DLTensor keeps nothing alive, but what its borrower launched must not meet freed memory."""
    nd, tensor = ndarray(), dl.Tensor()
    assert exchange.api_of(type(nd)).borrow_tensor(nd, ctypes.byref(tensor)) == 0
    sim.order("late")
    side.fill(tensor.data, COUNT, 7)
    del nd
    gc.collect()
    sim.drain()


def test_a_tensor_is_allocated_on_the_gpu():
    held = exchange.managed_tensor_of(ndarray())
    assert sim.live_allocations() and held.device == (dl.CUDA, 0)
    held.delete()


def test_an_import_aliases_without_a_wait_of_the_host():
    source = Exchanging(Memory(7))
    with sim.recording() as made:
        x = ti.from_dlpack(source.array)
    assert address_of(x) == source.pointer and source.other.calls == 1 and not source.asked
    assert "cuStreamWaitEvent" not in [call.name for call in made]
    assert_no_copy(made)


@pytest.mark.parametrize("handle", [sim.NULL, sim.LEGACY], ids=["NULL", "legacy"])
def test_the_default_stream_is_not_waited_for(handle):
    source = Exchanging(writer=sim.Stream(handle=handle))
    with sim.recording() as made:
        ti.from_dlpack(source.array)
    assert "cuStreamWaitEvent" not in [call.name for call in made]


def test_another_stream_is_waited_for_by_one_event_and_one_wait(side):
    source = Exchanging(writer=side)
    with sim.recording() as made:
        x = ti.from_dlpack(source.array)
    names = [call.name for call in made]
    assert names.count("cuEventRecord") == names.count("cuStreamWaitEvent") == 1
    assert address_of(x) == source.pointer
    assert_no_wait(made)


def test_memory_of_another_gpu_is_refused_and_given_back():
    source = Exchanging(Memory(device=1))
    with pytest.raises(BufferError, match="device 1.*device 0"):
        ti.from_dlpack(source.array)
    gc.collect()
    assert source.deleted == 1


def exchanging_source(memory, side):
    return Exchanging(memory, side).array


def test_a_kernel_comes_after_the_producer_s_work(side):
    assert outcomes_of_import(exchanging_source, side) == {11}


def test_without_the_wait_it_would_not(side, monkeypatch):
    monkeypatch.setattr(ti_core, "cuda_wait_for_stream", lambda stream: None)
    assert outcomes_of_import(exchanging_source, side) > {11}
