"""Other libraries' memory in Taichi: what is asked of whom, what is refused, and what orders the work on both sides."""

import ctypes
import gc

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
    InterfaceProducer,
    Memory,
    Producer,
    address_of,
    assert_no_copy,
    assert_no_wait,
    consume,
    context_of,
    driver_calls,
    init,
    launch,
    ndarray,
    outcomes_of_import,
    values_of,
)

pytestmark = pytest.mark.usefixtures("cuda")

SEEDS = range(50)


# --- what is asked --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["device", "pool", "managed"])
@pytest.mark.parametrize("capsule", ["legacy", "versioned"])
def test_an_import_aliases_and_asks_the_driver_whose_memory_it_is(kind, capsule):
    device = (dl.CUDA_MANAGED, 0) if kind == "managed" else (dl.CUDA, 0)
    producer = Producer(Memory(7, kind), device=device, capsule=capsule)
    with sim.recording() as made:
        x = ti.from_dlpack(producer)
    assert address_of(x) == producer.pointer
    assert x.dtype == ti.i32 and x.shape == (COUNT,)
    assert set(driver_calls(made)) <= {"cuPointerGetAttribute", "cuPointerGetAttributes", "cuCtxGetDevice"}
    assert {call.ptr for call in made if call.name.startswith("cuPointer")} == {producer.pointer}
    assert_no_copy(made)
    assert producer.asked == [{"max_version": (1, 3), "stream": 1}]
    x.fill(3)
    ti.sync()
    assert producer.memory.values == [3] * COUNT


def test_a_bare_capsule_aliases():
    producer = Producer(Memory(7))
    with sim.recording() as made:
        x = ti.from_dlpack(producer.make_capsule(versioned=True))
    assert address_of(x) == producer.pointer
    assert_no_copy(made)


def test_an_import_exported_again_aliases():
    producer = Producer()
    x = ti.from_dlpack(producer)
    with sim.recording() as made:
        y = ti.from_dlpack(x)
        pointer = helpers.peek(x.__dlpack__()).data
    assert address_of(y) == pointer == producer.pointer
    assert_no_copy(made)


def test_memory_of_the_middle_of_an_allocation():
    memory = Memory()
    sim.write(memory.pointer, bytes(range(NBYTES)))
    producer = Producer(memory, shape=(2,), byte_offset=8)
    x = ti.from_dlpack(producer)
    assert address_of(x) == memory.pointer + 8


def test_a_kernel_gets_the_pointer_and_no_copy():
    x = ti.from_dlpack(Producer(Memory(5)))
    launch(x)
    with sim.recording() as made:
        launch(x)
    copies = [call for call in made if call.name.startswith("cuMemcpy")]
    # The kernel's arguments travel, to memory that is made for them, and nothing else does.
    (arguments,) = copies
    assert arguments.name == "cuMemcpyHtoDAsync_v2"
    assert arguments.dst in [call.ptr for call in made if call.name == "cuMemAllocAsync"]
    assert_no_wait(made)
    assert values_of(x) == [7] * COUNT


def test_zero_elements_ask_nobody():
    producer = Producer(shape=(0, 3), null=True)
    with sim.recording() as made:
        x = ti.from_dlpack(producer)
    assert x.shape == (0, 3)
    assert not [call for call in made if call.name.startswith("cuPointer")]


# --- what is refused ------------------------------------------------------------------------------


def refused(producer, match):
    """Fails unless an import is a BufferError that names both sides, copies nothing and gives the tensor back."""
    with sim.recording() as made:
        with pytest.raises(BufferError, match=match) as caught:
            ti.from_dlpack(producer)
    assert "CUDA" in str(caught.value)
    del caught  # its traceback holds the capsule
    assert_no_copy(made)
    helpers.check_released(producer)


def test_memory_of_another_gpu_that_says_so():
    refused(Producer(Memory(device=1), device=(dl.CUDA, 1)), r"\(2, 1\).*\(2, 0\)")


def test_memory_of_another_gpu_that_claims_to_be_of_this_one():
    refused(Producer(Memory(device=1)), "device 1.*device 0")


def test_host_memory_that_claims_to_be_on_the_gpu():
    host = ctypes.create_string_buffer(NBYTES + 64)
    memory = Memory()
    memory.free()
    memory.pointer = (ctypes.addressof(host) + 63) // 64 * 64
    refused(Producer(memory), "host memory.*device 0")


def test_pinned_memory_that_claims_to_be_on_the_gpu():
    refused(Producer(Memory(kind="pinned")), "pinned.*device 0")


def test_pinned_memory_counts_as_the_cpu_s():
    refused(Producer(Memory(kind="pinned"), device=(dl.CUDA_HOST, 0)), r"\(3, 0\).*\(2, 0\)")


def test_pinned_and_managed_memory_is_welcome_on_the_cpu():
    ti.init(arch=ti.cpu, log_level=ti.ERROR)
    try:
        for kind, device in (("pinned", dl.CUDA_HOST), ("managed", dl.CUDA_MANAGED)):
            producer = Producer(Memory(4, kind), device=(device, 0))
            x = ti.from_dlpack(producer)
            assert x[COUNT - 1] == 4
            x[0] = 9
            assert producer.memory.values[0] == 9
            del x
            helpers.check_released(producer)
    finally:
        init()


def test_memory_that_was_freed():
    producer = Producer()
    producer.memory.free()
    refused(producer, "host memory|not|no ")


# --- the CUDA array interface ---------------------------------------------------------------------


@pytest.mark.parametrize("stream", [None, 1])
def test_an_interface_on_the_default_stream_needs_no_wait(stream):
    source = InterfaceProducer(stream=stream)
    with sim.recording() as made:
        x = ti.from_dlpack(source)
    assert address_of(x) == source.memory.pointer
    assert not {"cuEventRecord", "cuStreamWaitEvent"} & set(driver_calls(made))
    assert_no_copy(made)


@pytest.mark.parametrize("which", ["per-thread", "blocking", "non-blocking"])
def test_taichi_waits_for_the_stream_of_an_interface(which):
    stream = sim.PER_THREAD if which == "per-thread" else sim.Stream(non_blocking=which == "non-blocking").handle
    events = set()
    for _ in range(3):
        with sim.recording() as made:
            ti.from_dlpack(InterfaceProducer(stream=stream))
        made = [call for call in made if call.name in ("cuEventRecord", "cuStreamWaitEvent")][:2]
        recorded, waited = made
        assert (recorded.name, recorded.stream) == ("cuEventRecord", stream)
        assert (waited.name, waited.stream, waited.event) == ("cuStreamWaitEvent", sim.NULL, recorded.event)
        events.add(recorded.event)
    assert len(events) == 1


def test_stream_zero_of_an_interface_is_ambiguous():
    source = InterfaceProducer(stream=0)
    with sim.recording() as made:
        with pytest.raises(ValueError, match="stream 0"):
            ti.from_dlpack(source)
    assert not made


def test_an_interface_is_kept_alive_and_given_back():
    memory = Memory(2)
    x = ti.from_dlpack(InterfaceProducer(memory))
    gc.collect()
    assert not memory.is_freed
    del x
    ti.sync()
    gc.collect()
    assert memory.is_freed


def test_an_interface_of_another_gpu():
    source = InterfaceProducer(Memory(device=1))
    with pytest.raises(BufferError, match="device 1.*device 0"):
        ti.from_dlpack(source)


def test_taichi_s_own_interface_comes_back():
    nd = ndarray(3)

    class Wrapper:
        __cuda_array_interface__ = nd.__cuda_array_interface__
        owner = nd

    with sim.recording() as made:
        x = ti.from_dlpack(Wrapper())
    assert address_of(x) == address_of(nd)
    assert_no_copy(made)


# --- work that is pending -------------------------------------------------------------------------


def dlpack_source(memory, side):
    return Producer(memory, writer=side)


def interface_source(memory, side):
    return InterfaceProducer(memory, stream=side.handle)


SOURCES = pytest.mark.parametrize("source", [dlpack_source, interface_source])


@SOURCES
def test_taichi_reads_what_the_producer_wrote(source, side):
    assert outcomes_of_import(source, side) == {11}


@SOURCES
def test_without_the_driver_s_wait_it_would_not(source, side):
    sim.ignore("cuStreamWaitEvent")
    assert outcomes_of_import(source, side) == {10, 11}


def test_without_taichi_s_wait_it_would_not(side, monkeypatch):
    monkeypatch.setattr(ti_core, "cuda_wait_for_stream", lambda stream: None)
    assert outcomes_of_import(interface_source, side) == {10, 11}


def test_a_producer_that_makes_nobody_wait_races(side):
    assert outcomes_of_import(lambda memory, _: Producer(memory), side) == {10, 11}


def test_importing_again_orders_later_work(side):
    memory = Memory(0)
    producer = Producer(memory, writer=side)
    producer.keep = True
    first = ti.from_dlpack(producer)
    sim.order("late")
    side.fill(memory.pointer, COUNT, 10)
    second = ti.from_dlpack(producer)
    launch(first, 1)  # one memory, one stream: the order holds for both
    sim.drain()
    assert memory.values == [11] * COUNT
    del first, second
    ti.sync()
    memory.free()


def test_a_blocking_stream_needs_no_wait():
    side = sim.Stream()
    assert outcomes_of_import(lambda memory, _: Producer(memory), side) == {11}


def test_the_round_trip_keeps_its_order(side):
    """Taichi, then the side stream, then Taichi again, with the waits that each side asks for."""
    for seed in SEEDS:
        nd = ndarray()
        sim.order("random", seed)
        launch(nd, 1)
        view = helpers.take(nd.__dlpack__(stream=side.handle))
        side.add(view.data, COUNT, 10)

        class Result:
            __cuda_array_interface__ = {**nd.__cuda_array_interface__, "stream": side.handle}

        x = ti.from_dlpack(Result())
        launch(x, 100)
        sim.drain()
        assert values_of(nd) == [111] * COUNT
        view.delete()
        sim.order("program")


# --- copies that were asked for -------------------------------------------------------------------


def test_a_copy_is_other_memory_and_gives_the_tensor_back(side):
    producer = Producer(Memory(3), writer=side)
    x = ti.from_dlpack(producer, copy=True)
    assert address_of(x) != producer.pointer
    del x
    ti.sync()
    helpers.check_released(producer)


def test_what_is_on_the_gpu_is_copied_here(side):
    """torch orders the streams, and copies on its own one afterwards: nothing would order such a copy."""
    producer = Producer(Memory(3), writer=side)
    with sim.recording() as made:
        ti.from_dlpack(producer, copy=True)
    assert producer.asked[-1] == {"max_version": (1, 3), "stream": 1}
    waited, launched = (
        next(i for i, c in enumerate(made) if c.name == name) for name in ("cuStreamWaitEvent", "cuLaunchKernel")
    )
    assert waited < launched and made[launched].stream == sim.NULL


def test_elements_may_be_vectors_and_matrices():
    for dtype, shape in ((ti.types.vector(2, ti.i32), (COUNT // 2,)), (ti.types.matrix(2, 2, ti.i32), (COUNT // 4,))):
        producer = Producer(Memory(3), shape=(*shape, *dtype.get_shape()))
        with sim.recording() as made:
            x = ti.from_dlpack(producer, dtype=dtype)
        assert_no_copy(made)
        assert x.shape == shape and address_of(x) == producer.pointer
        view = consume(x, stream=1)
        assert view.shape == (*shape, *dtype.get_shape()) and view.data == producer.pointer
        view.delete()


def test_an_empty_array_has_the_address_null():
    nd = ti.from_dlpack(Producer(shape=(0, 3)))
    assert nd.__cuda_array_interface__["data"] == (0, False)


def test_numpy_gets_no_view():
    with pytest.raises(BufferError, match="GPU"):
        ndarray().to_numpy(copy=False)


def test_the_context_of_the_caller_stays():
    now = ctypes.c_void_p()
    producer = Producer()
    with context_of(1) as context:
        x = ti.from_dlpack(producer)
        del x
        sim.cu("cuCtxGetCurrent", ctypes.byref(now))
    assert now.value == context


def test_context_calls_are_all_that_surrounds_an_import():
    with sim.recording() as made:
        ti.from_dlpack(Producer())
    names = {call.name for call in made if call.name.startswith("cuCtx")}
    assert names <= {*CONTEXT_CALLS, "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2"}
