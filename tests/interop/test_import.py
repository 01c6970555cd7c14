"""Section 2 of the contract: `ti.from_dlpack`. One class a row of its table."""

import numpy as np
import pytest
import taichi as ti

import dl_structs as dl
import helpers
from helpers import (
    DTYPES,
    ON_CUDA,
    Fake,
    UnknownKeyword,
    Wrapped,
    assert_aliases,
    assert_independent,
    check_released,
    element_type,
    numbers,
    own_device,
    peek,
    take,
    values_of,
)

INTERFACE = "__cuda_array_interface__" if ON_CUDA else "__array_interface__"


class Interface:
    """An object that offers nothing but an array interface over a Fake's memory."""

    def __init__(self, fake, **changes):
        self.fake = fake
        code = {dl.INT: "i", dl.UINT: "u", dl.FLOAT: "f", dl.BOOL: "b"}[fake.dtype[0]]
        size = fake.dtype[1] // 8
        described = {
            "shape": fake.shape,
            "typestr": f"{'|' if size == 1 else '<'}{code}{size}",
            "data": (fake.pointer, False),
            "strides": None,
            "version": 3,
        }
        described.update(changes)
        setattr(self, INTERFACE, described)


def refuse(fake, match, error=BufferError, **options):
    """The import raises, says what it should, and gives everything back."""
    with pytest.raises(error, match=match) as caught:
        ti.from_dlpack(fake, **options)
    del caught
    check_released(fake)


class TestX:
    def test_object_with_the_protocol(self):
        fake = Fake(numbers((3, 4), "f32"))
        nd = ti.from_dlpack(fake)
        assert type(nd) is ti.ScalarNdarray and nd.shape == (3, 4) and nd.dtype == ti.f32
        assert_aliases(nd, fake)

    @pytest.mark.parametrize("versioned", [False, True])
    def test_bare_capsule_of_either_name(self, versioned):
        fake = Fake(numbers((3, 4), "f32"))
        capsule = fake.make_capsule(versioned)
        nd = ti.from_dlpack(capsule)
        assert dl.capsule_name(capsule) == (dl.USED_VERSIONED if versioned else dl.USED_LEGACY)
        assert peek(nd.__dlpack__()).data == fake.pointer
        del nd, capsule
        check_released(fake)

    def test_object_with_an_array_interface_only(self):
        fake = Fake(numbers((3, 4), "f32"))
        nd = ti.from_dlpack(Interface(fake))
        assert_aliases(nd, fake)

    def test_array_interface_keeps_its_object_alive(self):
        import weakref  # pylint: disable=C0415

        x = Interface(Fake(numbers((4,), "f32")))
        alive = weakref.ref(x)
        nd = ti.from_dlpack(x)
        del x
        helpers.collect()
        assert alive() is not None and values_of(nd).tolist() == [1, 2, 3, 4]
        del nd
        helpers.collect()
        assert alive() is None

    @pytest.mark.parametrize("name", DTYPES)
    def test_array_interface_of_each_type(self, name):
        nd = ti.from_dlpack(Interface(Fake(numbers((3,), name))))
        assert nd.dtype == helpers.ti_type(name) and (values_of(nd) == numbers((3,), name)).all()

    def test_read_only_array_interface(self):
        fake = Fake(numbers((4,), "f32"))
        assert ti.from_dlpack(Interface(fake, data=(fake.pointer, True))).read_only

    @pytest.mark.parametrize(
        "changes, match",
        [
            ({"typestr": ">f4"}, ">f4|byte order|endian"),
            ({"typestr": "<c8"}, "c8|complex"),
            ({"typestr": "|V4"}, "V4"),
            ({"strides": (4, 12)}, "strides"),
        ],
    )
    def test_array_interface_that_cannot_be_shared(self, changes, match):
        with pytest.raises(BufferError, match=match):
            ti.from_dlpack(Interface(Fake(numbers((3, 4), "f32")), **changes))

    def test_strides_of_an_array_interface_are_bytes(self):
        nd = ti.from_dlpack(Interface(Fake(numbers((3, 4), "f32")), strides=(16, 4)))
        assert (values_of(nd) == numbers((3, 4), "f32")).all()

    @pytest.mark.parametrize("x", [None, 3, "text", [1.0, 2.0], object(), b"bytes", dict])
    def test_what_offers_no_protocol_is_a_type_error(self, x):
        with pytest.raises(TypeError, match="__dlpack__"):
            ti.from_dlpack(x)

    def test_x_is_positional_only(self):
        with pytest.raises(TypeError):
            ti.from_dlpack(x=Fake())

    def test_capsule_of_another_name(self):
        with pytest.raises((BufferError, ValueError, TypeError), match="something_else|dltensor"):
            ti.from_dlpack(dl.capsule_new(1, b"something_else", dl.CapsuleDestructor(0)))

    def test_protocol_that_answers_no_capsule(self):
        with pytest.raises((BufferError, TypeError)):
            ti.from_dlpack(Wrapped("not a capsule"))


class TestAsking:
    def test_asks_for_version_1_3(self):
        fake = Fake()
        ti.from_dlpack(fake)
        assert len(fake.asked) == 1 and fake.asked[0]["max_version"] == (1, 3)

    def test_asks_for_stream_1_on_cuda_and_none_on_the_cpu(self):
        fake = Fake()
        ti.from_dlpack(fake)
        assert fake.asked[0].get("stream") == (1 if ON_CUDA else None)

    def test_sends_device_and_copy_only_when_given(self):
        fake = Fake()
        ti.from_dlpack(fake)
        assert "dl_device" not in fake.asked[0] and "copy" not in fake.asked[0]
        for copy in (True, False):
            ti.from_dlpack(fake, copy=copy)
            # A copy that the producer makes on a GPU may come after it has ordered the streams: Taichi makes it.
            assert fake.asked[-1].get("copy") == (None if copy and helpers.ON_CUDA else copy)

    @pytest.mark.parametrize("accepts", [("stream",), ()])
    def test_asks_a_producer_without_max_version_again(self, accepts):
        if ON_CUDA and not accepts:
            pytest.skip("backend cuda: a producer without stream cannot be ordered")
        fake = Fake(numbers((4,), "f32"), accepts=accepts)
        nd = ti.from_dlpack(fake)
        assert len(fake.asked) == 2 and "max_version" not in fake.asked[1]
        assert values_of(nd).tolist() == [1, 2, 3, 4]

    def test_a_producer_without_copy_is_copied_here(self):
        fake = Fake(numbers((4,), "f32"), accepts=("stream",))
        nd = ti.from_dlpack(fake, copy=True)
        assert_independent(nd, fake)
        check_released(fake)

    def test_a_producer_without_copy_is_aliased_under_false(self):
        fake = Fake(numbers((4,), "f32"), accepts=("stream",))
        assert_aliases(ti.from_dlpack(fake, copy=False), fake)

    @pytest.mark.parametrize("kind", ["legacy", "versioned"])
    def test_takes_either_kind_whatever_was_asked(self, kind):
        fake = Fake(numbers((4,), "f32"), capsule=kind)
        assert values_of(ti.from_dlpack(fake)).tolist() == [1, 2, 3, 4]


class TestDtype:
    @pytest.mark.parametrize("kind", ["legacy", "versioned"])
    @pytest.mark.parametrize("name", DTYPES)
    def test_none_gives_the_sources_scalar_type(self, name, kind):
        fake = Fake(numbers((3, 4), name), capsule=kind)
        nd = ti.from_dlpack(fake)
        assert type(nd) is ti.ScalarNdarray and nd.dtype == helpers.ti_type(name) and nd.element_shape == ()
        assert (values_of(nd) == numbers((3, 4), name)).all()

    @pytest.mark.parametrize("name", DTYPES)
    def test_the_sources_own_type_may_be_said(self, name):
        assert ti.from_dlpack(Fake(numbers((3,), name)), dtype=helpers.ti_type(name)).dtype == helpers.ti_type(name)

    @pytest.mark.parametrize("name", DTYPES)
    def test_vector_takes_the_last_dimension(self, name):
        fake = Fake(numbers((4, 5, 3), name))
        nd = ti.from_dlpack(fake, dtype=element_type(name, (3,)))
        assert isinstance(nd, ti.VectorNdarray) and nd.shape == (4, 5) and nd.element_shape == (3,) and nd.n == 3
        assert_aliases(nd, fake)

    @pytest.mark.parametrize("name", DTYPES)
    def test_matrix_takes_the_last_two_dimensions(self, name):
        fake = Fake(numbers((4, 2, 3), name))
        nd = ti.from_dlpack(fake, dtype=element_type(name, (2, 3)))
        assert isinstance(nd, ti.MatrixNdarray) and nd.shape == (4,) and nd.element_shape == (2, 3)
        assert (nd.n, nd.m) == (2, 3)
        assert_aliases(nd, fake)

    @pytest.mark.parametrize("element", [(3,), (2, 3)])
    def test_elements_alone_give_zero_dimensions(self, element):
        fake = Fake(numbers(element, "f32"))
        nd = ti.from_dlpack(fake, dtype=element_type("f32", element))
        assert nd.shape == () and nd.element_shape == element
        assert_aliases(nd, fake)

    @pytest.mark.parametrize(
        "shape, element",
        [((4, 3), (4,)), ((4, 3), (2, 3)), ((3,), (1, 3)), ((), (3,)), ((6,), (2, 3)), ((4, 3), (4, 3, 0))],
    )
    def test_trailing_dimensions_must_match(self, shape, element):
        if len(element) == 3:
            shape, element = (4, 3, 2), (2, 3)  # transposed element
        refuse(Fake(numbers(shape, "f32")), "shape", dtype=element_type("f32", element))

    @pytest.mark.parametrize("wanted", ["i32", "f64", "u32", "f16"])
    def test_scalar_type_must_match_exactly(self, wanted):
        refuse(Fake(numbers((3,), "f32")), f"(?s)f32.*{wanted}|{wanted}.*f32", dtype=helpers.ti_type(wanted))

    def test_scalar_type_of_a_vector_must_match_exactly(self):
        refuse(Fake(numbers((4, 3), "f32")), "(?s)f32.*f64|f64.*f32", dtype=ti.types.vector(3, ti.f64))

    @pytest.mark.parametrize("dtype", [np.float32, "f32", 3, ti.types.struct(a=ti.f32), object()])
    def test_what_is_no_taichi_type_is_a_type_error(self, dtype):
        refuse(Fake(numbers((3,), "f32")), "dtype", error=TypeError, dtype=dtype)

    def test_python_types_mean_the_default_types(self):
        # As everywhere in Taichi, float is the default floating-point type.
        assert ti.from_dlpack(Fake(numbers((3,), "f32")), dtype=float).dtype == ti.f32
        refuse(Fake(numbers((3,), "f64")), "f32", dtype=float)


def strided(shape, strides, offset=0, name="f32", size=64):
    """A Fake over `size` elements with the given strides, and the NumPy array of its values."""
    base = numbers((size,), name)
    item = base.itemsize
    values = np.lib.stride_tricks.as_strided(base[offset:], shape, [s * item for s in strides]).copy()
    return Fake(base, shape=shape, strides=strides, byte_offset=offset * item), values


NON_CONTIGUOUS = {
    "transposed": ((3, 4), (1, 3), 0),
    "sliced columns": ((3, 2), (4, 1), 0),
    "every other": ((4,), (2,), 0),
    "reversed": ((4,), (-1,), 3),
    "reversed rows": ((3, 4), (4, -1), 3),
    "both reversed": ((3, 4), (-4, -1), 11),
    "broadcast": ((3, 4), (0, 1), 0),
    "broadcast scalar": ((3,), (0,), 0),
    "sliced rows of three": ((2, 3, 4), (24, 4, 1), 0),
    "swapped middle": ((2, 3, 4), (12, 1, 3), 0),
}


class TestStrides:
    @pytest.mark.parametrize("kind", ["legacy", "versioned"])
    @pytest.mark.parametrize("shape", helpers.SHAPES)
    def test_null_is_compact(self, shape, kind):
        fake = Fake(numbers(shape, "f32"), strides=None, capsule=kind)
        assert_aliases(ti.from_dlpack(fake), fake)

    @pytest.mark.parametrize(
        "shape, strides",
        [((1, 4), (999, 1)), ((4, 1), (1, -7)), ((1, 1), (5, 5)), ((1,), (0,)), ((2, 1, 3), (3, 12345, 1))],
    )
    def test_stride_of_a_size_one_is_irrelevant(self, shape, strides):
        fake = Fake(numbers(shape, "f32"), strides=strides)
        nd = ti.from_dlpack(fake)
        assert peek(nd.__dlpack__()).data == fake.pointer and (values_of(nd) == numbers(shape, "f32")).all()

    @pytest.mark.parametrize("strides", [(7, 9), (-1, -1), (0, 0)])
    @pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0, 0)])
    def test_strides_of_a_zero_size_array_are_irrelevant(self, shape, strides):
        assert ti.from_dlpack(Fake(np.zeros(shape, np.float32), strides=strides)).shape == shape

    @pytest.mark.parametrize("kind", ["legacy", "versioned"])
    @pytest.mark.parametrize("copy", [None, False])
    @pytest.mark.parametrize("case", NON_CONTIGUOUS)
    def test_anything_else_is_refused(self, case, copy, kind):
        shape, strides, offset = NON_CONTIGUOUS[case]
        fake, _ = strided(shape, strides, offset)
        fake.kind = kind
        with pytest.raises(BufferError) as caught:
            ti.from_dlpack(fake, copy=copy)
        message = str(caught.value)
        assert str(shape) in message and str(strides) in message and "copy=True" in message
        del caught
        check_released(fake)

    @pytest.mark.parametrize("name", ["f32", "u1", "i8", "f64", "u16"])
    @pytest.mark.parametrize("case", NON_CONTIGUOUS)
    def test_copy_true_packs_it(self, case, name):
        shape, strides, offset = NON_CONTIGUOUS[case]
        fake, values = strided(shape, strides, offset, name)
        nd = ti.from_dlpack(fake, copy=True)
        assert nd.shape == shape and (values_of(nd) == values).all()
        assert peek(nd.__dlpack__()).strides == helpers.compact_strides(shape)
        check_released(fake)

    def test_copy_true_packs_elements_too(self):
        fake, values = strided((5, 2, 3), (6, 1, 2))
        nd = ti.from_dlpack(fake, dtype=ti.types.matrix(2, 3, ti.f32), copy=True)
        assert nd.shape == (5,) and (values_of(nd) == values).all()


class TestCopy:
    @pytest.mark.parametrize("copy", [None, False])
    def test_false_and_none_alias(self, copy):
        fake = Fake(numbers((3, 4), "f32"))
        assert_aliases(ti.from_dlpack(fake, copy=copy), fake)

    @pytest.mark.parametrize("shape", helpers.SHAPES)
    @pytest.mark.parametrize("name", DTYPES)
    def test_true_is_independent(self, name, shape):
        fake = Fake(numbers(shape, name))
        nd = ti.from_dlpack(fake, copy=True)
        assert (values_of(nd) == numbers(shape, name)).all()
        assert_independent(nd, fake)
        check_released(fake)

    @pytest.mark.parametrize("shape", helpers.EMPTY_SHAPES)
    def test_true_of_zero_size(self, shape):
        fake = Fake(np.zeros(shape, np.float32))
        assert ti.from_dlpack(fake, copy=True).shape == shape
        check_released(fake)

    @pytest.mark.parametrize("element", [(3,), (2, 3)])
    def test_true_of_elements(self, element):
        fake = Fake(numbers((4,) + element, "f32"))
        nd = ti.from_dlpack(fake, dtype=element_type("f32", element), copy=True)
        assert nd.element_shape == element and (values_of(nd) == numbers((4,) + element, "f32")).all()

    def test_true_of_a_bare_capsule(self):
        fake = Fake(numbers((4,), "f32"))
        nd = ti.from_dlpack(fake.make_capsule(True), copy=True)
        assert peek(nd.__dlpack__()).data != fake.pointer and values_of(nd).tolist() == [1, 2, 3, 4]
        check_released(fake)

    def test_true_of_an_array_interface(self):
        fake = Fake(numbers((4,), "f32"))
        assert_independent(ti.from_dlpack(Interface(fake), copy=True), fake)

    def test_true_with_a_producer_that_copied_is_not_the_sources_memory(self):
        copied = Fake(numbers((4,), "f32"), flags=dl.FLAG_IS_COPIED)
        nd = ti.from_dlpack(copied, copy=True)
        assert values_of(nd).tolist() == [1, 2, 3, 4] and not nd.read_only
        del nd
        check_released(copied)

    @pytest.mark.parametrize("copy", [1, 0, "True", (), 1.0])
    def test_what_is_no_bool_is_a_type_error(self, copy):
        refuse(Fake(), "copy", error=TypeError, copy=copy)


class TestDeviceArgument:
    def test_own_device_aliases(self):
        fake = Fake(numbers((4,), "f32"))
        assert_aliases(ti.from_dlpack(fake, device=own_device()), fake)

    def test_another_devices_producer_is_asked_to_copy_here(self):
        class Elsewhere(Fake):
            def __dlpack_device__(self):
                return (dl.ROCM, 0)

        fake = Elsewhere(numbers((4,), "f32"), flags=dl.FLAG_IS_COPIED)
        nd = ti.from_dlpack(fake, device=own_device())
        assert fake.asked[0]["dl_device"] == own_device() and values_of(nd).tolist() == [1, 2, 3, 4]

    @pytest.mark.parametrize("device", [(dl.ROCM, 0), (99, 0), (dl.METAL, 1)])
    def test_what_is_not_taichis_is_refused(self, device):
        refuse(Fake(), f"{device[0]}, {device[1]}", device=device)

    @pytest.mark.cpu_only("on CUDA that is the own device")
    def test_cuda_is_refused_on_the_cpu(self):
        refuse(Fake(), "2, 0", device=(2, 0))

    @pytest.mark.parametrize("device", ["cpu", 1, (1,), (1, 0, 0), (1.0, 0), ("cpu", 0), (1, None), ()])
    def test_what_is_no_pair_of_ints_is_a_type_error(self, device):
        refuse(Fake(), "device", error=TypeError, device=device)


class TestData:
    @pytest.mark.parametrize("kind", ["legacy", "versioned"])
    @pytest.mark.parametrize("shape", [(), (3,), (2, 2)])
    def test_byte_offset_is_added(self, shape, kind):
        fake = Fake(numbers((8,), "f32"), shape=shape, byte_offset=4, capsule=kind)
        nd = ti.from_dlpack(fake)
        assert peek(nd.__dlpack__()).data == fake.memory.pointer + 4
        assert (
            values_of(nd).ravel().tolist() == numbers((8,), "f32")[1 : 1 + max(1, np.prod(shape, dtype=int))].tolist()
        )

    @pytest.mark.parametrize("name, offset", [("f32", 2), ("f64", 4), ("i16", 1), ("f16", 1), ("u64", 7)])
    @pytest.mark.parametrize("copy", [None, False])
    def test_pointer_off_the_item_size_is_refused(self, name, offset, copy):
        refuse(Fake(numbers((8,), name), shape=(2,), byte_offset=offset), "align|multiple", copy=copy)

    @pytest.mark.parametrize("name", ["i8", "u8", "u1"])
    def test_any_pointer_fits_one_byte(self, name):
        fake = Fake(numbers((8,), name), shape=(2,), byte_offset=3)
        assert (values_of(ti.from_dlpack(fake)) == numbers((8,), name)[3:5]).all()

    @pytest.mark.parametrize("shape", [(), (3,), (1, 1)])
    @pytest.mark.parametrize("copy", [None, True])
    def test_null_with_elements_is_refused(self, shape, copy):
        refuse(Fake(numbers(shape, "f32"), null=True), "(?i)null", copy=copy)

    @pytest.mark.parametrize("null", [False, True])
    @pytest.mark.parametrize("name", DTYPES)
    @pytest.mark.parametrize("shape", helpers.EMPTY_SHAPES)
    def test_zero_size_works(self, shape, name, null):
        fake = Fake(np.zeros(shape, helpers.np_type(name)), null=null)
        nd = ti.from_dlpack(fake)
        assert nd.shape == shape and nd.dtype == helpers.ti_type(name) and nd.to_numpy().shape == shape
        del nd
        check_released(fake)

    @pytest.mark.parametrize("element", [(3,), (2, 3)])
    def test_zero_size_of_elements_works(self, element):
        fake = Fake(np.zeros((0,) + element, np.float32), null=True)
        nd = ti.from_dlpack(fake, dtype=element_type("f32", element))
        assert nd.shape == (0,) and nd.element_shape == element

    def test_twelve_dimensions_work_and_thirteen_are_refused(self):
        shape = (1,) * 11 + (2,)
        assert ti.from_dlpack(Fake(numbers(shape, "f32"))).shape == shape
        refuse(Fake(numbers((1,) + shape, "f32")), "13")

    @pytest.mark.parametrize("ndim", [-1, 1000000])
    def test_a_mad_number_of_dimensions_is_refused(self, ndim):
        refuse(Fake(numbers((2,), "f32"), ndim=ndim), "dim")

    @pytest.mark.parametrize("shape", [(2**31,), (1, 2**31), (2**40,), (0, 2**31), (2**62, 4)])
    def test_a_dimension_over_int32_is_refused(self, shape):
        refuse(Fake(numbers((1,), "i8"), shape=shape, strides=None), str(max(shape)))

    @pytest.mark.parametrize("shape", [(-1,), (2, -3)])
    def test_a_negative_dimension_is_refused(self, shape):
        refuse(Fake(numbers((8,), "f32"), shape=shape, strides=None), str(min(shape)))


class TestDevice:
    @pytest.mark.parametrize("device", [(dl.ROCM, 0), (dl.OPENCL, 0), (99, 3)])
    def test_another_is_refused_naming_both_sides(self, device):
        mine = own_device()
        refuse(
            Fake(device=device),
            f"(?s){device[0]}, {device[1]}.*{mine[0]}, {mine[1]}|{mine[0]}, {mine[1]}.*{device[0]}, {device[1]}",
        )

    @pytest.mark.cpu_only("on CUDA that is the own device")
    def test_cuda_is_refused_on_the_cpu(self):
        refuse(Fake(device=(dl.CUDA, 0)), "(?s)2, 0.*1, 0|1, 0.*2, 0")

    @pytest.mark.cuda_only("on the CPU that is the own device")
    def test_the_cpu_is_refused_on_cuda(self):
        refuse(Fake(device=(dl.CPU, 0)), "1, 0")

    @pytest.mark.cpu_only("a kernel on the GPU cannot be sure to read it")
    def test_pinned_host_memory_counts_as_cpu(self):
        fake = Fake(numbers((4,), "f32"), device=(dl.CUDA_HOST, 0))
        assert_aliases(ti.from_dlpack(fake), fake)

    def test_managed_memory_counts_as_either(self):
        fake = Fake(numbers((4,), "f32"), device=(dl.CUDA_MANAGED, 0))
        assert_aliases(ti.from_dlpack(fake), fake)

    def test_the_device_in_the_tensor_is_checked_too(self):
        class Liar(Fake):
            def __dlpack_device__(self):
                return own_device()

        refuse(Liar(device=(dl.ROCM, 0)), "10, 0")

    def test_a_bare_capsules_device_is_checked(self):
        fake = Fake(device=(dl.ROCM, 0))
        with pytest.raises(BufferError, match="10, 0"):
            ti.from_dlpack(fake.make_capsule(False))
        check_released(fake)


class TestVersion:
    @helpers.needs_python_3_11
    @pytest.mark.parametrize("version", [(2, 0), (99, 1)])
    def test_major_above_one_calls_the_deleter_and_is_refused(self, version):
        fake = Fake(capsule="versioned", version=version)
        refuse(fake, str(version[0]))
        assert (fake.made, fake.deleted) == (1, 1)

    def test_major_above_one_of_a_bare_capsule(self):
        fake = Fake(version=(2, 0))
        capsule = fake.make_capsule(True)
        with pytest.raises(BufferError, match="2"):
            ti.from_dlpack(capsule)
        # Not by the destructor of the capsule, which is there still.
        assert fake.deleted == 1
        del capsule
        check_released(fake)

    @pytest.mark.parametrize("version", [(1, 0), (1, 3), (1, 99)])
    def test_any_minor_works(self, version):
        fake = Fake(numbers((2,), "f32"), capsule="versioned", version=version)
        assert values_of(ti.from_dlpack(fake)).tolist() == [1, 2]


class TestOtherDtypes:
    @pytest.mark.parametrize("kind", ["legacy", "versioned"])
    @pytest.mark.parametrize(
        "dtype, match",
        [
            ((dl.FLOAT, 32, 2), "2 x float32|lanes"),
            ((dl.FLOAT, 32, 0), "0 x float32|lanes"),
            ((dl.BFLOAT, 16, 1), "(?i)bfloat"),
            ((dl.COMPLEX, 64, 1), "(?i)complex"),
            ((dl.OPAQUE, 64, 1), "(?i)opaque|handle"),
            ((dl.FLOAT, 128, 1), "128"),
            ((dl.INT, 4, 1), "4"),
            ((dl.UINT, 1, 1), "1"),
            ((dl.BOOL, 1, 1), "1"),
            ((7, 8, 1), "7|float8"),
            ((200, 32, 1), "200"),
        ],
    )
    def test_are_refused_naming_the_type_and_what_is_supported(self, dtype, match, kind):
        fake = Fake(numbers((8,), "f64"), shape=(2,), dtype=dtype, capsule=kind)
        with pytest.raises(BufferError, match=match) as caught:
            ti.from_dlpack(fake)
        message = str(caught.value)
        for names in (("i64", "int64"), ("f16", "float16"), ("u1", "bool")):
            assert any(name in message for name in names), message
        del caught
        check_released(fake)

    def test_are_refused_with_copy_too(self):
        refuse(Fake(numbers((8,), "f64"), shape=(2,), dtype=(dl.BFLOAT, 16, 1)), "(?i)bfloat", copy=True)


class TestReadOnly:
    @pytest.fixture
    def nd(self):
        return ti.from_dlpack(Fake(numbers((4,), "f32"), flags=dl.FLAG_READ_ONLY))

    def test_is_said(self, nd):
        assert nd.read_only is True
        assert ti.from_dlpack(Fake()).read_only is False
        assert ti.ndarray(ti.f32, 3).read_only is False

    def test_can_be_read(self, nd):
        assert nd[1] == 2 and nd.to_numpy().tolist() == [1, 2, 3, 4]

    @pytest.mark.parametrize(
        "write",
        [
            lambda nd: nd.__setitem__(0, 9),
            lambda nd: nd.fill(9),
            lambda nd: nd.from_numpy(np.zeros(4, np.float32)),
            lambda nd: nd.copy_from(ti.ndarray(ti.f32, 4)),
        ],
        ids=["setitem", "fill", "from_numpy", "copy_from"],
    )
    def test_a_write_from_python_raises(self, nd, write):
        with pytest.raises(ValueError, match="read-only"):
            write(nd)
        assert values_of(nd).tolist() == [1, 2, 3, 4]

    @pytest.mark.parametrize("element", [(2,), (2, 2)])
    def test_a_write_to_elements_raises(self, element):
        fake = Fake(numbers((3,) + element, "f32"), flags=dl.FLAG_READ_ONLY)
        nd = ti.from_dlpack(fake, dtype=element_type("f32", element))
        index = (0,) if len(element) == 1 else (0, 0)
        assert nd.read_only and nd[0][index if len(index) > 1 else 0] == 1
        with pytest.raises(ValueError, match="read-only"):
            nd[0] = np.zeros(element).tolist()
        with pytest.raises(ValueError, match="read-only"):
            nd[0][index if len(index) > 1 else 0] = 5
        for write in (lambda: nd.fill(1), lambda: nd.from_numpy(np.zeros((3,) + element, np.float32))):
            with pytest.raises(ValueError, match="read-only"):
                write()
        assert (values_of(nd) == numbers((3,) + element, "f32")).all()

    def test_a_copy_is_writable(self):
        fake = Fake(numbers((4,), "f32"), flags=dl.FLAG_READ_ONLY)
        nd = ti.from_dlpack(fake, copy=True)
        assert nd.read_only is False
        assert_independent(nd, Fake(numbers((4,), "f32")))
        nd[0] = 9
        assert nd[0] == 9

    def test_a_deepcopy_is_writable(self, nd):
        import copy  # pylint: disable=C0415

        other = copy.deepcopy(nd)
        other[0] = 9
        assert other.read_only is False and other[0] == 9 and nd[0] == 1


class TestGrad:
    def test_torchs_refusal_passes_unchanged(self, torch):
        x = torch.zeros(3, requires_grad=True, device="cuda" if ON_CUDA else "cpu")
        with pytest.raises(BufferError) as theirs:
            x.__dlpack__(max_version=(1, 3))
        with pytest.raises(BufferError) as ours:
            ti.from_dlpack(x)
        assert str(ours.value) == str(theirs.value)

    @pytest.mark.parametrize("shape, dtype, error", [((3,), "f32", ValueError), ((4,), "f64", TypeError)])
    def test_grad_must_fit(self, shape, dtype, error):
        x, grad = ti.from_dlpack(Fake(numbers((4,), "f32"))), ti.from_dlpack(Fake(numbers(shape, dtype)))
        with pytest.raises(error, match="Got a gradient"):
            x.grad = grad
        assert x.grad is None

    def test_grad_can_be_another_import(self):
        value, grad = Fake(numbers((4,), "f32")), Fake(np.zeros(4, np.float32))
        nd = ti.from_dlpack(value)
        assert nd.grad is None
        nd.grad = ti.from_dlpack(grad)
        assert_aliases(nd.grad, grad)


class TestLife:
    @pytest.mark.parametrize("kind", ["legacy", "versioned"])
    @pytest.mark.parametrize("name", ["f32", "u1"])
    def test_the_deleter_runs_once_when_the_ndarray_goes(self, kind, name):
        fake = Fake(numbers((4,), name), capsule=kind)
        nd = ti.from_dlpack(fake)
        helpers.collect()
        assert (fake.made, fake.deleted) == (1, 0)
        del nd
        helpers.collect()
        assert (fake.made, fake.deleted) == (1, 1)

    @pytest.mark.parametrize("element", [(3,), (2, 3)])
    def test_the_deleter_runs_once_for_elements(self, element):
        fake = Fake(numbers((4,) + element, "f32"))
        nd = ti.from_dlpack(fake, dtype=element_type("f32", element))
        assert fake.open == 1
        del nd
        helpers.collect()
        assert (fake.made, fake.deleted) == (1, 1)

    def test_a_tensor_without_deleter_is_fine(self):
        fake = Fake(numbers((4,), "f32"), null_deleter=True)
        nd = ti.from_dlpack(fake)
        assert values_of(nd).tolist() == [1, 2, 3, 4]
        del nd
        helpers.collect()

    @pytest.mark.parametrize("versioned", [False, True])
    def test_the_capsule_is_renamed_at_take_over(self, versioned):
        capsule = Fake().make_capsule(versioned)
        nd = ti.from_dlpack(capsule)
        assert dl.capsule_name(capsule) == (dl.USED_VERSIONED if versioned else dl.USED_LEGACY)
        assert nd.shape == (1,)

    @pytest.mark.parametrize("versioned", [False, True])
    def test_a_consumed_capsule_is_a_clear_error(self, versioned):
        fake = Fake()
        capsule = fake.make_capsule(versioned)
        nd = ti.from_dlpack(capsule)
        with pytest.raises((BufferError, ValueError), match="(?i)consumed|used"):
            ti.from_dlpack(capsule)
        del nd, capsule
        check_released(fake)

    def test_a_refused_capsule_stays_with_its_owner(self):
        fake, _ = strided((3, 4), (1, 3))
        capsule = fake.make_capsule(True)
        with pytest.raises(BufferError):
            ti.from_dlpack(capsule)
        # Whoever owns it now, one deleter call is all there is.
        del capsule
        check_released(fake)

    def test_memory_lives_as_long_as_the_ndarray(self):
        fake = Fake(numbers((4,), "f32"))
        import weakref  # pylint: disable=C0415

        memory = weakref.ref(fake.memory)
        nd = ti.from_dlpack(fake)
        del fake
        helpers.collect()
        assert memory() is not None and values_of(nd).tolist() == [1, 2, 3, 4]
        del nd
        helpers.collect()
        assert memory() is None

    def test_a_launched_kernel_keeps_the_memory_until_it_is_done(self):
        @ti.kernel
        def add(x: ti.types.ndarray(dtype=ti.f32, ndim=1)):
            for i in x:
                x[i] += 1

        fake = Fake(np.zeros(100000, np.float32))
        keep = fake.memory  # the bytes outlive the tensor, so that they can be read after its deleter ran
        nd = ti.from_dlpack(fake)
        for _ in range(10):
            add(nd)
        assert fake.open == 1
        del nd
        ti.sync()
        helpers.collect()
        assert fake.open == 0
        assert set(np.frombuffer(helpers.read_bytes(keep.pointer, keep.nbytes), np.float32)) == {10.0}

    @pytest.mark.usefixtures("fresh_runtime")
    def test_a_reset_does_not_call_the_deleter_twice(self):
        fake = Fake(numbers((4,), "f32"))
        nd = ti.from_dlpack(fake)
        ti.reset()
        helpers.init()
        del nd
        helpers.collect()
        assert (fake.made, fake.deleted) == (1, 1)

    def test_an_import_and_its_export_hold_one_tensor(self):
        fake = Fake(numbers((4,), "f32"))
        nd = ti.from_dlpack(fake)
        view = take(nd.__dlpack__())
        del nd
        helpers.collect()
        assert fake.open == 1 and view.bytes() == numbers((4,), "f32").tobytes()
        view.delete()
        helpers.collect()
        assert fake.open == 0


class TestRaisingProducer:
    @pytest.mark.parametrize(
        "error", [RuntimeError("mine"), ValueError("mine"), BufferError("mine"), KeyError("mine"), TypeError("mine")]
    )
    def test_its_exception_passes_unchanged(self, error):
        with pytest.raises(type(error)) as caught:
            ti.from_dlpack(Fake(raises=error))
        assert caught.value is error

    def test_its_exception_from_the_device_passes_unchanged(self):
        class Broken(Fake):
            def __dlpack_device__(self):
                raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            ti.from_dlpack(Broken())

    def test_a_keyboard_interrupt_passes(self):
        with pytest.raises(KeyboardInterrupt):
            ti.from_dlpack(Fake(raises=KeyboardInterrupt()))

    def test_a_keyword_error_of_every_call_passes(self):
        class Refusing(Fake):
            def __dlpack__(self, **asked):
                raise UnknownKeyword("no keyword suits me")

        with pytest.raises(UnknownKeyword):
            ti.from_dlpack(Refusing())


class TestBeforeInit:
    def test_import_says_to_call_init(self):
        here = helpers.__file__.rpartition("/")[0]
        code = f"""
            import os, sys
            sys.path.insert(0, {here!r})
            import taichi as ti
            import helpers
            fake = helpers.Fake()
            for x in (fake, fake.make_capsule(False)):
                try:
                    ti.from_dlpack(x)
                except RuntimeError as error:
                    assert "ti.init" in str(error), error
                    print("REFUSED")
            del x
            assert fake.open == 0
        """
        result = helpers.run_python(code, init_first=False)
        helpers.assert_quiet_exit(result)
        assert result.stdout.count("REFUSED") == 2, result.stdout

    @pytest.mark.usefixtures("fresh_runtime")
    def test_import_after_reset_says_to_call_init(self):
        ti.reset()
        with pytest.raises(RuntimeError, match="ti.init"):
            ti.from_dlpack(Fake())
