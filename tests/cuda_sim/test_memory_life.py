"""Exported memory lives as long as its last holder: past the ndarray, ti.reset(), another ti.init() and the process.

It is freed once, by the call of its kind, in its own context, on whatever thread; the simulator notices anything else.
"""

import gc
import threading

import pytest
import taichi as ti

import processes
import sim
from shared_arrays import (
    COUNT,
    IS_FAST,
    NO_POOLS,
    address_of,
    assert_no_wait,
    consume,
    context_of,
    init,
    launch,
    ndarray,
    needs_core,
)

pytestmark = pytest.mark.usefixtures("cuda")


def is_live(ptr):
    """Whether the address is one of live memory."""
    return any(row["ptr"] <= ptr < row["ptr"] + row["size"] for row in sim.live_allocations())


def exported(value=5, **request):
    """The export of an ndarray that is gone."""
    nd = ndarray(value)
    view = consume(nd, **request)
    del nd
    gc.collect()
    return view


def freeing_calls(made):
    return [call for call in made if call.name.startswith("cuMemFree")]


# --- while the program runs -----------------------------------------------------------------------


def test_an_ndarray_that_was_not_exported_is_freed_at_once():
    nd = ndarray()
    ptr = address_of(nd)
    nd.__dlpack__()
    del nd
    gc.collect()
    assert not is_live(ptr)


def test_the_last_holder_frees():
    nd = ndarray(5)
    first, second = consume(nd), consume(nd, max_version=(1, 0))
    ptr = first.data
    del nd
    gc.collect()
    first.delete()
    assert sim.values(ptr, COUNT) == [5] * COUNT
    with sim.recording() as made:
        second.delete()
    assert not is_live(ptr)
    (freeing,) = freeing_calls(made)
    assert (freeing.name, freeing.ptr, freeing.stream) == ("cuMemFreeAsync", ptr, sim.NULL)
    assert_no_wait(made)


def test_memory_is_freed_after_the_work_that_taichi_launched():
    nd = ndarray()
    view = consume(nd)
    sim.order("late")
    launch(nd)
    del nd
    gc.collect()
    view.delete()
    assert is_live(view.data)
    sim.drain()
    assert not is_live(view.data)


def test_a_consumer_lets_go_on_a_thread_that_nobody_knows():
    view = exported()
    view.delete_on_foreign_thread()
    assert not is_live(view.data)


def test_a_consumer_lets_go_in_another_context():
    view = exported()
    with context_of(1):
        view.delete()
    assert not is_live(view.data)


def test_consumers_let_go_on_many_threads():
    nd = ndarray()
    ptr = address_of(nd)
    views = [consume(nd) for _ in range(32)]
    del nd
    gc.collect()
    threads = [threading.Thread(target=view.delete) for view in views]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not is_live(ptr)
    assert len([call for call in sim.calls("cuMemFreeAsync") if call.ptr == ptr]) == 1


@pytest.mark.parametrize("alive", [False, True], ids=["ndarray gone", "ndarray alive"])
@pytest.mark.parametrize("asked", ["stream", "no synchronization", "interface"])
def test_a_consumer_on_another_stream_lets_go_with_work_pending(asked, alive):
    """Its work is not ordered with Taichi's freeing: Taichi waits, as nothing else can help."""
    side = sim.Stream(non_blocking=True)
    nd = ndarray()
    ptr = address_of(nd)
    view = None
    if asked == "interface":
        assert nd.__cuda_array_interface__["data"][0] == ptr
    else:
        view = consume(nd, stream=side.handle if asked == "stream" else -1)
    sim.order("late")
    side.fill(ptr, COUNT, 7)
    if view is not None and alive:
        view.delete()
    del nd
    gc.collect()
    if view is not None and not alive:
        view.delete()
    gc.collect()
    sim.drain()
    assert not is_live(ptr)


def test_a_consumer_on_the_default_stream_lets_go_with_work_pending():
    view = exported()
    sim.order("late")
    sim.legacy_stream().fill(view.data, COUNT, 7)
    with sim.recording() as made:
        view.delete()
    assert_no_wait(made)
    sim.drain()
    assert not is_live(view.data)


def test_exports_in_a_loop_leave_nothing():
    consume(ndarray()).delete()
    before = sim.live_allocations()
    for _ in range(300):
        nd = ti.ndarray(ti.i32, COUNT)
        consume(nd).delete()
        del nd
    gc.collect()
    sim.drain()
    assert sim.live_allocations() == before


# --- when the program ends ------------------------------------------------------------------------


def again_on_cuda():
    init()


def on_the_cpu():
    ti.init(arch=ti.cpu, log_level=ti.ERROR)


@needs_core
@pytest.mark.parametrize("end", [ti.reset, again_on_cuda, on_the_cpu])
@pytest.mark.parametrize("held", [False, True], ids=["ndarray gone", "ndarray held"])
def test_memory_outlives_the_program(end, held):
    nd = ndarray(5)
    view = consume(nd)
    sim.order("late")
    launch(nd, 1)
    if not held:
        del nd
    end()
    assert sim.values(view.data, COUNT) == [6] * COUNT
    sim.legacy_stream().add(view.data, COUNT, 1)
    with sim.recording() as made:
        view.delete()
    assert [call.name for call in freeing_calls(made)] == ["cuMemFreeAsync"]
    sim.drain()
    assert not is_live(view.data)
    if held:
        with pytest.raises(BufferError, match="ti.reset"):
            nd.__dlpack__()


@needs_core
def test_a_new_program_does_not_meet_the_old_one_s_memory():
    view = exported(5)
    init()
    arrays = [ndarray(1) for _ in range(8)]
    sim.legacy_stream().fill(view.data, COUNT, 9)
    assert all(sim.values(address_of(nd), COUNT) == [1] * COUNT for nd in arrays)
    assert view.data not in [address_of(nd) for nd in arrays]
    view.delete()


def test_reset_frees_what_nobody_holds():
    nd, other = ndarray(), ndarray()
    pointers = [address_of(nd), address_of(other)]
    consume(other).delete()
    ti.reset()
    assert not [ptr for ptr in pointers if is_live(ptr)]


@pytest.mark.skipif(not IS_FAST, reason="source wheel: the memory outlives the program")
def test_the_fast_wheel_warns_when_it_frees_what_is_held():
    nd = ndarray()
    view = consume(nd)
    with pytest.warns(RuntimeWarning, match="source wheel"):
        ti.reset()
    assert not is_live(view.data)
    view.delete()
    del nd


# --- at exit --------------------------------------------------------------------------------------

BEGIN = """
import shared_arrays as s
import taichi as ti
s.init()
nd = s.ndarray(5)
view = s.consume(nd)
"""
AT_EXIT = {
    "held by both": "",
    "held by the consumer": "del nd",
    "a capsule that nobody took": "capsule = nd.__dlpack__(); nd.capsule = capsule",
    "a view cached on its own ndarray": "nd.view = view",
    "released at exit": "import atexit; atexit.register(view.delete)",
    "released at exit, after the program": "ti.reset(); import atexit; atexit.register(view.delete)",
    "an interface": "interface = nd.__cuda_array_interface__",
    "work pending": "sim.order('late'); s.launch(nd)",
    "a stream of another library": "s.consume(nd, stream=sim.Stream(non_blocking=True).handle)",
}


@pytest.mark.parametrize("code", AT_EXIT.values(), ids=AT_EXIT.keys())
def test_views_at_exit(code):
    done = processes.run_python(BEGIN + code)
    if IS_FAST:  # which warns
        assert done.code == 0 and not done.report["faults"], done.errors
    else:
        done.check()


# --- without memory pools -------------------------------------------------------------------------

WITHOUT_POOLS = """
import gc, warnings
import shared_arrays as s
import taichi as ti

def init(**options):
    s.init(device_memory_GB=0.05, **options)

def chunks():
    return [row["ptr"] for row in sim.live_allocations("device") if row["size"] > 40e6]

init()
nd = s.ndarray(5)
view = s.consume(nd)
"""


def without_pools(code):
    return processes.run_python(WITHOUT_POOLS + processes.dedent(code), **NO_POOLS)


def test_without_pools_a_block_is_given_back_to_the_program():
    code = """
    first = s.address_of(nd)
    del nd
    gc.collect()
    other = s.ndarray(1)
    assert s.address_of(other) != first and sim.values(first, s.COUNT) == [5] * s.COUNT
    view.delete()
    assert s.address_of(s.ndarray(2)) == first
    ti.reset()
    assert not sim.live_allocations()
    """
    without_pools(code).check()


@needs_core
def test_without_pools_the_chunk_stays_until_the_last_holder_lets_go():
    code = """
    other = s.ndarray(6)
    second = s.consume(other)
    (chunk,) = chunks()
    del nd
    ti.set_logging_level(ti.WARN)
    init(log_level=ti.WARN)
    assert len(chunks()) == 2 and chunk in chunks()
    assert sim.values(view.data, s.COUNT) == [5] * s.COUNT
    assert sim.values(second.data, s.COUNT) == [6] * s.COUNT
    new = s.ndarray(1)
    sim.legacy_stream().fill(view.data, s.COUNT, 9)
    assert sim.values(s.address_of(new), s.COUNT) == [1] * s.COUNT
    view.delete()
    assert chunk in chunks()
    second.delete_on_foreign_thread()
    assert chunk not in chunks() and len(chunks()) == 1
    del new, other
    ti.reset()
    assert not sim.live_allocations()
    """
    done = without_pools(code)
    assert done.code == 0 and not done.report["faults"], done.errors
    assert "stay allocated" in done.output + done.errors


def test_without_pools_imports_and_streams_work_the_same():
    code = """
    side = sim.Stream(non_blocking=True)
    producer = s.Producer()
    x = ti.from_dlpack(producer)
    s.launch(x, 4)
    x_view = s.consume(x, stream=side.handle)
    seen = side.snapshot(x_view.data, s.COUNT)
    sim.cu("cuStreamSynchronize", side.handle)
    assert seen.values == [4] * s.COUNT
    x_view.delete()
    del x
    gc.collect()
    ti.sync()
    assert producer.deleted == 1
    view.delete()
    """
    without_pools(code).check()


@needs_core
def test_without_pools_views_at_exit():
    done = without_pools("del nd")
    assert done.code == 0 and not done.report["faults"], done.errors


# --- a consumer's stream that must be waited for --------------------------------------------------


def on_any_stream(value=0):
    """An ndarray whose address was told, so that any stream may be using it."""
    nd = ndarray(value)
    assert nd.__cuda_array_interface__["data"][0] == address_of(nd)
    return nd


def free_another():
    """The next such free, which waits for all."""
    nd = on_any_stream()
    del nd
    gc.collect()
    sim.drain()


@pytest.fixture
def refusing():
    """A driver that refuses to wait, as it does while a graph is captured, until the test says otherwise."""
    sim.inject("cuCtxSynchronize", sim.UNKNOWN, count=None)


def test_an_ndarray_stays_while_the_driver_refuses_to_wait(side, refusing):  # pylint: disable=W0613,W0621
    nd = on_any_stream()
    ptr = address_of(nd)
    sim.order("late")
    side.fill(ptr, COUNT, 7)
    del nd
    gc.collect()
    assert is_live(ptr)
    sim.clear_injections()
    free_another()
    assert not is_live(ptr) and side.pending == 0


def test_an_export_stays_while_the_driver_refuses_to_wait(side, refusing):  # pylint: disable=W0613,W0621
    view = exported(stream=-1)
    sim.order("late")
    side.fill(view.data, COUNT, 7)
    ptr = view.data
    view.delete()
    assert is_live(ptr)
    sim.clear_injections()
    free_another()
    assert not is_live(ptr) and side.pending == 0


def test_the_end_of_the_program_waits_again(side, refusing):  # pylint: disable=W0613,W0621
    nd = on_any_stream()
    ptr = address_of(nd)
    sim.order("late")
    side.fill(ptr, COUNT, 7)
    del nd
    gc.collect()
    sim.clear_injections()
    ti.reset()
    assert not is_live(ptr)
    init()


def test_a_graph_captured_meanwhile(side):
    """The driver waits for nothing then. The capture is lost, as with any wait; the memory is not freed too soon."""
    nd, capturing = on_any_stream(), sim.Stream(non_blocking=True)
    ptr = address_of(nd)
    sim.order("late")
    side.fill(ptr, COUNT, 7)
    capturing.begin_capture()
    with sim.expect_fault("CAPTURE_UNSUPPORTED"):
        del nd
        gc.collect()
    assert is_live(ptr)
    with pytest.raises(sim.DriverError):
        capturing.end_capture()
    free_another()
    assert not is_live(ptr)


@needs_core
@pytest.mark.parametrize("is_held", [True, False])
def test_the_address_outlives_the_program(is_held):
    nd = on_any_stream(5)
    ptr = address_of(nd)
    if not is_held:
        del nd
    ti.reset()
    gc.collect()
    assert is_live(ptr) == is_held
    if is_held:
        assert sim.values(ptr, COUNT) == [5] * COUNT
        del nd
        gc.collect()
        assert not is_live(ptr)
    init()


# A stream whose work ends only when another thread of Python has run.
WAITING = """
import threading, time
import shared_arrays as s
import taichi as ti
s.init()
s.ask_what_is_asked_once()
nd, other, side = s.ndarray(0), s.ndarray(0), sim.Stream(non_blocking=True)
libc, semaphore = ctypes.CDLL(None), ctypes.create_string_buffer(64)
libc.sem_init(semaphore, 0, 0)
view = s.consume(nd, stream=side.handle)

def let_go_on():
    time.sleep(0.3)
    {meanwhile}
    libc.sem_post(semaphore)

sim.order("late")
wait = ctypes.cast(libc.sem_wait, ctypes.c_void_p)
sim.cu("cuLaunchHostFunc", side.handle, wait, ctypes.cast(semaphore, ctypes.c_void_p))
threading.Thread(target=let_go_on, daemon=True).start()
"""

DROPS = {
    "ndarray": "view.delete(); del nd",
    "export": "del nd; view.delete()",
    "capsule": "view.delete(); capsule = nd.__dlpack__(stream=side.handle); del nd; del capsule",
    "reset": "view.delete(); ti.reset()",
}


@pytest.mark.parametrize("how", DROPS)
@pytest.mark.parametrize("meanwhile", ["pass", "other.__dlpack__(stream=2)"], ids=["python", "driver"])
def test_a_wait_lets_other_threads_go_on(how, meanwhile):
    """The work that is waited for may need another thread, which needs Python and the driver."""
    if how == "reset" and meanwhile != "pass":
        meanwhile = "sim.cu('cuCtxSetCurrent', None)"  # the program of the other ndarray is ending
    processes.run_python(WAITING.format(meanwhile=meanwhile) + DROPS[how], timeout=60).check()
