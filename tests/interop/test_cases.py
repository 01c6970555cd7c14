"""The cases of the field that concern ndarrays; each name carries the number of its case.

Cases of fields (3, 24, 31, 33, 34), of CUDA streams (19, 20) and of kernel arguments (25) have no test here.
"""

import time

import numpy as np
import pytest
import taichi as ti

import dl_structs as dl
import helpers
from helpers import (
    ON_CUDA,
    Fake,
    Wrapped,
    assert_aliases,
    assert_quiet_exit,
    growth,
    numbers,
    own_device,
    peek,
    run_python,
    set_values,
    take,
    values_of,
)

# On CUDA a round may take a call of the driver.
ROUNDS = 50_000 if ON_CUDA else 100_000
DEVICE = "cuda" if ON_CUDA else "cpu"
HOST = pytest.mark.cpu_only("NumPy has host memory only")


def known(shape=(4,), name="f32"):
    nd = helpers.new_ndarray(name, shape)
    set_values(nd, numbers(shape, name))
    return nd


@ti.kernel
def add_one(x: ti.types.ndarray(dtype=ti.f32, ndim=1)):
    for i in x:
        x[i] += 1


@HOST
def test_case_01_reversed_view_is_refused_and_the_process_lives():
    base = numbers((3, 4), "f32")
    with pytest.raises(BufferError, match="-1"):
        ti.from_dlpack(base[:, ::-1])
    assert (values_of(ti.from_dlpack(base[:, ::-1], copy=True)) == base[:, ::-1]).all()


@pytest.mark.parametrize("shape", [(), (3,)], ids=str)
@pytest.mark.parametrize("kind", ["legacy", "versioned"])
def test_case_02_byte_offset_is_added(kind, shape):
    fake = Fake(numbers((8,), "f32"), shape=shape, byte_offset=4, capsule=kind)
    nd = ti.from_dlpack(fake)
    assert peek(nd.__dlpack__()).data == fake.memory.pointer + 4
    assert values_of(nd).ravel()[0] == 2


@pytest.mark.parametrize("shape, strides", [((1, 77), (77, 1)), ((77, 1), (1, 1))])
def test_case_04_strides_are_true(shape, strides):
    assert peek(ti.ndarray(ti.f32, shape).__dlpack__()).strides == strides


def test_case_05_null_strides_are_compact():
    fake = Fake(numbers((3, 4), "f32"), strides=None)
    assert_aliases(ti.from_dlpack(fake), fake)


class TestCase06FailingExports:
    def read_only(self):
        return ti.from_dlpack(Fake(numbers((4,), "f32"), flags=dl.FLAG_READ_ONLY))

    @pytest.mark.parametrize(
        "asked, error",
        [({"dl_device": (99, 0)}, BufferError), ({"copy": 1}, TypeError), ({"max_version": 1}, TypeError)],
        ids=["device", "copy", "version"],
    )
    def test_case_06_grow_nothing(self, asked, error):
        nd = known()

        def fail():
            try:
                nd.__dlpack__(**asked)
            except error:
                return
            pytest.fail("not refused")

        assert growth(fail, ROUNDS) < helpers.FLAT

    def test_case_06_of_what_cannot_be_said_grow_nothing(self):
        nd = self.read_only()

        def fail():
            try:
                nd.__dlpack__()
            except BufferError:
                return
            pytest.fail("not refused")

        assert growth(fail, ROUNDS) < helpers.FLAT


@pytest.mark.parametrize("asked", [{}, {"max_version": (1, 0)}], ids=["legacy", "versioned"])
def test_case_07_unconsumed_capsules_grow_nothing(asked):
    fake = Fake(numbers((4,), "f32"))
    nd = ti.from_dlpack(fake)
    assert growth(lambda: nd.__dlpack__(**asked), ROUNDS) < helpers.FLAT
    del nd
    helpers.collect()
    assert (fake.made, fake.deleted) == (1, 1), "a capsule still holds the memory"


@pytest.mark.parametrize("asked", [{}, {"max_version": (1, 0)}], ids=["legacy", "versioned"])
def test_case_07_unconsumed_capsules_of_dropped_arrays_grow_nothing(asked):
    def step():
        ti.ndarray(ti.f32, (8,)).__dlpack__(**asked)

    assert growth(step, ROUNDS // 10) < helpers.FLAT


class TestCase08CapsuleConsumedTwice:
    @pytest.mark.parametrize("versioned", [False, True])
    def test_case_08_by_us(self, versioned):
        capsule = Fake().make_capsule(versioned)
        first = ti.from_dlpack(capsule)
        with pytest.raises((BufferError, ValueError), match="(?i)consumed|used"):
            ti.from_dlpack(capsule)
        assert first.shape == (1,)

    @pytest.mark.parametrize("asked", [{}, {"max_version": (1, 0)}])
    def test_case_08_by_torch_then_us(self, torch, asked):
        capsule = known().__dlpack__(**asked)
        view = torch.utils.dlpack.from_dlpack(capsule)
        with pytest.raises((BufferError, ValueError), match="(?i)consumed|used"):
            ti.from_dlpack(capsule)
        assert view.tolist() == [1, 2, 3, 4]

    def test_case_08_by_us_then_torch(self, torch):
        capsule = known().__dlpack__()
        nd = ti.from_dlpack(capsule)
        with pytest.raises(Exception, match="(?i)consumed|once|used|dltensor"):
            torch.utils.dlpack.from_dlpack(capsule)
        assert values_of(nd).tolist() == [1, 2, 3, 4]


def test_case_09_import_loop_drop_and_loop_again():
    fake = Fake(np.zeros(64, np.float32))
    for _ in range(2):
        nd = ti.from_dlpack(fake)
        for _ in range(50):
            add_one(nd)
        del nd
        ti.sync()
        helpers.collect()
        assert fake.open == 0
    assert (values_of(ti.from_dlpack(fake)) == 100).all()


@pytest.mark.parametrize("asked", [{}, {"max_version": (1, 0)}], ids=["legacy", "versioned"])
def test_case_10_last_reference_dropped_on_a_foreign_thread(asked):
    fake = Fake(numbers((4,), "f32"))
    view = take(ti.from_dlpack(fake).__dlpack__(**asked))
    helpers.collect()
    view.delete_on_foreign_thread()
    helpers.collect()
    assert (fake.made, fake.deleted) == (1, 1)


def test_case_11_source_goes_out_of_scope(torch):
    def make():
        return ti.from_dlpack(torch.arange(4096, dtype=torch.float32, device=DEVICE))

    nd = make()
    helpers.collect()
    others = [torch.zeros(4096, device=DEVICE) for _ in range(16)]
    assert (values_of(nd) == np.arange(4096)).all() and len(others) == 16


@HOST
@helpers.needs_numpy_2_1
def test_case_12_read_only_numpy():
    array = numbers((4,), "f32")
    array.flags.writeable = False
    nd = ti.from_dlpack(array)
    assert nd.read_only
    with pytest.raises(ValueError, match="read-only"):
        nd[0] = 5
    assert array.tolist() == [1, 2, 3, 4]
    copied = ti.from_dlpack(array, copy=True)
    copied[0] = 5
    assert array[0] == 1 and copied[0] == 5


@HOST
@helpers.needs_numpy_2_1
def test_case_13_numpy_may_write():
    nd = ti.ndarray(ti.f32, (4,))
    np.from_dlpack(nd)[0] = 1
    assert nd[0] == 1


@pytest.mark.parametrize("who", ["jax", "warp", "tvm_ffi"])
def test_case_14_consumers_of_legacy_capsules(peer, who):
    library = peer(who)
    nd = known((64,))
    assert_aliases(nd, library.take(nd))
    theirs = library.make(numbers((64,), "f32"))
    assert (values_of(ti.from_dlpack(theirs)) == numbers((64,), "f32")).all()


@HOST
@pytest.mark.parametrize("view", [lambda a: a.T, lambda a: a[:, :1]], ids=["transposed", "sliced"])
def test_case_15_views_are_refused_or_copied_never_wrong(torch, view):
    for theirs in (view(np.arange(4).reshape(2, 2)), view(torch.arange(4).reshape(2, 2))):
        with pytest.raises(BufferError, match="strides"):
            ti.from_dlpack(theirs)
        assert values_of(ti.from_dlpack(theirs, copy=True)).tolist() == theirs.tolist()


def test_case_16_bool_both_ways(torch):
    nd = known((5,), "u1")
    assert peek(nd.__dlpack__()).dtype == (dl.BOOL, 8, 1)
    theirs = torch.from_dlpack(nd)
    assert theirs.dtype == torch.bool
    assert ti.from_dlpack(theirs).dtype == ti.u1


@pytest.mark.cpu_only("on CUDA that is the own device")
@pytest.mark.parametrize("copy", [False, None, True])
def test_case_17_cuda_from_the_cpu_is_refused(copy):
    with pytest.raises(BufferError, match="2, 0"):
        known().__dlpack__(dl_device=(2, 0), copy=copy)


@pytest.mark.parametrize("device", [dl.CUDA_HOST, dl.CUDA_MANAGED])
def test_case_18_pinned_and_managed_memory(device):
    if ON_CUDA and device == dl.CUDA_HOST:
        pytest.skip("backend cuda: pinned host memory is the CPU's")
    fake = Fake(numbers((4,), "f32"), device=(device, 0))
    assert_aliases(ti.from_dlpack(fake), fake)


def test_case_21_vector_ndarrays_in_a_loop_grow_nothing():
    def step():
        ti.Vector.ndarray(3, ti.f32, (1000, 1000))

    assert growth(step, 60) < 24 << 20  # of 720 MB; two arrays' worth is left for the allocator


def test_case_21_matrix_ndarrays_in_a_loop_grow_nothing():
    def step():
        ti.Matrix.ndarray(2, 2, ti.f32, (1000, 100))

    assert growth(step, 100) < 4 << 20  # of 160 MB


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("fresh_runtime")
def test_case_22_an_old_ndarray_frees_nothing_of_the_new_program():
    for _ in range(5):
        old = [ti.ndarray(ti.f32, (256,)) for _ in range(16)] + [ti.Vector.ndarray(3, ti.f32, (256,)) for _ in range(4)]
        helpers.init()
        new = [known((256,)) for _ in range(32)]
        del old
        helpers.collect()
        more = [ti.ndarray(ti.f32, (256,)) for _ in range(32)]
        for nd in more:
            nd.fill(-1)
        assert all((values_of(nd) == numbers((256,), "f32")).all() for nd in new)


class TestCase23And35Reset:
    def test_case_23_view_read_after_reset(self, torch):  # pylint: disable=unused-argument
        code = """
            import torch
            nd = ti.ndarray(ti.f32, (4096,))
            nd.fill(3)
            view = torch.from_dlpack(nd)
            ti.reset()
            assert view[:4].tolist() == [3] * 4
            helpers.init()
            assert view.sum().item() == 3 * 4096
            print("STILL THERE")
        """
        assert_quiet_exit(run_python(code), "STILL THERE")

    def test_case_23_capsule_consumed_after_reset(self, torch):  # pylint: disable=unused-argument
        code = """
            import torch
            nd = ti.ndarray(ti.f32, (4096,))
            nd.fill(3)
            capsule = nd.__dlpack__()
            ti.reset()
            view = torch.utils.dlpack.from_dlpack(capsule)
            assert view[:4].tolist() == [3] * 4
            print("STILL THERE")
        """
        assert_quiet_exit(run_python(code), "STILL THERE")

    @pytest.mark.cpu_only("memory of the host is measured; tests/cuda measures the device's")
    def test_case_23_reset_gives_back_what_nobody_holds(self):
        code = """
            import gc
            def step():
                held = helpers.take(ti.ndarray(ti.f32, (1 << 18,)).__dlpack__())
                free = ti.ndarray(ti.f32, (1 << 20,))
                free.fill(1)
                ti.reset()
                helpers.init()
                held.delete()
            grown = helpers.growth(step, 20)
            # Each round makes 5 MiB; a program itself leaves some hundred kilobytes behind.
            assert grown < 40 << 20, grown
            print("GIVEN BACK")
        """
        assert_quiet_exit(run_python(code), "GIVEN BACK")

    def test_case_35_views_from_before_do_not_touch_new_arrays(self, torch):  # pylint: disable=unused-argument
        code = """
            import torch
            views = [torch.from_dlpack(ti.ndarray(ti.f32, (4096,))) for _ in range(8)]
            helpers.init()
            new = [ti.ndarray(ti.f32, (4096,)) for _ in range(16)]
            for nd in new:
                nd.fill(1)
            for view in views:
                view.fill_(7)
            assert all((nd.to_numpy() == 1).all() for nd in new)
            for nd in new:
                nd.fill(2)
            assert all((view == 7).all() for view in views)
            print("UNTOUCHED")
        """
        assert_quiet_exit(run_python(code), "UNTOUCHED")


def test_case_26_a_launch_costs_what_a_native_one_costs():
    native = ti.ndarray(ti.f32, (8,))
    imported = ti.from_dlpack(Fake(np.zeros(8, np.float32)))

    def batch(nd):
        start = time.perf_counter()
        for _ in range(200):
            add_one(nd)
        return time.perf_counter() - start

    batch(native)
    batch(imported)
    times = [(batch(native), batch(imported)) for _ in range(15)]
    own, theirs = (min(column) for column in zip(*times))
    assert (
        theirs < 1.4 * own
    ), f"{theirs / 200 * 1e6:.1f} us with an import, {own / 200 * 1e6:.1f} us with a native array"


def test_case_27_own_arrays_in_a_loop_grow_nothing():
    assert growth(lambda: ti.ndarray(ti.f32, (8,)), 30_000) < helpers.FLAT


def test_case_27_large_own_arrays_in_a_loop_grow_nothing():
    assert growth(lambda: ti.ndarray(ti.f32, (1 << 20,)), 100) < 16 << 20  # of 400 MiB


@HOST
@pytest.mark.parametrize("consumer", ["np.from_dlpack(nd)", "np.asarray(nd)", "nd.__dlpack__()", "ti.from_dlpack(nd)"])
def test_case_28_live_exports_at_exit(consumer):
    code = f"""
        class Holder:
            nd = ti.ndarray(ti.f32, 4)
            view = {consumer}
        nd = ti.ndarray(ti.f32, 4)
        view = {consumer}
        print("END")
    """
    assert_quiet_exit(run_python(code), "END")


def test_case_29_requires_grad_is_torchs_error_and_leaks_nothing(torch):
    x = torch.zeros(3, requires_grad=True, device=DEVICE)

    def refused():
        try:
            ti.from_dlpack(x)
        except BufferError as error:
            assert "grad" in str(error)
            return
        pytest.fail("not refused")

    assert growth(refused, 5000) < helpers.FLAT


def test_case_30_a_raising_producer_keeps_its_exception_and_leaks_nothing():
    error = LookupError("mine")
    fake = Fake(raises=error)
    with pytest.raises(LookupError) as caught:
        ti.from_dlpack(fake)
    assert caught.value is error

    class Raising:
        def __dlpack_device__(self):
            return own_device()

        def __dlpack__(self, **_asked):
            raise LookupError("mine")

    def refused():
        try:
            ti.from_dlpack(Raising())
        except LookupError:
            return
        pytest.fail("nothing was raised")

    assert growth(refused, 20_000) < helpers.FLAT


class TestCase32Cycle:
    def test_case_32_view_cached_on_its_own_ndarray_is_collected(self, torch):
        def step():
            nd = ti.ndarray(ti.f32, (1 << 16,))
            nd.view = torch.from_dlpack(nd)

        assert growth(step, 300) < 8 << 20  # of 75 MiB

    def test_case_32_of_an_import_is_collected(self, torch):
        fake = Fake(numbers((64,), "f32"))
        for _ in range(50):
            nd = ti.from_dlpack(fake)
            nd.view = torch.from_dlpack(nd)
            del nd
        helpers.collect()
        assert fake.made == fake.deleted == 50

    @pytest.mark.usefixtures("fresh_runtime")
    @pytest.mark.parametrize("element", [(), (3,), (2, 3)], ids=str)
    def test_case_32_a_cycle_through_python_is_collected(self, element):
        # With no other ndarray about: the collector clears weak references that die with the cycle.
        fake = Fake(numbers((4,) + element, "f32"))
        nd = ti.from_dlpack(fake, dtype=helpers.element_type("f32", element) if element else None)
        nd.me = nd
        del nd
        helpers.collect()
        assert (fake.made, fake.deleted) == (1, 1)

    @pytest.mark.usefixtures("fresh_runtime")
    def test_case_32_own_arrays_in_a_python_cycle_are_freed(self):
        def step():
            nd = ti.ndarray(ti.f32, (1 << 20,))
            nd.me = nd
            del nd
            helpers.collect()

        assert growth(step, 20) < 16 << 20  # of 80 MiB

    def test_case_32_wrapped_capsule_on_its_own_ndarray_is_collected(self):
        fake = Fake(numbers((64,), "f32"))
        nd = ti.from_dlpack(fake)
        nd.keep = Wrapped(nd.__dlpack__())
        del nd
        helpers.collect()
        assert fake.open == 0
