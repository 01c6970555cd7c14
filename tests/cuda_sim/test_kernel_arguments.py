"""Other libraries' arrays as arguments of kernels: in place, in order, and given back after the launch's work."""

import gc

import pytest
import taichi as ti
from taichi.lang import _dlpack

import helpers
import sim
from shared_arrays import (
    COUNT,
    InterfaceProducer,
    Memory,
    Producer,
    assert_no_wait,
    driver_calls,
    ndarray,
    work,
)

pytestmark = [
    pytest.mark.usefixtures("cuda"),
    pytest.mark.skipif(
        not hasattr(_dlpack, "import_arguments"), reason="this wheel's kernels take no arrays of other libraries"
    ),
]

SEEDS = range(30)


def run_on(source, pointer, value=1):
    """Has Taichi launch a kernel on another library's array."""
    sim.clear_emulations()
    sim.emulate("work", "add", pointer, COUNT, value)
    work(source)


def test_an_argument_is_used_in_place():
    work(ndarray())  # compiles
    producer = Producer(Memory(5))
    producer.keep = True
    with sim.recording() as made:
        run_on(producer, producer.pointer)
    assert producer.memory.values == [6] * COUNT
    assert producer.asked == [{"max_version": (1, 3), "stream": 1}]
    assert [call.name for call in made if call.name.startswith("cuMemcpy")] == ["cuMemcpyHtoDAsync_v2"]
    assert_no_wait(made)


def test_the_memory_is_held_until_the_work_is_done():
    producer = Producer()
    sim.order("late")
    run_on(producer, producer.pointer)
    gc.collect()
    assert producer.deleted == 0
    ti.sync()
    gc.collect()
    ti.sync()
    assert producer.deleted == 1


@pytest.mark.parametrize("kind", ["dlpack", "interface"])
def test_the_kernel_comes_after_the_producer_s_work(kind):
    for seed in SEEDS:
        side, memory = sim.Stream(non_blocking=True), Memory()
        if kind == "dlpack":
            source = Producer(memory, writer=side)
            source.keep = True
        else:
            source = InterfaceProducer(memory, stream=side.handle)
        sim.order("random", seed)
        side.fill(memory.pointer, COUNT, 10)
        run_on(source, memory.pointer, 1)
        sim.drain()
        assert memory.values == [11] * COUNT
        sim.order("program")
        del source
        gc.collect()
        ti.sync()


def test_an_interface_is_waited_for_by_one_event_and_one_wait():
    side = sim.Stream(non_blocking=True)
    source = InterfaceProducer(stream=side.handle)
    run_on(source, source.memory.pointer)
    with sim.recording() as made:
        run_on(source, source.memory.pointer)
    ordering = [call for call in made if call.name in ("cuEventRecord", "cuStreamWaitEvent")][:2]
    assert [(call.name, call.stream) for call in ordering] == [
        ("cuEventRecord", side.handle),
        ("cuStreamWaitEvent", sim.NULL),
    ]


def test_another_gpu_s_memory_is_refused_and_nothing_is_launched():
    producer = Producer(Memory(device=1))
    with sim.recording() as made:
        with pytest.raises(BufferError, match="device 1.*device 0"):
            work(producer)
    assert "cuLaunchKernel" not in driver_calls(made)
    helpers.check_released(producer)


def test_taichi_s_own_arrays_ask_nobody():
    nd = ndarray()
    work(nd)
    with sim.recording() as made:
        work(nd)
    assert not [call for call in made if call.name.startswith(("cuPointer", "cuEvent", "cuStreamWait"))]
