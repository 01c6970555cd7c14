"""Sizes: a 0 at each place of a shape, no dimensions at all, more than 4 GiB, products that no integer holds.

What lies beyond 4 GiB is memory that is mapped and never written, but for the few pages that a test touches. Each of
these tests fails when the process grows.
"""

import copy as copying
import itertools
import math
import tempfile
from operator import methodcaller

import numpy as np
import pytest
import taichi as ti
from taichi.lang import _dlpack

import helpers
from helpers import Fake, assert_aliases, dl_type, np_type, numbers, peek, ti_type, values_of

KINDS = ["legacy", "versioned"]
INT32_MAX = 2**31 - 1
HOST = pytest.mark.cpu_only("NumPy has host memory only")

# More than 2^32 elements, so that an index that wraps to int32 or to uint32 meets another element.
WIDE = (5, 2**30)
WIDE_LAST = (4, 2**30 - 1)
# A flat index of 2^31 and more is negative as int32.
WIDE_MIDDLE = (2, 7)

# What a test beyond 4 GiB may take: pages, compiled kernels.
LITTLE = 64 << 20


def counter(ndim):
    """A kernel that counts the elements of an ndarray."""

    @ti.kernel
    def count(x: ti.types.ndarray(ndim=ndim)) -> ti.i32:
        n = 0
        for _ in ti.grouped(x):
            n += 1
        return n

    return count


COUNT = {ndim: counter(ndim) for ndim in (1, 2, 3)}


@ti.kernel
def add_at(x: ti.types.ndarray(ndim=1), i: ti.i32, v: ti.u8):
    x[i] += v


@ti.kernel
def add_at_2d(x: ti.types.ndarray(ndim=2), i: ti.i32, j: ti.i32, v: ti.u8):
    x[i, j] += v


@ti.kernel
def read_at_2d(x: ti.types.ndarray(ndim=2), i: ti.i32, j: ti.i32) -> ti.i32:
    return x[i, j]


def element_pointer(nd, index):
    """The address of an element."""
    return helpers.Place(nd).address(index)


def copy_to_itself(nd):
    nd.copy_from(nd)


def read_byte(nd, index):
    return helpers.read_bytes(element_pointer(nd, index), 1)[0]


# --- a 0 somewhere --------------------------------------------------------------------------------


def shapes_with_zeros():
    """One 0 at each place of one to three dimensions, and all places 0."""
    for ndim in (1, 2, 3):
        for place in range(ndim):
            yield tuple(0 if axis == place else axis + 2 for axis in range(ndim))
        yield (0,) * ndim


ZERO_SHAPES = sorted(set(shapes_with_zeros()), key=lambda shape: (len(shape), shape))
# The extents beside a 0 may have any product.
HUGE_SHAPES = sorted(set(itertools.permutations((0, INT32_MAX, INT32_MAX, INT32_MAX))))


def assert_exports_empty(nd, shape):
    for asked in ({}, {"max_version": (1, 0)}):
        view = peek(nd.__dlpack__(**asked))
        assert view.data is None and view.shape == shape
        assert view.strides is not None and len(view.strides) == len(shape)


class TestZeroSize:
    @pytest.mark.parametrize("null", [False, True], ids=["", "null"])
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("shape", ZERO_SHAPES, ids=str)
    def test_a_zero_at_any_place_is_imported_and_exported(self, shape, kind, null):
        fake = Fake(np.zeros(shape, np.float32), capsule=kind, null=null)
        nd = ti.from_dlpack(fake)
        assert nd.shape == shape and nd.arr.nelement() == 0
        assert_exports_empty(nd, shape)
        assert ti.from_dlpack(nd).shape == shape
        del nd
        helpers.check_released(fake)

    @pytest.mark.parametrize("shape", ZERO_SHAPES, ids=str)
    def test_a_zero_at_any_place_is_an_ordinary_ndarray(self, shape):
        nd = ti.from_dlpack(Fake(np.zeros(shape, np.float32)))
        assert COUNT[len(shape)](nd) == 0
        nd.fill(1)
        nd.copy_from(ti.from_dlpack(nd))
        assert nd.to_numpy().shape == shape
        assert ti.from_dlpack(nd, copy=True).shape == shape
        assert peek(nd.__dlpack__(copy=True)).shape == shape

    @pytest.mark.parametrize("element", [(3,), (2, 3)], ids=str)
    @pytest.mark.parametrize("shape", ZERO_SHAPES, ids=str)
    def test_a_zero_at_any_place_before_elements(self, shape, element):
        dtype = helpers.element_type("f32", element)
        nd = ti.from_dlpack(Fake(np.zeros(shape + element, np.float32)), dtype=dtype)
        assert nd.shape == shape and nd.element_shape == element
        assert COUNT[len(shape)](nd) == 0
        assert_exports_empty(nd, shape + element)

    @pytest.mark.parametrize("strides", [(0, 0, 0), (-1, 7, 2**62), (2**63 - 1,) * 3], ids=str)
    @pytest.mark.parametrize("shape", [(0, 2, 3), (2, 0, 3), (2, 3, 0)], ids=str)
    def test_strides_mean_nothing(self, shape, strides):
        for copy in (None, True):
            nd = ti.from_dlpack(Fake(np.zeros(shape, np.float32), strides=strides), copy=copy)
            assert_exports_empty(nd, shape)

    @pytest.mark.parametrize("shape", HUGE_SHAPES, ids=str)
    def test_the_other_extents_may_have_any_product(self, shape):
        nd = ti.from_dlpack(Fake(np.zeros(1, np.float64), shape=shape))
        assert nd.shape == shape and nd.arr.nelement() == 0
        assert_exports_empty(nd, shape)
        assert ti.from_dlpack(nd).shape == shape

    @HOST
    @pytest.mark.parametrize("shape", ZERO_SHAPES, ids=str)
    def test_numpy_sees_the_shape(self, shape):
        nd = ti.from_dlpack(np.zeros(shape, np.int16))
        assert nd.__array_interface__["data"][0] % 16 == 0
        for view in (np.asarray(nd), np.from_dlpack(nd)):
            assert view.shape == shape and view.nbytes == 0


# --- no dimensions --------------------------------------------------------------------------------


@ti.kernel
def add_one_0d(x: ti.types.ndarray(ndim=0)):
    x[None] += 1


class TestZeroDimensions:
    @pytest.mark.parametrize("strides", ["compact", None])
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("name", ["i8", "f64", "u1"])
    def test_are_shared_both_ways(self, name, kind, strides):
        fake = Fake(numbers((), name), capsule=kind, strides=strides)
        nd = ti.from_dlpack(fake)
        assert nd.shape == () and nd.arr.nelement() == 1
        assert_aliases(nd, fake)
        for asked in ({}, {"max_version": (1, 0)}):
            view = peek(nd.__dlpack__(**asked))
            assert (view.ndim, view.shape, view.data, view.count) == (0, (), fake.pointer, 1)

    def test_a_kernel_reads_and_writes_the_element(self):
        fake = Fake(numbers((), "f32"))
        nd = ti.from_dlpack(fake)
        add_one_0d(nd)
        assert nd[None] == 2 and values_of(fake) == 2

    def test_every_key_of_no_dimensions_is_the_element(self):
        nd = ti.from_dlpack(Fake(numbers((), "f32")))
        nd[None] = 5
        assert nd[()] == nd[None] == 5
        assert nd.to_numpy().shape == () and nd.to_numpy() == 5

    @pytest.mark.parametrize("copy", [None, True])
    def test_elements_alone_are_no_dimensions(self, copy):
        nd = ti.from_dlpack(Fake(numbers((3,), "f32")), dtype=ti.types.vector(3, ti.f32), copy=copy)
        assert nd.shape == () and peek(nd.__dlpack__()).shape == (3,)
        add_one_0d(nd)
        assert nd[None].to_list() == [2, 3, 4]

    def test_own_ones_are_exported(self):
        nd = ti.ndarray(ti.i32, ())
        nd[None] = 7
        view = peek(nd.__dlpack__(max_version=(1, 0)))
        assert view.shape == () and view.bytes() == np.int32(7).tobytes()


# --- beyond 4 GiB ---------------------------------------------------------------------------------


def _peak():
    """The most resident memory that the process had since `_forget_peak`, in bytes."""
    with open("/proc/self/status", encoding="ascii") as file:
        line = next(line for line in file if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def _forget_peak():
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


@pytest.fixture
def little_memory():
    """Fails a test in which the resident memory of the process grew, at any time."""
    try:
        _forget_peak()
    except OSError as error:
        pytest.skip(f"this kernel does not tell how much memory a test took: {error}")
    before = _peak()
    yield
    grown = _peak() - before
    assert grown < LITTLE, f"the resident memory grew by {grown / 1e6:.0f} MB"


class Huge(Fake):
    """A producer of zeros, most of which are never touched."""

    def __init__(self, shape, name, **keywords):
        super().__init__(shape=shape, dtype=dl_type(name), **keywords)
        self.memory = helpers.SparseMemory(math.prod(shape) * np_type(name).itemsize)


def sparse_array(shape, name):
    """A NumPy array of zeros, most of which are never touched."""
    nbytes = math.prod(shape) * np_type(name).itemsize
    return np.frombuffer(helpers.anonymous_mapping(nbytes), np_type(name)).reshape(shape)


def assert_describes(nd, pointer, shape, name):
    """Fails unless every protocol says where the memory lies and how large it is."""
    nbytes = math.prod(shape) * np_type(name).itemsize
    for asked in ({}, {"max_version": (1, 0)}):
        view = peek(nd.__dlpack__(**asked))
        assert (view.data, view.byte_offset, view.shape) == (pointer, 0, shape)
        assert view.strides == helpers.compact_strides(shape)
    assert nd.arr.nelement() * nd.arr.element_size() == nbytes
    if not helpers.ON_CUDA:
        assert nd.__array_interface__["shape"] == shape
        for array in (np.asarray(nd), np.from_dlpack(nd)):
            assert array.nbytes == nbytes and array.ctypes.data == pointer


# Bytes beyond 4 GiB by the number of elements, by their size, by that of a vector.
BEYOND = [(WIDE, "u8", ()), ((2**29 + 1,), "f64", ()), ((2**16, 2**14 + 1), "f32", (4,)), ((INT32_MAX,), "u16", ())]


@pytest.mark.usefixtures("little_memory")
class TestBeyond4GiB:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("shape, name, element", BEYOND, ids=str)
    def test_a_producers_memory_is_shared_to_its_far_end(self, shape, name, element, kind):
        fake = Huge(shape + element, name, capsule=kind)
        nd = ti.from_dlpack(fake, dtype=helpers.element_type(name, element) if element else None)
        assert nd.shape == shape
        assert_describes(nd, fake.pointer, shape + element, name)
        assert_aliases(nd, fake)
        del nd
        helpers.check_released(fake)

    @pytest.mark.parametrize("shape, name, element", BEYOND, ids=str)
    def test_a_re_export_is_the_same_memory(self, shape, name, element):
        fake = Huge(shape + element, name)
        first = ti.from_dlpack(fake)
        again = ti.from_dlpack(first)
        del first
        assert_describes(again, fake.pointer, shape + element, name)
        assert_aliases(again, fake)

    @HOST
    def test_numpy_arrays_are_shared(self):
        array = sparse_array(WIDE, "u8")
        nd = ti.from_dlpack(array)
        assert_aliases(nd, array)
        assert_aliases(array, np.from_dlpack(nd))

    @HOST
    @pytest.mark.parametrize("mode", ["r+", pytest.param("r", marks=helpers.needs_numpy_2_1)])
    def test_a_sparse_file_is_shared(self, mode):
        with tempfile.NamedTemporaryFile() as file:
            file.truncate(math.prod(WIDE))
            array = np.memmap(file.name, np.uint8, mode, shape=WIDE)
            nd = ti.from_dlpack(np.asarray(array))
            assert nd.read_only == (mode == "r")
            assert nd[WIDE_LAST] == 0
            if mode == "r+":
                nd[WIDE_LAST] = 9
                array.flush()
                file.seek(-1, 2)
                assert file.read() == b"\x09"

    def test_python_reads_and_writes_every_row(self):
        fake = Huge(WIDE, "u8")
        nd = ti.from_dlpack(fake)
        for row in range(5):
            nd[row, 11] = row + 1
        assert [nd[row, 11] for row in range(5)] == [1, 2, 3, 4, 5]
        assert [read_byte(nd, (row, 11)) for row in range(5)] == [1, 2, 3, 4, 5]

    def test_a_kernel_reaches_the_last_element_that_int32_counts(self):
        for name in ("u8", "f64"):
            fake = Huge((INT32_MAX,) if name == "u8" else (2**29 + 1,), name)
            nd = ti.from_dlpack(fake)
            last = fake.shape[0] - 1
            nd[last] = 5
            add_at(nd, last, 2)
            assert nd[last] == 7

    @pytest.mark.needs_core("kernels of the released core index with 32 bits")
    @pytest.mark.parametrize("index", [WIDE_MIDDLE, WIDE_LAST], ids=str)
    def test_a_kernel_reaches_every_element(self, index):
        nd = ti.from_dlpack(Huge(WIDE, "u8"))
        wrapped = (index[0] % 4, index[1])
        nd[index] = 5
        assert read_at_2d(nd, *index) == 5
        add_at_2d(nd, *index, 2)
        assert nd[index] == 7
        if wrapped != index:
            assert nd[wrapped] == 0, "the index was cut to 32 bits"

    @pytest.mark.needs_core("kernels of the released core index with 32 bits")
    def test_a_kernel_reaches_every_element_of_elements(self):
        vec = ti.types.vector(4, ti.u8)
        nd = ti.from_dlpack(Huge((5, 2**28, 4), "u8"), dtype=vec)

        @ti.kernel
        def put(x: ti.types.ndarray(dtype=vec, ndim=2), i: ti.i32, j: ti.i32, k: ti.i32):
            x[i, j][k] = ti.u8(3)
            x[i, j] += vec(1, 1, 1, 1)

        last = (4, 2**28 - 1)
        put(nd, *last, 3)
        assert nd[last].to_list() == [1, 1, 1, 4]

    @pytest.mark.fast_only("kernels of the source wheel index with 64 bits")
    def test_the_released_kernels_are_not_given_what_they_cannot_index(self):
        nd = ti.from_dlpack(Huge(WIDE, "u8"))
        with pytest.raises(RuntimeError, match="source wheel"):
            read_at_2d(nd, *WIDE_LAST)

    @pytest.mark.parametrize(
        "use",
        [
            methodcaller("fill", 1),
            methodcaller("to_numpy"),
            copy_to_itself,
            copying.deepcopy,
            methodcaller("__dlpack__", copy=True),
        ],
        ids=["fill", "to_numpy", "copy_from", "deepcopy", "export_copy"],
    )
    def test_what_loops_over_the_elements_is_refused(self, use):
        fake = Huge(WIDE, "u8")
        nd = ti.from_dlpack(fake)
        with pytest.raises((RuntimeError, BufferError), match="2147483647"):
            use(nd)
        assert not any(read_byte(nd, (row, 0)) for row in range(5))

    def test_from_numpy_is_refused(self):
        nd = ti.from_dlpack(Huge(WIDE, "u8"))
        with pytest.raises(RuntimeError, match="2147483647"):
            nd.from_numpy(np.broadcast_to(np.uint8(1), WIDE))


def native(shape, name="u8"):
    """An ndarray of Taichi's own, without the zeros of `ti.ndarray`, which would touch every page."""
    data_type = ti_type(name)
    return _dlpack._create(_dlpack._Form(data_type, data_type, shape, ()))


@pytest.mark.usefixtures("little_memory")
class TestOwnMemoryBeyond4GiB:
    @pytest.mark.needs_core("the released core counts elements with 32 bits")
    def test_is_exported_to_its_far_end(self):
        nd = native(WIDE)
        nd[WIDE_LAST], nd[WIDE_MIDDLE] = 6, 7
        assert_describes(nd, peek(nd.__dlpack__()).data, WIDE, "u8")
        view = helpers.take(nd.__dlpack__())
        del nd
        assert helpers.read_bytes(view.data + math.prod(WIDE) - 1, 1) == b"\x06"
        assert helpers.read_bytes(view.data + 2 * 2**30 + 7, 1) == b"\x07"
        view.delete()

    @pytest.mark.fast_only("the source wheel counts elements with 64 bits")
    @pytest.mark.parametrize("shape", [WIDE, (2, 2**30), (2**16, 2**16), (2**31 - 1, 2)], ids=str)
    def test_is_refused_where_the_core_would_allocate_less(self, shape):
        for make in (native, lambda shape: ti.ndarray(ti.u8, shape), lambda shape: ti.Vector.ndarray(3, ti.u8, shape)):
            with pytest.raises(RuntimeError, match="source wheel"):
                make(shape)

    @pytest.mark.fast_only("the source wheel counts elements with 64 bits")
    def test_a_copy_is_refused_where_the_core_would_allocate_less(self):
        fake = Huge(WIDE, "u8")
        with pytest.raises((RuntimeError, BufferError), match="source wheel"):
            ti.from_dlpack(fake, copy=True)
        helpers.check_released(fake)


# --- products that no integer holds ---------------------------------------------------------------


class TestProducts:
    @pytest.mark.parametrize("copy", [None, True])
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize(
        "shape, name, match",
        [
            ((INT32_MAX,) * 3, "u8", "int64"),
            ((2**30, 2**30, 8), "u8", "int64"),
            ((2**16,) * 4, "u8", "int64"),
            ((2,) * 12 + (2,), "u8", "13 dimensions"),
            ((2**20,) * 3, "f64", "bytes exceeds int64"),
            ((2**30, 2**30), "f64", "bytes exceeds int64"),
            ((INT32_MAX, INT32_MAX), "f32", "bytes exceeds int64"),
            ((2**31,), "u8", "2147483647"),
            ((2, 2**31), "u8", "2147483647"),
            ((2**63 - 1,), "u8", "2147483647"),
        ],
        ids=str,
    )
    def test_beyond_int64_are_refused(self, shape, name, match, kind, copy):
        fake = Fake(np.zeros(1, np_type(name)), shape=shape, capsule=kind)
        with pytest.raises(BufferError, match=match):
            ti.from_dlpack(fake, copy=copy)
        helpers.check_released(fake)

    @pytest.mark.parametrize("shape, name", [((2**31 - 1, 2**31 - 1, 2), "u8"), ((INT32_MAX, INT32_MAX), "u16")])
    def test_up_to_int64_are_described(self, shape, name):
        """No memory is that large. What a producer says is passed on as it is."""
        nd = ti.from_dlpack(Fake(np.zeros(1, np_type(name)), shape=shape))
        assert nd.shape == shape and nd.arr.nelement() == math.prod(shape)
        view = peek(nd.__dlpack__())
        assert view.shape == shape and view.strides == helpers.compact_strides(shape)

    @HOST
    @pytest.mark.parametrize("shape", [(2**31,), (INT32_MAX,) * 3, (2**63,)], ids=str)
    def test_of_an_array_interface_are_refused(self, shape):
        class Array:
            __array_interface__ = {"shape": shape, "typestr": "|u1", "data": (4096, False), "version": 3}

        with pytest.raises(BufferError):
            ti.from_dlpack(Array())

    @pytest.mark.parametrize("copy", [None, True])
    @pytest.mark.parametrize(
        "shape, strides",
        [
            ((3,), (2**62,)),
            ((3,), (-(2**62),)),
            ((3,), (2**63 - 1,)),
            ((3,), (-(2**63),)),
            ((2, 2), (2**61, 2**61)),
            ((2, INT32_MAX), (1, 2**32)),
        ],
        ids=str,
    )
    def test_strides_that_lead_beyond_int64_are_refused(self, shape, strides, copy):
        fake = Fake(numbers((8,), "f32"), shape=shape, strides=strides)
        with pytest.raises(BufferError, match="strides"):
            ti.from_dlpack(fake, copy=copy)
        helpers.check_released(fake)

    @pytest.mark.parametrize("make", ["scalar", "vector", "matrix"])
    @pytest.mark.parametrize("shape", [(2**16,) * 4, (INT32_MAX,) * 3, (INT32_MAX,) * 12], ids=str)
    def test_of_an_own_ndarray_are_refused(self, make, shape):
        """2^64 elements, taken modulo 2^64, are none: such an ndarray had no memory at all."""
        dtype = {"scalar": ti.u8, "vector": ti.types.vector(3, ti.u8), "matrix": ti.types.matrix(2, 2, ti.u8)}[make]
        with pytest.raises(RuntimeError, match="elements|int64"):
            ti.ndarray(dtype, shape)

    @pytest.mark.parametrize("shape", [(2**31,), (2, 2**31)], ids=str)
    def test_a_dimension_over_int32_of_an_own_ndarray_is_refused(self, shape):
        with pytest.raises(RuntimeError, match="shape"):
            ti.ndarray(ti.u8, shape)
