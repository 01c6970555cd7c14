"""Fields on the simulated GPU: the same calls as for an ndarray, and a tree that lives as long as its last holder."""

import ctypes
import gc

import pytest
import taichi as ti

import dl_structs as dl
import helpers
import processes
import sim
from shared_arrays import (
    CONTEXT_CALLS,
    COUNT,
    IS_FAST,
    NO_POOLS,
    assert_no_copy,
    consume,
    driver_calls,
    init,
    needs_core,
)

pytestmark = pytest.mark.usefixtures("cuda")


@ti.kernel
def field_work(x: ti.template()):
    for i in range(COUNT):
        x[i] += 1


@pytest.fixture
def tree():
    """A field of i32 in a tree of its own, which is there; destroyed at the end."""
    builder = ti.FieldsBuilder()
    field = ti.field(ti.i32)
    builder.dense(ti.i, COUNT).place(field)
    finished = builder.finalize()
    field.snode_tree = finished
    field.__dlpack__(stream=2)
    sim.clear_log()
    yield field
    if not getattr(field, "ended", False):
        finished.destroy()


def launch(field, pointer, value=1):
    """Has Taichi launch a kernel that adds to the field, which lies at this address."""
    sim.clear_emulations()
    sim.emulate("field_work", "add", pointer, COUNT, value)
    field_work(field)


@needs_core
def test_the_interface_describes_the_view():
    x, builder = ti.field(ti.i32), ti.FieldsBuilder()
    builder.dense(ti.i, COUNT).place(x)
    tree = builder.finalize()
    view = consume(x)
    with sim.recording() as made:
        interface = x.__cuda_array_interface__
    assert not driver_calls(made)
    assert interface["data"] == (view.data, False) and interface["shape"] == (COUNT,)
    assert interface["strides"] == (sim.ITEM_SIZE,) and interface["stream"] == 1
    assert not hasattr(x, "__array_interface__")
    with pytest.raises(BufferError, match="GPU"):
        x.to_numpy(copy=False)
    view.delete()
    tree.destroy()


@needs_core
def test_a_host_copy_is_finished_when_it_returns(tree):
    device = consume(tree)
    sim.order("late")
    launch(tree, device.data, 5)
    host = consume(tree, dl_device=(dl.CPU, 0))
    assert host.device == (dl.CPU, 0)
    assert sim.unpack(ctypes.string_at(host.data, COUNT * sim.ITEM_SIZE)) == [5] * COUNT
    for view in (device, host):
        view.delete()


@needs_core
def test_an_export_makes_no_call_or_orders_one_stream(tree):
    side = sim.Stream(non_blocking=True)
    for stream in (None, 1, -1):
        with sim.recording() as made:
            tree.__dlpack__(stream=stream)
        assert not made
    for stream in (2, side.handle):
        with sim.recording() as made:
            tree.__dlpack__(stream=stream)
        assert driver_calls(made) == ["cuEventRecord", "cuStreamWaitEvent"]
        recorded, waited = [call for call in made if call.name not in CONTEXT_CALLS]
        assert (recorded.stream, waited.stream, waited.event) == (sim.NULL, stream, recorded.event)
        assert_no_copy(made)


@needs_core
def test_a_field_is_on_taichi_s_gpu(tree):
    view = helpers.peek(tree.__dlpack__(max_version=(1, 0)))
    assert view.device == tree.__dlpack_device__() == (dl.CUDA, 0)
    assert view.shape == (COUNT,) and view.strides == (1,)


@needs_core
def test_a_consumer_reads_what_taichi_wrote(tree):
    side = sim.Stream(non_blocking=True)
    pointer = helpers.peek(tree.__dlpack__()).data
    sim.order("late")
    side.order("early")
    launch(tree, pointer, 4)
    view = consume(tree, stream=side.handle)
    seen = side.snapshot(view.data, COUNT)
    sim.cu("cuStreamSynchronize", side.handle)
    assert seen.values == [4] * COUNT
    view.delete()


@needs_core
@pytest.mark.parametrize("end", [ti.reset, init], ids=["reset", "init"])
def test_a_tree_outlives_the_program(tree, end):
    view = consume(tree)
    sim.order("late")
    launch(tree, view.data, 6)
    end()
    tree.ended = True
    assert sim.values(view.data, COUNT) == [6] * COUNT
    view.delete_on_foreign_thread()
    gc.collect()
    sim.drain()
    assert not any(row["ptr"] <= view.data < row["ptr"] + row["size"] for row in sim.live_allocations())


@needs_core
def test_a_destroyed_tree_stays_for_its_consumer():
    builder = ti.FieldsBuilder()
    field = ti.field(ti.i32)
    builder.dense(ti.i, COUNT).place(field)
    tree = builder.finalize()
    view = consume(field)
    launch(field, view.data, 2)
    tree.destroy()
    assert sim.values(view.data, COUNT) == [2] * COUNT
    view.delete()


@needs_core
def test_without_pools_a_tree_outlives_the_program():
    code = """
    import shared_arrays as s
    import taichi as ti
    s.init(device_memory_GB=0.05)
    field = ti.field(ti.i32, s.COUNT)
    view = s.consume(field)
    sim.legacy_stream().fill(view.data, s.COUNT, 3)
    s.init(device_memory_GB=0.05)
    s.ndarray(1)
    assert sim.values(view.data, s.COUNT) == [3] * s.COUNT
    view.delete_on_foreign_thread()
    ti.reset()
    assert not sim.live_allocations()
    """
    processes.run_python(code, **NO_POOLS).check()


@needs_core
def test_trees_at_exit():
    code = """
    import shared_arrays as s
    import taichi as ti
    s.init()
    field = ti.field(ti.i32, s.COUNT)
    view = s.consume(field)
    """
    processes.run_python(code).check()


@pytest.mark.skipif(not IS_FAST, reason="source wheel: fields on CUDA are exported")
def test_the_fast_wheel_says_that_it_cannot():
    builder, field = ti.FieldsBuilder(), ti.field(ti.i32)
    builder.dense(ti.i, COUNT).place(field)
    tree = builder.finalize()
    with pytest.raises(BufferError, match="source wheel"):
        field.__dlpack__()
    tree.destroy()
