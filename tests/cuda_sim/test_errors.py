"""Driver calls that fail, and drivers that lack one: a clear error, nothing leaked, and Taichi goes on."""

import ctypes
import gc

import pytest
import taichi as ti

import dl_structs as dl
import helpers
import processes
import sim
from shared_arrays import (
    COUNT,
    InterfaceProducer,
    Memory,
    Producer,
    assert_no_wait,
    consume,
    launch,
    ndarray,
    needs_core,
    on_a_thread,
    values_of,
)

pytestmark = pytest.mark.usefixtures("cuda")

CODES = pytest.mark.parametrize(
    "code, text",
    [(sim.ILLEGAL_ADDRESS, "illegal memory access"), (sim.UNKNOWN, "unknown error")],
)


def fails(call, code, text, action):
    """Fails unless the action is a BufferError that names the failing call and CUDA's text for it."""
    sim.inject(call, code)
    with pytest.raises(BufferError, match=text) as caught:
        action()
    assert call in str(caught.value)
    hit = [made for made in sim.calls(call) if made.result == code]
    assert len(hit) == 1, f"{call} was not made, so that its failing shows nothing"


def assert_exports_work(nd, stream):
    """Fails unless an export still orders the consumer's stream after Taichi."""
    sim.clear_injections()
    sim.order("late")
    before = values_of(nd)[0]
    launch(nd, 1)
    view = consume(nd, stream=stream.handle)
    seen = stream.snapshot(view.data, COUNT)
    sim.cu("cuStreamSynchronize", stream.handle)
    assert seen.values == [before + 1] * COUNT
    view.delete()


# --- export ---------------------------------------------------------------------------------------


@CODES
@pytest.mark.parametrize("call", ["cuEventRecord", "cuStreamWaitEvent", "cuCtxGetCurrent"])
def test_an_export_that_cannot_be_ordered(call, code, text):
    nd, side = ndarray(), sim.Stream(non_blocking=True)
    fails(call, code, text, lambda: nd.__dlpack__(stream=side.handle))
    assert_exports_work(nd, side)


@CODES
def test_an_export_from_a_thread_whose_context_cannot_be_set(code, text):
    nd, side = ndarray(), sim.Stream(non_blocking=True)
    fails("cuCtxSetCurrent", code, text, lambda: on_a_thread(lambda: nd.__dlpack__(stream=side.handle)))
    assert_exports_work(nd, side)


def test_a_stream_that_is_none():
    nd = ndarray()
    with sim.expect_fault("STALE_HANDLE"):
        with pytest.raises(BufferError, match="cuStreamWaitEvent") as caught:
            nd.__dlpack__(stream=12345)
    assert "invalid resource handle" in str(caught.value)


@CODES
def test_a_host_copy_that_fails(code, text):
    nd = ndarray(3)
    fails("cuMemcpyDtoH_v2", code, text, lambda: nd.__dlpack__(dl_device=(dl.CPU, 0)))
    view = consume(nd, dl_device=(dl.CPU, 0))
    assert sim.unpack(ctypes.string_at(view.data, 4)) == [3]
    view.delete()


ONCE = """
import pytest
import shared_arrays as s
import taichi as ti
s.init()
nd, side = s.ndarray(), sim.Stream(non_blocking=True)
sim.inject({call!r}, sim.UNKNOWN)
with pytest.raises(BufferError, match="unknown error") as caught:
    nd.__dlpack__(stream=side.handle)
assert {call!r} in str(caught.value), caught.value
del caught
s.consume(nd, stream=side.handle).delete()
del nd
ti.reset()
assert not sim.live_allocations()
"""


@pytest.mark.parametrize("call", ["cuEventCreate", "cuCtxGetDevice"])
def test_what_is_asked_once_is_asked_again_when_it_failed(call):
    processes.run_python(ONCE.format(call=call)).check()


# --- import ---------------------------------------------------------------------------------------


@CODES
@pytest.mark.parametrize("call", ["cuPointerGetAttribute", "cuCtxGetCurrent"])
def test_an_import_whose_memory_cannot_be_looked_up(call, code, text):
    producer = Producer(Memory(4))
    producer.keep = True
    fails(call, code, text, lambda: ti.from_dlpack(producer))
    helpers.check_released(producer)
    sim.clear_injections()
    x = ti.from_dlpack(producer)
    launch(x)
    del x
    ti.sync()
    helpers.check_released(producer)
    assert producer.memory.values == [5] * COUNT


@CODES
@pytest.mark.parametrize("call", ["cuEventRecord", "cuStreamWaitEvent"])
def test_an_interface_whose_stream_cannot_be_waited_for(call, code, text):
    memory, side = Memory(), sim.Stream(non_blocking=True)
    source = InterfaceProducer(memory, stream=side.handle)
    fails(call, code, text, lambda: ti.from_dlpack(source))
    sim.clear_injections()
    sim.order("late")
    side.fill(memory.pointer, COUNT, 10)
    x = ti.from_dlpack(source)
    launch(x, 1)
    ti.sync()
    assert memory.values == [11] * COUNT
    del x, source
    gc.collect()
    ti.sync()
    gc.collect()
    assert memory.is_freed


def test_an_import_without_memory_for_the_copy():
    producer = Producer(Memory(4))
    sim.inject("cuMemAllocAsync", sim.OUT_OF_MEMORY)
    with pytest.raises(Exception, match="out of memory"):
        ti.from_dlpack(producer, copy=True)
    helpers.check_released(producer)
    assert values_of(ndarray(2)) == [2] * COUNT


# --- giving memory back ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call, count", [("cuEventRecord", 1), ("cuEventRecord", None), ("cuEventQuery", 1), ("cuCtxGetCurrent", 1)]
)
def test_a_drop_that_cannot_be_ordered_gives_back_all_the_same(call, count):
    """There is nobody to tell. The memory may come back late, but not early, and once."""
    producer = Producer()
    x = ti.from_dlpack(producer)
    sim.order("late")
    launch(x)
    gc.collect()
    sim.inject(call, sim.UNKNOWN, count=count)
    sim.clear_log()
    del x
    assert sim.calls(call)[0].result == sim.UNKNOWN
    sim.clear_injections()
    ti.sync()
    assert producer.deleted == 1


def test_a_drop_without_an_event():
    code = """
    import gc
    import shared_arrays as s
    import taichi as ti
    s.init()
    producer = s.Producer()
    x = ti.from_dlpack(producer)
    sim.order("late")
    s.launch(x)
    gc.collect()
    sim.inject("cuEventCreate", sim.UNKNOWN)
    del x
    assert sim.calls("cuEventCreate")
    ti.sync()
    assert producer.deleted == 1
    """
    processes.run_python(code).check()


@needs_core
def test_freeing_that_fails_goes_unnoticed():
    nd = ndarray()
    view = consume(nd)
    del nd
    gc.collect()
    sim.inject("cuMemFreeAsync", sim.UNKNOWN)
    view.delete()
    sim.clear_injections()
    # The driver did not free it: the block is lost, and nothing else.
    for call in sim.calls("cuMemFreeAsync"):
        if call.result == sim.UNKNOWN:
            sim.reclaim(call.ptr)
    assert values_of(ndarray(1)) == [1] * COUNT


# --- older drivers --------------------------------------------------------------------------------

OLDER = """
import pytest
import shared_arrays as s
import taichi as ti
s.init()
side = sim.Stream(non_blocking=True)
nd = s.ndarray(3)
assert s.values_of(nd) == [3] * s.COUNT
s.launch(nd)
assert s.values_of(nd) == [4] * s.COUNT
"""


def test_a_driver_without_events_between_streams():
    code = """
    def refuses(action):
        with pytest.raises(BufferError, match="cuStreamWaitEvent"):
            action()

    refuses(lambda: nd.__dlpack__(stream=side.handle))
    refuses(lambda: nd.__dlpack__(stream=2))
    refuses(lambda: ti.from_dlpack(s.InterfaceProducer(stream=side.handle)))
    for stream in (None, 1, -1):
        s.consume(nd, stream=stream).delete()
    x = ti.from_dlpack(s.Producer(s.Memory(6)))
    assert s.values_of(x) == [6] * s.COUNT
    """
    processes.run_python(OLDER + processes.dedent(code), hide=["cuStreamWaitEvent"]).check()


def test_a_driver_that_does_not_tell_the_device():
    code = """
    for action in (nd.__dlpack__, nd.__dlpack_device__, lambda: ti.from_dlpack(s.Producer())):
        with pytest.raises(BufferError, match="cuCtxGetDevice"):
            action()
    """
    processes.run_python(OLDER + processes.dedent(code), hide=["cuCtxGetDevice"]).check()


def test_a_driver_whose_events_cannot_be_asked():
    """Then the host waits, which is slower and as safe."""
    code = """
    s.consume(nd, stream=side.handle).delete()
    producer = s.Producer()
    x = ti.from_dlpack(producer)
    sim.order("late")
    s.launch(x)
    del x
    ti.sync()
    assert producer.deleted == 1
    """
    processes.run_python(OLDER + processes.dedent(code), hide=["cuEventQuery"]).check()


def test_an_error_of_a_launch_before_is_not_mistaken_for_one_of_the_export():
    """Exports that ask nothing of the driver go on when the device is lost."""
    nd = ndarray()
    for call in ("cuEventRecord", "cuStreamWaitEvent", "cuCtxGetCurrent", "cuPointerGetAttribute"):
        sim.inject(call, sim.ILLEGAL_ADDRESS, count=None)
    with sim.recording() as made:
        view = consume(nd, stream=-1)
    assert view.data and not made
    assert_no_wait(made)
    sim.clear_injections()
    view.delete()
