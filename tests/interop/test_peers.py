"""Real peers, each direction, each element type that the peer has, 0-d to 4-d, zero-size and more."""

import numpy as np
import pytest
import taichi as ti

import dl_structs as dl
import helpers
import peers
from helpers import (
    DTYPES,
    EMPTY_SHAPES,
    ON_CUDA,
    SHAPES,
    Fake,
    Wrapped,
    assert_aliases,
    assert_independent,
    element_type,
    new_ndarray,
    numbers,
    own_device,
    peek,
    set_values,
    take,
    values_of,
)

each_peer = pytest.mark.parametrize("who", peers.NAMES)
each_type = pytest.mark.parametrize("name", DTYPES)


def get(peer, who, name="f32", shape=(1,)):
    """The peer, or a skip that says what it lacks."""
    found = peer(who)
    reason = found.lacks(name, shape)
    if reason:
        pytest.skip(reason)
    return found


def to_numpy(x):
    """A peer's array as NumPy, through the peer where it can."""
    if ON_CUDA:
        return values_of(x)
    if isinstance(x, np.ndarray):
        return x
    return x.numpy() if hasattr(x, "numpy") else np.from_dlpack(x)


def known(nd, shape, name):
    """Fills an ndarray with known numbers."""
    set_values(nd, numbers(shape, name))
    return nd


class TestTheyImportOurs:
    @pytest.mark.parametrize("shape", SHAPES, ids=str)
    @each_type
    @each_peer
    def test_scalar_ndarray_aliases(self, peer, who, name, shape):
        library = get(peer, who, name, shape)
        nd = known(new_ndarray(name, shape), shape, name)
        assert_aliases(nd, library.take(nd))

    @pytest.mark.parametrize("element", [(3,), (2, 3)], ids=str)
    @each_type
    @each_peer
    def test_vector_and_matrix_ndarrays_alias(self, peer, who, name, element):
        library = get(peer, who, name)
        for shape in ((), (5,), (2, 3)):
            nd = known(new_ndarray(name, shape, element), shape + element, name)
            if len(shape + element) <= 4:
                theirs = library.take(nd)
                assert tuple(theirs.shape) == shape + element
                assert_aliases(nd, theirs)

    @pytest.mark.parametrize("shape", EMPTY_SHAPES, ids=str)
    @each_type
    @each_peer
    def test_zero_size_keeps_its_shape(self, peer, who, name, shape):
        theirs = get(peer, who, name, shape).take(new_ndarray(name, shape))
        assert tuple(theirs.shape) == shape

    @each_peer
    def test_view_outlives_our_ndarray(self, peer, who):
        library = get(peer, who)
        nd = known(ti.ndarray(ti.f32, (64,)), (64,), "f32")
        theirs = library.take(nd)
        del nd
        helpers.collect()
        others = [known(ti.ndarray(ti.f32, (64,)), (64,), "i32") for _ in range(8)]
        assert (to_numpy(theirs) == numbers((64,), "f32")).all() and len(others) == 8

    @each_peer
    def test_view_gives_the_memory_back_when_it_goes(self, peer, who):
        library = get(peer, who)
        fake = Fake(numbers((64,), "f32"))
        theirs = library.take(ti.from_dlpack(fake))
        helpers.collect()
        assert fake.open == 1
        del theirs
        helpers.collect()
        assert fake.open == 0

    @each_peer
    def test_kernel_writes_are_seen(self, peer, who):
        library = get(peer, who)
        nd = known(ti.ndarray(ti.f32, (64,)), (64,), "f32")
        theirs = library.take(nd)
        double(nd)
        ti.sync()
        assert (to_numpy(theirs) == 2 * numbers((64,), "f32")).all()

    @each_peer
    def test_an_import_of_theirs_goes_back_to_them(self, peer, who):
        library = get(peer, who)
        original = library.make(numbers((4, 4), "f32"))
        again = library.take(ti.from_dlpack(library.producer(original)))
        assert_aliases(original, again)


@ti.kernel
def double(x: ti.types.ndarray(dtype=ti.f32, ndim=1)):
    for i in x:
        x[i] *= 2


class TestWeImportTheirs:
    @pytest.mark.parametrize("shape", SHAPES, ids=str)
    @each_type
    @each_peer
    def test_scalar_import_aliases(self, peer, who, name, shape):
        library = get(peer, who, name, shape)
        theirs = library.make(numbers(shape, name))
        nd = ti.from_dlpack(library.producer(theirs))
        assert nd.dtype == helpers.ti_type(name) and nd.shape == shape
        assert (values_of(nd) == numbers(shape, name)).all()
        assert_same_place(nd, theirs)
        if not library.immutable:
            assert_aliases(nd, theirs)

    @pytest.mark.parametrize("element", [(3,), (2, 3)], ids=str)
    @each_type
    @each_peer
    def test_vector_and_matrix_imports_alias(self, peer, who, name, element):
        library = get(peer, who, name, element)
        for shape in ((), (5,), (2, 3)):
            theirs = library.make(numbers(shape + element, name))
            nd = ti.from_dlpack(library.producer(theirs), dtype=element_type(name, element))
            assert nd.shape == shape and nd.element_shape == element
            assert (values_of(nd) == numbers(shape + element, name)).all()
            assert_same_place(nd, theirs)

    @pytest.mark.parametrize("shape", EMPTY_SHAPES, ids=str)
    @each_type
    @each_peer
    def test_zero_size_keeps_its_shape(self, peer, who, name, shape):
        library = get(peer, who, name, shape)
        theirs = library.make(numbers(shape, name))
        nd = ti.from_dlpack(library.producer(theirs))
        assert nd.shape == shape and nd.dtype == helpers.ti_type(name)

    @each_type
    @each_peer
    def test_copy_is_independent(self, peer, who, name):
        library = get(peer, who, name)
        theirs = library.make(numbers((3, 4), name))
        nd = ti.from_dlpack(library.producer(theirs), copy=True)
        assert not nd.read_only and (values_of(nd) == numbers((3, 4), name)).all()
        assert_independent(nd, theirs)

    @each_peer
    def test_their_array_may_go_first(self, peer, who):
        library = get(peer, who)
        nd = ti.from_dlpack(library.producer(library.make(numbers((4096,), "f32"))))
        helpers.collect()
        others = [library.make(np.zeros(4096, np.float32)) for _ in range(8)]
        assert (values_of(nd) == numbers((4096,), "f32")).all() and len(others) == 8

    @each_peer
    def test_kernels_run_on_it(self, peer, who):
        library = get(peer, who)
        theirs = library.make(numbers((64,), "f32"))
        nd = ti.from_dlpack(library.producer(theirs))
        double(nd)
        assert (values_of(nd) == 2 * numbers((64,), "f32")).all()
        # A library whose arrays never change may have computed with the old values.
        if not library.immutable:
            assert (to_numpy(theirs) == 2 * numbers((64,), "f32")).all()


def assert_same_place(a, b):
    """Pointer, shape and strides are one."""
    here, there = helpers.Place(a), helpers.Place(b)
    assert (here.pointer, here.shape, here.relevant_strides()) == (there.pointer, there.shape, there.relevant_strides())


class TestBothCapsules:
    """What each consumer does with the kind it gets."""

    @pytest.mark.parametrize("asked", [{}, {"max_version": (1, 0)}], ids=["legacy", "versioned"])
    @each_type
    def test_torch_takes_both_as_bare_capsules(self, torch, name, asked):
        nd = known(new_ndarray(name, (3, 4)), (3, 4), name)
        assert_aliases(nd, torch.from_dlpack(Wrapped(nd.__dlpack__(**asked))))
        assert_aliases(nd, torch.utils.dlpack.from_dlpack(nd.__dlpack__(**asked)))

    @pytest.mark.cpu_only("NumPy has host memory only")
    @pytest.mark.parametrize("asked, writable", [({}, False), ({"max_version": (1, 0)}, True)])
    @helpers.needs_numpy_2_1
    def test_numpy_takes_both(self, asked, writable):
        nd = known(ti.ndarray(ti.f32, (3, 4)), (3, 4), "f32")
        view = np.from_dlpack(Wrapped(nd.__dlpack__(**asked)))
        assert view.flags.writeable is writable
        assert_aliases(nd, view)

    @pytest.mark.parametrize("who", ["jax", "warp", "tvm_ffi"])
    def test_who_asks_for_nothing_gets_a_legacy_capsule(self, peer, who):
        library = get(peer, who)
        names = []

        class Spy:
            def __init__(self, nd):
                self.nd = nd

            def __dlpack_device__(self):
                return self.nd.__dlpack_device__()

            def __dlpack__(self, **asked):
                capsule = self.nd.__dlpack__(**asked)
                names.append(dl.capsule_name(capsule))
                return capsule

        library.take(Spy(ti.ndarray(ti.f32, (64,))))
        assert names == [dl.LEGACY]

    @pytest.mark.parametrize("asked", [{}, {"max_version": (1, 0)}], ids=["legacy", "versioned"])
    def test_we_take_both_of_torch(self, torch, asked):
        theirs = torch.arange(4, dtype=torch.float32, device="cuda" if ON_CUDA else "cpu")
        assert_aliases(ti.from_dlpack(theirs.__dlpack__(**asked)), theirs)
        assert_aliases(ti.from_dlpack(Wrapped(theirs.__dlpack__(**asked))), theirs)

    @pytest.mark.cpu_only("NumPy has host memory only")
    @pytest.mark.parametrize("asked", [{}, {"max_version": (1, 0)}], ids=["legacy", "versioned"])
    @helpers.needs_numpy_2_1
    def test_we_take_both_of_numpy(self, asked):
        theirs = numbers((4,), "f32")
        assert_aliases(ti.from_dlpack(theirs.__dlpack__(**asked)), theirs)

    @pytest.mark.parametrize("asked", [{}, {"max_version": (1, 0)}], ids=["legacy", "versioned"])
    def test_we_take_both_of_our_own(self, asked):
        nd = known(ti.ndarray(ti.f32, (3, 4)), (3, 4), "f32")
        assert_aliases(nd, ti.from_dlpack(nd.__dlpack__(**asked)))
        assert_aliases(nd, ti.from_dlpack(nd))


STRIDED = {
    "transposed": lambda a: a.T,
    "columns": lambda a: a[:, :2],
    "every other row": lambda a: a[::2],
    "broadcast": None,
}


class TestStrided:
    @pytest.mark.parametrize("case", ["transposed", "columns", "every other row"])
    def test_torch_views_are_refused_and_copied(self, torch, case):
        theirs = STRIDED[case](torch.arange(16.0, device="cuda" if ON_CUDA else "cpu").reshape(4, 4))
        with pytest.raises(BufferError, match="strides"):
            ti.from_dlpack(theirs)
        assert (values_of(ti.from_dlpack(theirs, copy=True)) == theirs.cpu().numpy()).all()

    def test_torch_broadcast_is_refused_and_copied(self, torch):
        theirs = torch.arange(4.0, device="cuda" if ON_CUDA else "cpu").expand(3, 4)
        with pytest.raises(BufferError, match="strides"):
            ti.from_dlpack(theirs)
        assert (values_of(ti.from_dlpack(theirs, copy=True)) == theirs.cpu().numpy()).all()

    @pytest.mark.cpu_only("NumPy has host memory only")
    @pytest.mark.parametrize("case", ["transposed", "columns", "every other row", "reversed", "broadcast"])
    def test_numpy_views_are_refused_and_copied(self, case):
        if case == "broadcast" and not helpers.NUMPY_HAS_VERSIONS:
            pytest.skip(f"a read-only array: {helpers.NO_NUMPY_VERSIONS}")
        base = numbers((4, 4), "i32")
        theirs = {"reversed": base[:, ::-1], "broadcast": np.broadcast_to(base[0], (3, 4))}.get(case)
        theirs = STRIDED[case](base) if theirs is None else theirs
        with pytest.raises(BufferError, match="strides"):
            ti.from_dlpack(theirs)
        assert (values_of(ti.from_dlpack(theirs, copy=True)) == theirs).all()

    def test_leading_rows_of_torch_alias(self, torch):
        theirs = torch.arange(16.0, device="cuda" if ON_CUDA else "cpu").reshape(4, 4)[1:3]
        assert_aliases(ti.from_dlpack(theirs), theirs)

    @pytest.mark.cpu_only("NumPy has host memory only")
    def test_leading_rows_of_numpy_alias(self):
        theirs = numbers((4, 4), "i16")[1:3]
        assert_aliases(ti.from_dlpack(theirs), theirs)

    def test_their_views_of_ours_write_to_ours(self, torch):
        nd = ti.ndarray(ti.f32, (4, 4))
        torch.from_dlpack(nd).T[1] = 5
        assert values_of(nd)[:, 1].tolist() == [5] * 4

    @pytest.mark.cpu_only("Warp's arrays here are the CPU's")
    def test_warp_views_are_refused_and_copied(self, peer):
        library = get(peer, "warp")
        theirs = library.make(numbers((4, 4), "f32"))[:, ::2]
        with pytest.raises(BufferError, match="strides"):
            ti.from_dlpack(theirs)
        assert (values_of(ti.from_dlpack(theirs, copy=True)) == theirs.numpy()).all()


@pytest.mark.cpu_only("NumPy has host memory only")
class TestReadOnly:
    @each_type
    @helpers.needs_numpy_2_1
    def test_read_only_numpy_stays_read_only_on_the_way_back(self, name):
        theirs = numbers((4,), name)
        theirs.flags.writeable = False
        nd = ti.from_dlpack(theirs)
        assert nd.read_only
        back = np.from_dlpack(nd)
        assert not back.flags.writeable and (back == theirs).all()
        assert_same_place(nd, theirs)

    # tvm-ffi is told, by the flag of the managed tensor that it takes.
    @pytest.mark.parametrize("who", ["jax", "warp"])
    def test_who_knows_no_read_only_gets_a_refusal(self, peer, who):
        library = get(peer, who)
        nd = ti.from_dlpack(Fake(numbers((64,), "f32"), flags=dl.FLAG_READ_ONLY))
        with pytest.raises(BufferError, match="read-only"):
            library.take(nd)

    def test_jax_arrays_are_not_written_through_a_copy(self, peer):
        library = get(peer, "jax")
        theirs = library.make(numbers((64,), "f32"))
        nd = ti.from_dlpack(theirs, copy=True)
        nd.fill(9)
        assert (np.asarray(theirs) == numbers((64,), "f32")).all()


class TestBool:
    @each_peer
    def test_both_ways_as_bool_of_eight_bits(self, peer, who):
        library = get(peer, who, "u1")
        nd = known(ti.ndarray(ti.u1, (5,)), (5,), "u1")
        theirs = library.take(nd)
        if who != "numpy" or helpers.NUMPY_HAS_VERSIONS:  # else it is read-only
            assert peek(theirs.__dlpack__()).dtype == (dl.BOOL, 8, 1)
        back = ti.from_dlpack(library.producer(library.make(numbers((5,), "u1"))))
        assert back.dtype == ti.u1 and peek(back.__dlpack__()).dtype == (dl.BOOL, 8, 1)
        assert [bool(back[i]) for i in range(5)] == numbers((5,), "u1").tolist()


class TestTheirOwnTypes:
    """Element types that a peer has and Taichi has not."""

    @pytest.mark.parametrize("dtype", ["bfloat16", "complex64", "complex128", "float8_e4m3fn"])
    def test_torchs_are_refused(self, torch, dtype):
        theirs = torch.zeros(3, dtype=getattr(torch, dtype), device="cuda" if ON_CUDA else "cpu")
        with pytest.raises(BufferError, match="float64|f64"):
            ti.from_dlpack(theirs)

    @pytest.mark.cpu_only("NumPy has host memory only")
    @pytest.mark.parametrize("dtype", ["complex64", "complex128"])
    def test_numpys_are_refused(self, dtype):
        with pytest.raises(BufferError, match="float64|f64"):
            ti.from_dlpack(np.zeros(3, dtype))

    @pytest.mark.cpu_only("NumPy has host memory only")
    def test_numpys_own_refusal_of_long_double_passes(self):
        with pytest.raises(BufferError, match="longdouble"):
            ti.from_dlpack(np.zeros(3, np.longdouble))

    @pytest.mark.parametrize("dtype", ["bfloat16", "complex64"])
    def test_jaxs_are_refused(self, peer, dtype):
        library = get(peer, "jax")
        with pytest.raises(BufferError, match="float64|f64"):
            ti.from_dlpack(library.module.numpy.zeros(3, dtype=dtype))

    def test_warps_vectors_are_trailing_dimensions(self, peer):
        wp = get(peer, "warp").module
        theirs = wp.zeros(5, dtype=wp.vec3, device="cuda:0" if ON_CUDA else "cpu")
        nd = ti.from_dlpack(theirs, dtype=ti.math.vec3)
        assert nd.shape == (5,) and nd.element_shape == (3,)
        nd.fill(2)
        ti.sync()
        assert (theirs.numpy() == 2).all()

    def test_our_vectors_are_warps(self, peer):
        wp = get(peer, "warp").module
        nd = known(ti.Vector.ndarray(3, ti.f32, (5,)), (5, 3), "f32")
        theirs = wp.from_dlpack(nd, dtype=wp.vec3)
        assert theirs.shape == (5,) and (theirs.numpy() == numbers((5, 3), "f32")).all()

    @pytest.mark.cpu_only("NumPy has host memory only")
    def test_numpys_foreign_byte_order_is_refused(self):
        with pytest.raises((BufferError, TypeError)):
            ti.from_dlpack(np.zeros(3, ">f4"))


class TestTorchExtras:
    def test_autograd_graph_is_refused_and_detach_is_the_way(self, torch):
        x = torch.ones(4, requires_grad=True, device="cuda" if ON_CUDA else "cpu")
        with pytest.raises(BufferError):
            ti.from_dlpack(x * 2)
        assert_aliases(ti.from_dlpack(x.detach()), x.detach())

    @pytest.mark.cpu_only("torch asks for the CPU here")
    def test_torch_may_name_the_device_and_copy(self, torch):
        nd = known(ti.ndarray(ti.f32, (4,)), (4,), "f32")
        assert_aliases(nd, torch.from_dlpack(nd, device="cpu"))
        assert_aliases(nd, torch.from_dlpack(nd, copy=False))
        assert_independent(nd, torch.from_dlpack(nd, copy=True))

    @pytest.mark.cpu_only("NumPy has host memory only")
    @helpers.needs_numpy_2_1
    def test_numpy_may_name_the_device_and_copy(self):
        nd = known(ti.ndarray(ti.f32, (4,)), (4,), "f32")
        assert_aliases(nd, np.from_dlpack(nd, device="cpu"))
        assert_aliases(nd, np.from_dlpack(nd, copy=False))
        assert_independent(nd, np.from_dlpack(nd, copy=True))

    def test_resizing_is_torchs_own_business(self, torch):
        view = torch.from_dlpack(ti.ndarray(ti.f32, (4,)))
        assert view.untyped_storage().nbytes() == 16 and view.data_ptr() % 64 == 0

    def test_taken_capsules_can_be_deleted_late(self, torch):
        nd = known(ti.ndarray(ti.f32, (4,)), (4,), "f32")
        held = take(nd.__dlpack__())
        view = torch.from_dlpack(nd)
        del nd
        helpers.collect()
        held.delete()
        assert view.tolist() == [1, 2, 3, 4] and own_device() == tuple(map(int, view.__dlpack_device__()))
