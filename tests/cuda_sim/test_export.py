"""Taichi's memory in other libraries: which driver calls an export makes, and what orders the work on both sides."""

import ctypes
import threading

import pytest
import taichi as ti
from taichi._lib import core as ti_core

import dl_structs as dl
import helpers
import sim
from shared_arrays import (
    CONTEXT_CALLS,
    COUNT,
    NBYTES,
    address_of,
    assert_no_copy,
    consume,
    context_of,
    driver_calls,
    launch,
    ndarray,
    on_a_thread,
    values_of,
)

pytestmark = pytest.mark.usefixtures("cuda")

SEEDS = range(50)


# --- the call log ---------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [None, 1, -1])
@pytest.mark.parametrize("version", [None, (1, 3)])
def test_no_call_at_all_where_nothing_is_to_be_ordered(stream, version):
    nd = ndarray()
    with sim.recording() as made:
        nd.__dlpack__(stream=stream, max_version=version)
        nd.__dlpack_device__()
    assert not made


def test_no_call_without_a_stream():
    nd = ndarray()
    with sim.recording() as made:
        nd.__dlpack__()
    assert not made


@pytest.mark.parametrize("which", ["per-thread", "blocking", "non-blocking"])
def test_a_stream_is_made_to_wait_by_one_event_and_one_wait(which):
    stream = sim.PER_THREAD if which == "per-thread" else sim.Stream(non_blocking=which == "non-blocking").handle
    nd = ndarray()
    events = set()
    for _ in range(3):
        with sim.recording() as made:
            nd.__dlpack__(stream=stream)
        assert driver_calls(made) == ["cuEventRecord", "cuStreamWaitEvent"]
        recorded, waited = [call for call in made if call.name not in CONTEXT_CALLS]
        assert recorded.stream == sim.NULL
        assert (waited.stream, waited.event, waited.flags) == (stream, recorded.event, 0)
        assert_no_copy(made)
        events.add(recorded.event)
    assert len(events) == 1


@pytest.mark.parametrize("stream, error", [(0, ValueError), (-2, ValueError), (True, TypeError), (1.0, TypeError)])
def test_what_is_no_stream_is_refused_without_a_call(stream, error):
    nd = ndarray()
    with sim.recording() as made:
        with pytest.raises(error, match="stream"):
            nd.__dlpack__(stream=stream)
    assert not made


@pytest.mark.parametrize(
    "make",
    [
        lambda: ti.ndarray(ti.f16, (2, 3)),
        lambda: ti.ndarray(ti.u1, 5),
        lambda: ti.Vector.ndarray(3, ti.f32, 4),
        lambda: ti.Matrix.ndarray(2, 3, ti.f64, (2, 2)),
        lambda: ti.ndarray(ti.i64, ()),
    ],
    ids=["f16", "u1", "vector", "matrix", "0-d"],
)
def test_every_export_aliases(make, side):
    nd = make()
    sim.clear_log()
    with sim.recording() as made:
        views = [
            helpers.peek(nd.__dlpack__(stream=stream, max_version=version, copy=copy))
            for stream in (None, 1, 2, -1, side.handle)
            for version in (None, (1, 0))
            for copy in (None, False)
        ]
        interface = nd.__cuda_array_interface__
    assert_no_copy(made)
    assert {view.data for view in views} == {address_of(nd)} == {interface["data"][0]}
    assert {view.device for view in views} == {(dl.CUDA, 0)}
    assert {view.byte_offset for view in views} == {0}
    assert all(not view.flags for view in views if view.versioned)


def test_the_array_interface():
    nd = ti.Matrix.ndarray(2, 3, ti.f64, (4, 5))
    with sim.recording() as made:
        interface = nd.__cuda_array_interface__
    assert interface == {
        "shape": (4, 5, 2, 3),
        "typestr": "<f8",
        "data": (address_of(nd), False),
        "strides": None,
        "version": 3,
        "stream": 1,
    }
    assert not made
    assert not hasattr(nd, "__array_interface__")


# --- work that is pending -------------------------------------------------------------------------


def exported_to(side, nd, value):
    """What the side stream reads of an ndarray to which Taichi adds, when it asked for an export in between."""
    launch(nd, value)
    view = consume(nd, stream=side.handle)
    seen = side.snapshot(view.data, COUNT)
    sim.cu("cuStreamSynchronize", side.handle)
    view.delete()
    return seen.values


def outcomes(side):
    """All that the side stream reads in the worst order and in many others; Taichi's kernel makes 1 of 0."""
    nd = ndarray()
    sim.order("late")
    side.order("early")
    seen = set(exported_to(side, nd, 1))
    side.order(None)
    for seed in SEEDS:
        sim.drain()
        sim.order("program")
        nd.fill(0)
        sim.order("random", seed)
        seen.update(exported_to(side, nd, 1))
    return seen


def test_a_consumer_reads_what_taichi_wrote(side):
    assert outcomes(side) == {1}


def test_without_the_wait_it_would_not(side, monkeypatch):
    monkeypatch.setattr(ti_core, "cuda_make_stream_wait", lambda stream: None)
    assert outcomes(side) == {0, 1}


def test_without_the_driver_s_wait_it_would_not(side):
    sim.ignore("cuStreamWaitEvent")
    assert outcomes(side) == {0, 1}


def test_on_the_default_stream_nothing_is_needed():
    nd, default = ndarray(), sim.legacy_stream()
    for seed in SEEDS:
        sim.order("program")
        nd.fill(0)
        sim.order("random", seed)
        launch(nd)
        view = consume(nd)
        default.add(view.data, COUNT, 10)
        launch(nd)
        sim.drain()
        assert values_of(nd) == [12] * COUNT
        view.delete()


def test_each_export_orders_what_was_launched_before_it(side):
    nd = ndarray()
    sim.order("late")
    side.order("early")
    for value in (1, 2, 3):
        assert exported_to(side, nd, 1) == [value] * COUNT


def test_the_wait_is_for_no_later_work(side):
    nd = ndarray()
    sim.order("late")
    launch(nd, 1)
    view = consume(nd, stream=side.handle)
    launch(nd, 1)
    seen = side.snapshot(view.data, COUNT)
    sim.cu("cuStreamSynchronize", side.handle)
    assert seen.values == [1] * COUNT
    view.delete()


def test_a_second_consumer_does_not_take_the_first_one_s_wait(side):
    other = sim.Stream(non_blocking=True)
    nd = ndarray()
    sim.order("late")
    launch(nd, 1)
    first = consume(nd, stream=side.handle)
    launch(nd, 1)
    second = consume(nd, stream=other.handle)
    seen = side.snapshot(first.data, COUNT), other.snapshot(second.data, COUNT)
    sim.cu("cuStreamSynchronize", side.handle)
    sim.cu("cuStreamSynchronize", other.handle)
    assert [snapshot.values[0] for snapshot in seen] == [1, 2]
    first.delete()
    second.delete()


# --- graph capture --------------------------------------------------------------------------------


def test_an_export_without_synchronization_can_be_captured(side):
    nd = ndarray()
    for stream in (side, sim.Stream()):
        stream.begin_capture()
        with sim.recording() as made:
            nd.__dlpack__(stream=-1)
        assert not made
        stream.end_capture()


@pytest.mark.parametrize(
    "non_blocking, kind, text",
    [(True, "CAPTURE_ISOLATION", "uncaptured work"), (False, "CAPTURE_IMPLICIT", "capturing blocking stream")],
)
def test_an_export_to_a_captured_stream_is_refused_by_the_driver(non_blocking, kind, text):
    nd, stream = ndarray(), sim.Stream(non_blocking=non_blocking)
    stream.begin_capture()
    with sim.expect_fault(kind):
        with pytest.raises(BufferError, match=text):
            nd.__dlpack__(stream=stream.handle)
    with pytest.raises(sim.DriverError):
        stream.end_capture()
    nd.__dlpack__(stream=stream.handle)


# --- copies that were asked for -------------------------------------------------------------------


@pytest.mark.parametrize("copy", [None, True])
def test_a_host_copy_is_finished_when_it_returns(copy):
    nd = ndarray()
    sim.order("late")
    launch(nd, 5)
    with sim.recording() as made:
        view = consume(nd, dl_device=(dl.CPU, 0), copy=copy, max_version=(1, 3))
    assert driver_calls(made) == ["cuMemcpyDtoH_v2"]
    assert (made[-1].src, made[-1].size) == (address_of(nd), NBYTES)
    assert view.device == (dl.CPU, 0) and view.flags == dl.FLAG_IS_COPIED
    assert sim.unpack(ctypes.string_at(view.data, NBYTES)) == [5] * COUNT
    view.delete()


def test_a_host_copy_that_may_not_be_made():
    nd = ndarray()
    with sim.recording() as made:
        with pytest.raises(BufferError, match="copy"):
            nd.__dlpack__(dl_device=(dl.CPU, 0), copy=False)
        with pytest.raises(BufferError, match="CUDA"):
            nd.__dlpack__(dl_device=(dl.CUDA, 1))
    assert not made


def test_a_copy_on_the_device_is_other_memory():
    nd = ndarray(4)
    view = consume(nd, copy=True, max_version=(1, 3))
    assert view.data != address_of(nd) and view.flags == dl.FLAG_IS_COPIED
    assert view.device == (dl.CUDA, 0)
    view.delete()


# --- threads --------------------------------------------------------------------------------------


def current_context():
    context = ctypes.c_void_p()
    sim.cu("cuCtxGetCurrent", ctypes.byref(context))
    return context.value


def test_a_thread_without_a_context_exports_and_is_left_without_one(side):
    nd = ndarray()
    sim.order("late")
    launch(nd, 2)

    def export():
        view = consume(nd, stream=side.handle)
        return view, current_context()

    with sim.recording() as made:
        view, context = on_a_thread(export)
    assert context is None
    assert [call.name for call in made if call.name != "cuCtxGetCurrent"] == [
        "cuCtxSetCurrent",
        "cuEventRecord",
        "cuStreamWaitEvent",
        "cuCtxSetCurrent",
    ]
    seen = side.snapshot(view.data, COUNT)
    sim.cu("cuStreamSynchronize", side.handle)
    assert seen.values == [2] * COUNT
    view.delete()


def test_another_library_s_context_stays_current(side):
    nd = ndarray()

    def export():
        with context_of(1) as context:
            nd.__dlpack__(stream=side.handle)
            nd.__dlpack__(dl_device=(dl.CPU, 0))
            return context == current_context()

    assert on_a_thread(export)


def test_threads_do_not_mix_up_their_events(side):
    nd = ndarray()
    streams = [sim.Stream(non_blocking=True).handle for _ in range(4)]

    def export(stream):
        for _ in range(50):
            nd.__dlpack__(stream=stream)

    with sim.recording() as made:
        threads = [threading.Thread(target=export, args=(stream,)) for stream in streams]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    ordering = [call for call in made if call.name not in CONTEXT_CALLS]
    assert len(ordering) == 2 * 4 * 50
    for recorded, waited in zip(ordering[::2], ordering[1::2]):
        assert (recorded.name, waited.name) == ("cuEventRecord", "cuStreamWaitEvent")
        assert recorded.thread == waited.thread and recorded.event == waited.event
