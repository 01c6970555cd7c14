"""When simulated work runs, by calls of the driver alone: no Taichi here."""

import ctypes
import threading

import pytest

import sim
from plain_calls import (
    allocate,
    allocate_pinned,
    COUNT,
    fill,
    is_ready,
    is_ready_stream,
    make_event,
    NBYTES,
    read_back,
    record,
    refuses,
    wait,
)

pytestmark = pytest.mark.usefixtures("context")

SEEDS = range(40)


# --- the order of work ----------------------------------------------------------------------------


def test_in_program_order_work_is_done_at_once():
    ptr, event = allocate(), make_event()
    fill(ptr, 1)
    assert sim.values(ptr, COUNT) == [1] * COUNT
    record(event)
    assert is_ready(event)


def test_late_work_is_done_when_the_host_waits():
    ptr = allocate()
    fill(ptr, 1)
    sim.order("late")
    fill(ptr, 2)
    assert sim.values(ptr, 1) == [1]
    sim.cu("cuStreamSynchronize", sim.NULL)
    assert sim.values(ptr, 1) == [2]


def test_a_stream_keeps_its_order():
    ptr = allocate()
    for seed in SEEDS:
        sim.order("random", seed)
        stream = sim.Stream()
        stream.fill(ptr, COUNT, 1)
        stream.add(ptr, COUNT, 2)
        seen = stream.snapshot(ptr, COUNT)
        stream.fill(ptr, COUNT, 9)
        sim.cu("cuStreamSynchronize", stream.handle)
        assert seen.values == [3] * COUNT


def test_a_wait_runs_no_more_than_it_must():
    ptr = allocate()
    first, second = sim.Stream(non_blocking=True), sim.Stream(non_blocking=True)
    sim.order("late")
    first.fill(ptr, COUNT, 1)
    second.fill(ptr, COUNT, 2)
    sim.cu("cuStreamSynchronize", second.handle)
    assert (first.pending, second.pending) == (1, 0)
    sim.cu("cuCtxSynchronize")
    assert first.pending == 0


def test_the_legacy_stream_waits_for_blocking_streams():
    ptr = allocate()
    side = sim.Stream()
    sim.order("late")
    side.fill(ptr, COUNT, 1)
    assert read_back(ptr) == [1] * COUNT


def test_blocking_streams_wait_for_the_legacy_stream():
    ptr = allocate()
    side = sim.Stream().order("early")
    sim.order("late")
    fill(ptr, 1)
    seen = side.snapshot(ptr, COUNT)
    assert not seen.taken
    sim.cu("cuStreamSynchronize", side.handle)
    assert seen.values == [1] * COUNT


def test_non_blocking_streams_do_not_wait_for_the_legacy_stream():
    ptr = allocate()
    fill(ptr, 0)
    side = sim.Stream(non_blocking=True).order("early")
    sim.order("late")
    fill(ptr, 1)
    assert side.snapshot(ptr, COUNT).values == [0] * COUNT
    side.order("late").fill(ptr, COUNT, 2)
    assert read_back(ptr) == [1] * COUNT and side.pending == 1


def test_each_thread_has_a_default_stream(context):
    ptr = allocate()
    mine = sim.Stream(handle=sim.PER_THREAD)
    sim.order("late")
    mine.fill(ptr, COUNT, 1)

    def other_thread():
        sim.cu("cuCtxSetCurrent", context)
        sim.cu("cuStreamSynchronize", sim.PER_THREAD)

    thread = threading.Thread(target=other_thread)
    thread.start()
    thread.join()
    assert mine.pending == 1
    assert read_back(ptr) == [1] * COUNT  # on the legacy stream, which waits for it


def outcomes(ordered):
    """What a second stream reads of a first one's work, over many orders."""
    ptr, event = allocate(), make_event()
    seen = set()
    for seed in SEEDS:
        fill(ptr, 0)
        sim.drain()
        sim.order("random", seed)
        writer, reader = sim.Stream(non_blocking=True), sim.Stream(non_blocking=True)
        writer.fill(ptr, COUNT, 1)
        if ordered:
            record(event, writer.handle)
            wait(reader.handle, event)
        found = reader.snapshot(ptr, COUNT)
        sim.drain()
        seen.update(found.values)
        sim.order("program")
    return seen


def test_a_race_shows_and_a_wait_mends_it():
    assert outcomes(ordered=False) == {0, 1}
    assert outcomes(ordered=True) == {1}


def test_a_driver_that_ignores_waits_brings_the_race_back():
    sim.ignore("cuStreamWaitEvent")
    assert outcomes(ordered=True) == {0, 1}


def test_late_writers_and_early_readers_are_the_worst_case():
    ptr, event = allocate(), make_event()
    fill(ptr, 0)
    writer = sim.Stream(non_blocking=True).order("late")
    reader = sim.Stream(non_blocking=True).order("early")
    writer.fill(ptr, COUNT, 1)
    assert reader.snapshot(ptr, 1).values == [0]
    record(event, writer.handle)
    wait(reader.handle, event)
    seen = reader.snapshot(ptr, 1)
    assert not seen.taken
    sim.cu("cuStreamSynchronize", reader.handle)
    assert seen.values == [1]


def test_a_late_stream_is_late_in_random_order_too():
    ptr, side = allocate(), sim.Stream(non_blocking=True).order("late")
    for seed in SEEDS:
        sim.order("random", seed)
        side.fill(ptr, COUNT, 1)
        for _ in range(5):
            fill(ptr, 0)
        assert side.pending == 1
        sim.drain()


def test_a_wait_is_for_the_recording_at_the_time():
    ptr, event = allocate(), make_event()
    first, second = sim.Stream(non_blocking=True), sim.Stream(non_blocking=True)
    reader = sim.Stream(non_blocking=True)
    sim.order("late")
    first.fill(ptr, COUNT, 1)
    record(event, first.handle)
    wait(reader.handle, event)
    second.fill(ptr, COUNT, 2)
    record(event, second.handle)
    seen = reader.snapshot(ptr, 1)
    sim.cu("cuStreamSynchronize", reader.handle)
    assert seen.values == [1]
    assert (first.pending, second.pending) == (0, 2)
    sim.cu("cuEventSynchronize", event)
    assert second.pending == 0


def test_an_event_holds_what_came_before_it():
    ptr, event = allocate(), make_event()
    sim.order("late")
    side = sim.Stream(non_blocking=True)
    side.fill(ptr, COUNT, 1)
    record(event, side.handle)
    side.fill(ptr, COUNT, 2)
    assert not is_ready(event)
    sim.cu("cuEventSynchronize", event)
    assert is_ready(event) and side.pending == 1
    assert sim.values(ptr, 1) == [1]


def test_an_event_that_was_not_recorded_holds_nothing():
    event = make_event()
    sim.order("late")
    assert is_ready(event)
    wait(sim.NULL, event)
    sim.cu("cuEventSynchronize", event)


def test_an_event_of_the_legacy_stream_holds_blocking_streams_too():
    ptr, event = allocate(), make_event()
    side, free = sim.Stream(), sim.Stream(non_blocking=True)
    sim.order("late")
    side.fill(ptr, COUNT, 1)
    free.fill(ptr, COUNT, 2)
    record(event)
    sim.cu("cuEventSynchronize", event)
    assert (side.pending, free.pending) == (0, 1)


def test_streams_answer_truthfully():
    ptr, side = allocate(), sim.Stream(non_blocking=True)
    sim.order("late")
    side.fill(ptr, COUNT, 1)
    assert not is_ready_stream(side.handle)
    assert is_ready_stream(sim.NULL)
    sim.drain()
    assert is_ready_stream(side.handle)


def test_the_test_moves_the_device_on():
    ptr, side = allocate(), sim.Stream(non_blocking=True)
    sim.order("late")
    for value in (1, 2, 3):
        side.fill(ptr, COUNT, value)
    side.run(2)
    assert side.pending == 1 and sim.values(ptr, 1) == [2]


def test_destroyed_objects_finish_their_work_and_are_not_used_again():
    ptr, event = allocate(), make_event()
    stream = ctypes.c_void_p()
    sim.cu("cuStreamCreate", ctypes.byref(stream), 1)
    sim.order("late")
    side = sim.Stream(handle=stream.value)
    side.fill(ptr, COUNT, 4)
    record(event, stream.value)
    wait(sim.NULL, event)
    sim.cu("cuEventDestroy_v2", event)
    sim.cu("cuStreamDestroy_v2", stream)
    assert read_back(ptr) == [4] * COUNT
    with sim.expect_fault("STALE_HANDLE"):
        assert refuses(sim.INVALID_HANDLE, "cuEventRecord", event, sim.NULL)
    with sim.expect_fault("STALE_HANDLE"):
        assert refuses(sim.INVALID_HANDLE, "cuStreamSynchronize", stream)
    with sim.expect_fault("STALE_HANDLE"):
        assert refuses(sim.INVALID_HANDLE, "cuStreamSynchronize", 12345)


def test_an_event_is_recorded_in_its_own_context():
    event = make_event()
    side = sim.Stream(device=1)
    with sim.expect_fault("WRONG_CONTEXT"):
        assert refuses(sim.INVALID_HANDLE, "cuEventRecord", event, side.handle)
    wait(side.handle, event)  # a wait may cross contexts


def test_functions_of_the_host_run_in_the_stream():
    ptr, seen = allocate(), []
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: seen.append(sim.values(ptr, 1)))
    sim.order("late")
    fill(ptr, 6)
    sim.cu("cuLaunchHostFunc", sim.NULL, function, None)
    assert not seen
    sim.cu("cuStreamSynchronize", sim.NULL)
    assert seen == [[6]]


def test_functions_of_the_host_do_not_call_the_driver():
    codes = []
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: codes.append(sim.driver().cuCtxSynchronize()))
    with sim.expect_fault("HOST_FUNCTION_CALLS_DRIVER"):
        sim.cu("cuLaunchHostFunc", sim.NULL, function, None)
    assert codes == [sim.NOT_PERMITTED]


# --- which calls wait -----------------------------------------------------------------------------


def test_copies_from_pageable_memory_are_staged():
    ptr, host = allocate(), ctypes.create_string_buffer(bytes([1] * NBYTES), NBYTES)
    sim.order("late")
    sim.cu("cuMemcpyHtoDAsync_v2", ptr, host, NBYTES, sim.NULL)
    ctypes.memset(host, 2, NBYTES)
    sim.drain()
    assert sim.read(ptr, 1) == b"\x01"


def test_copies_from_pinned_memory_are_not():
    ptr, pinned = allocate(), allocate_pinned()
    ctypes.memset(pinned, 1, NBYTES)
    sim.order("late")
    sim.cu("cuMemcpyHtoDAsync_v2", ptr, pinned, NBYTES, sim.NULL)
    ctypes.memset(pinned, 2, NBYTES)
    sim.drain()
    assert sim.read(ptr, 1) == b"\x02"


def pending_after(name, *arguments):
    """What is pending on the legacy stream after a fill and a call; and whether the call is marked as one that waits."""
    legacy, ptr = sim.legacy_stream(), allocate()
    sim.order("late")
    fill(ptr, 1)
    sim.cu(name, *arguments)
    found = legacy.pending, sim.calls(name)[-1].blocking
    sim.drain()
    return found


def test_which_calls_wait():
    ptr, other, pinned, event = allocate(), allocate(), allocate_pinned(), make_event()
    host = ctypes.create_string_buffer(NBYTES)
    null = sim.NULL
    assert pending_after("cuMemsetD8_v2", ptr, 0, NBYTES) == (2, False)
    assert pending_after("cuMemcpyDtoD_v2", ptr, other, NBYTES) == (2, False)
    assert pending_after("cuMemcpyDtoH_v2", host, ptr, NBYTES) == (0, True)
    assert pending_after("cuMemcpyDtoH_v2", pinned, ptr, NBYTES) == (0, True)
    assert pending_after("cuMemcpyHtoD_v2", ptr, host, NBYTES) == (1, True)  # the copy itself is not waited for
    assert pending_after("cuMemcpyHtoD_v2", ptr, pinned, NBYTES) == (0, True)
    assert pending_after("cuMemcpyHtoDAsync_v2", ptr, host, NBYTES, null) == (2, False)
    assert pending_after("cuMemcpyDtoHAsync_v2", host, ptr, NBYTES, null) == (0, True)
    assert pending_after("cuMemcpyDtoHAsync_v2", pinned, ptr, NBYTES, null) == (2, False)
    assert pending_after("cuMemcpyAsync", ptr, other, NBYTES, null) == (2, False)
    assert pending_after("cuMemcpy", host, ptr, NBYTES) == (0, True)
    assert pending_after("cuEventRecord", event, null) == (2, False)
    assert pending_after("cuStreamSynchronize", null) == (0, True)
    assert pending_after("cuCtxSynchronize") == (0, True)
    assert pending_after("cuEventSynchronize", event) == (1, True)


def test_time_passes_between_events():
    start, end, milliseconds = make_event(0), make_event(0), ctypes.c_float()
    assert refuses(sim.INVALID_HANDLE, "cuEventElapsedTime", ctypes.byref(milliseconds), start, make_event())
    sim.order("late")
    record(start)
    record(end)
    assert refuses(sim.NOT_READY, "cuEventElapsedTime", ctypes.byref(milliseconds), start, end)
    sim.drain()
    sim.cu("cuEventElapsedTime", ctypes.byref(milliseconds), start, end)
    assert milliseconds.value > 0


# --- capture --------------------------------------------------------------------------------------


@pytest.fixture
def captured():
    """A blocking and a non-blocking stream, and a hand to end a capture that a test left open."""
    streams = sim.Stream(), sim.Stream(non_blocking=True)
    yield streams
    for stream in streams:
        sim.driver().cuStreamEndCapture(ctypes.c_void_p(stream.handle), ctypes.byref(ctypes.c_void_p()))


def test_captured_work_does_not_run(captured):
    ptr = allocate()
    fill(ptr, 0)
    for stream in captured:
        stream.begin_capture()
        sim.cu("cuMemsetD32Async", ptr, 1, COUNT, stream.handle)
        stream.end_capture()
    assert read_back(ptr) == [0] * COUNT


@pytest.mark.parametrize(
    "kind, code, name, make_arguments",
    [
        ("CAPTURE_UNSUPPORTED", sim.CAPTURE_UNSUPPORTED, "cuStreamSynchronize", lambda s, e: (s,)),
        ("CAPTURE_UNSUPPORTED", sim.CAPTURE_UNSUPPORTED, "cuCtxSynchronize", lambda s, e: ()),
        ("CAPTURE_UNSAFE_CALL", sim.CAPTURE_UNSUPPORTED, "cuMemAlloc_v2", lambda s, e: (ctypes.c_uint64(), 4)),
        ("CAPTURE_UNSAFE_CALL", sim.CAPTURE_UNSUPPORTED, "cuEventQuery", lambda s, e: (e,)),
        ("CAPTURE_IMPLICIT", sim.CAPTURE_IMPLICIT, "cuEventRecord", lambda s, e: (e, sim.NULL)),
        ("CAPTURE_ISOLATION", sim.CAPTURE_ISOLATION, "cuStreamWaitEvent", lambda s, e: (s, e, 0)),
    ],
)
def test_what_spoils_a_capture(captured, kind, code, name, make_arguments):
    event = make_event()
    record(event)
    stream = captured[0]
    stream.begin_capture()
    arguments = [
        ctypes.byref(argument) if isinstance(argument, ctypes.c_uint64) else argument
        for argument in make_arguments(stream.handle, event)
    ]
    with sim.expect_fault(kind):
        assert refuses(code, name, *arguments)
    with pytest.raises(sim.DriverError) as caught:
        stream.end_capture()
    assert caught.value.code == sim.CAPTURE_INVALIDATED


def test_what_does_not_spoil_a_capture(captured):
    ptr, event = allocate(), make_event()
    blocking, free = captured
    free.begin_capture()
    record(event)  # the legacy stream has nothing to do with a non-blocking one
    fill(ptr, 1)
    free.end_capture()
    blocking.begin_capture(2)  # relaxed
    sim.cu("cuMemFree_v2", allocate())
    record(event, blocking.handle)
    wait(blocking.handle, event)
    blocking.end_capture()
    free.begin_capture()
    mode = ctypes.c_int(2)
    sim.cu("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
    sim.cu("cuMemFree_v2", allocate())
    sim.cu("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
    assert mode.value == 2
    free.end_capture()
    with sim.expect_fault("CAPTURED_EVENT"):
        assert refuses(sim.CAPTURED_EVENT, "cuEventQuery", event)
