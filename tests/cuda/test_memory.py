"""The memory of the device stays flat. Runs alone: what is measured is the whole device."""

import gc

import pytest
import taichi as ti

import gpu as gpus
import helpers

ROUNDS = 10_000
MIB = 1 << 20
# Arrays of 1 MiB: one in a hundred that is not given back would be seen.
COUNT = MIB // 4
FLAT = 64 * MIB
# Taichi lets the driver's pool keep up to 128 MiB of freed memory.
POOL = 128 * MIB
NEEDS_CORE = pytest.mark.needs_core("on CUDA views end with the program")


def growth(gpu, step, rounds=ROUNDS):
    """Bytes of the device that `rounds` calls of `step` take and do not give back, after a warm-up."""
    for _ in range(max(rounds // 20, 3)):
        step()
    before = gpu.free_memory()
    for _ in range(rounds):
        step()
    return before - gpu.free_memory()


@pytest.fixture(name="flat")
def flat_fixture(gpu, record_property):
    """Fails when a step takes memory and keeps it."""

    def check(step, rounds=ROUNDS, limit=FLAT):
        grown = growth(gpu, step, rounds)
        record_property(f"bytes left by {rounds} rounds", grown)
        assert grown < limit

    return check


def test_exports_grow_nothing(gpu, flat):
    nd = gpus.array(1, COUNT)
    flat(lambda: gpu.torch.from_dlpack(nd))


def test_imports_grow_nothing(gpu, flat):
    theirs = gpu.tensor(1, COUNT)
    flat(lambda: ti.from_dlpack(theirs))


def test_imports_in_kernels_grow_nothing(gpu, flat):
    theirs = gpu.tensor(1, COUNT)
    flat(lambda: gpus.put(ti.from_dlpack(theirs), 2))


def test_exports_to_side_streams_grow_nothing(gpu, flat):
    nd, stream = gpus.array(1, COUNT), gpu.side_stream()

    def step():
        with gpu.torch.cuda.stream(stream):
            gpu.torch.from_dlpack(nd).add_(1)

    flat(step)


def test_short_ndarrays_with_views_that_outlive_them_grow_nothing(gpu, flat):
    def step():
        view = gpu.torch.from_dlpack(ti.ndarray(ti.i32, COUNT))
        view.add_(1)

    flat(step)


def test_short_tensors_with_imports_that_outlive_them_grow_nothing(gpu, flat):
    def step():
        gpus.put(ti.from_dlpack(gpu.torch.empty(COUNT, dtype=gpu.torch.int32, device="cuda")), 1)

    flat(step)


def test_short_ndarrays_whose_views_die_on_side_streams_grow_nothing(gpu, flat):
    stream = gpu.side_stream()

    def step():
        with gpu.torch.cuda.stream(stream):
            gpu.torch.from_dlpack(ti.ndarray(ti.i32, COUNT)).add_(1)

    flat(step, ROUNDS // 5)


def test_copies_on_the_host_grow_nothing(gpu, flat):  # pylint: disable=W0613
    nd = gpus.array(1, COUNT)
    flat(lambda: helpers.peek(nd.__dlpack__(dl_device=(1, 0))), ROUNDS // 10)


def test_packed_copies_grow_nothing(gpu, flat):
    theirs = gpu.tensor(1, COUNT).reshape(512, -1).T
    flat(lambda: ti.from_dlpack(theirs, copy=True), ROUNDS // 10)


@pytest.mark.parametrize("versioned", [{}, {"max_version": (1, 0)}], ids=["legacy", "versioned"])
def test_capsules_that_nobody_takes_grow_nothing(gpu, flat, versioned):  # pylint: disable=W0613
    flat(lambda: ti.ndarray(ti.i32, COUNT).__dlpack__(**versioned))


@NEEDS_CORE
@pytest.mark.usefixtures("fresh_runtime")
def test_reset_gives_back_what_nobody_holds_and_no_more(gpu, record_property):
    count = 256 * MIB // 4
    start = gpu.free_memory()
    held, free = gpus.array(3, count), gpus.array(4, 4 * count)
    view = gpu.torch.from_dlpack(held)
    full = start - gpu.free_memory()
    ti.reset()
    gc.collect()
    helpers.init()
    after_reset = start - gpu.free_memory()
    record_property("MiB taken: with both, after the reset", [full // MIB, after_reset // MIB])
    assert full > 1100 * MIB
    assert 200 * MIB < after_reset < 256 * MIB + POOL + FLAT
    assert view.unique().tolist() == [3] and free is not None
    del view
    assert start - gpu.free_memory() < POOL + FLAT


@NEEDS_CORE
@pytest.mark.usefixtures("fresh_runtime")
def test_resets_with_views_grow_nothing(gpu):
    def step():
        view = gpu.torch.from_dlpack(gpus.array(1, 128 * MIB // 4))
        helpers.init()
        assert view[0].item() == 1

    # Five rounds of 128 MiB. A program itself may leave a few MiB of code on the device.
    assert growth(gpu, step, 5) < 256 * MIB
