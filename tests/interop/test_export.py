"""Section 1 of the contract: `__dlpack__` and `__dlpack_device__`. One class a row of its table."""

import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import taichi as ti
from taichi._lib import core as ti_core
from taichi.lang import impl

import dl_structs as dl
import helpers
from helpers import DTYPES, Fake, Wrapped, new_ndarray, numbers, own_device, peek, set_values, take

VERSIONED = {"max_version": (1, 0)}
ELEMENTS = [(), (3,), (2, 3)]


@pytest.fixture
def nd():
    array = ti.ndarray(ti.f32, (3, 4))
    set_values(array, numbers((3, 4), "f32"))
    return array


def read_only_ndarray():
    """An ndarray imported from a producer that set READ_ONLY."""
    array = ti.from_dlpack(Fake(numbers((4,), "f32"), flags=dl.FLAG_READ_ONLY))
    assert array.read_only
    return array


class TestCapsule:
    @pytest.mark.parametrize("asked", [{}, {"max_version": None}, {"max_version": (0, 8)}, {"max_version": (0, 0)}])
    def test_is_legacy_unless_asked(self, nd, asked):
        assert peek(nd.__dlpack__(**asked)).name == dl.LEGACY

    @pytest.mark.parametrize("version", [(1, 0), (1, 1), (1, 3), (1, 99), (2, 0)])
    def test_is_versioned_when_asked(self, nd, version):
        view = peek(nd.__dlpack__(max_version=version))
        assert view.name == dl.VERSIONED
        assert view.version[0] == 1

    @helpers.needs_numpy_2_1
    def test_versioned_numpy_import_is_writable(self, nd):
        if helpers.ON_CUDA:
            assert not peek(nd.__dlpack__(**VERSIONED)).flags
            return
        assert np.from_dlpack(nd).flags.writeable


class TestFlags:
    def test_are_zero_for_an_alias(self, nd):
        assert peek(nd.__dlpack__(**VERSIONED)).flags == 0

    def test_say_is_copied_after_a_copy(self, nd):
        assert peek(nd.__dlpack__(copy=True, **VERSIONED)).flags == dl.FLAG_IS_COPIED

    def test_say_read_only_for_a_read_only_import(self):
        assert peek(read_only_ndarray().__dlpack__(**VERSIONED)).flags == dl.FLAG_READ_ONLY

    @pytest.mark.parametrize("asked", [{}, {"max_version": (0, 8)}, {"copy": False}])
    def test_read_only_has_no_legacy_capsule(self, asked):
        with pytest.raises(BufferError, match="read-only"):
            read_only_ndarray().__dlpack__(**asked)

    def test_a_copy_of_a_read_only_import_is_writable(self):
        assert peek(read_only_ndarray().__dlpack__(copy=True, **VERSIONED)).flags == dl.FLAG_IS_COPIED
        assert peek(read_only_ndarray().__dlpack__(copy=True)).name == dl.LEGACY


class TestDataAndByteOffset:
    @pytest.mark.parametrize("asked", [{}, VERSIONED])
    def test_offset_is_folded_into_data(self, asked):
        fake = Fake(numbers((8,), "f32"), shape=(5,), byte_offset=8)
        view = peek(ti.from_dlpack(fake).__dlpack__(**asked))
        assert view.data == fake.pointer and view.byte_offset == 0
        assert view.bytes() == numbers((8,), "f32")[2:7].tobytes()

    def test_byte_offset_of_an_own_array_is_zero(self, nd):
        view = peek(nd.__dlpack__())
        assert view.byte_offset == 0
        assert view.bytes() == numbers((3, 4), "f32").tobytes()

    @pytest.mark.parametrize("shape", helpers.EMPTY_SHAPES)
    @pytest.mark.parametrize("asked", [{}, VERSIONED])
    def test_data_of_a_zero_size_array_is_null(self, shape, asked):
        for copy in (None, True):
            array = ti.from_dlpack(Fake(np.zeros(shape, np.float32)), copy=copy)
            view = peek(array.__dlpack__(**asked))
            assert view.data is None and view.shape == shape

    def test_two_exports_are_one_memory(self, nd):
        assert peek(nd.__dlpack__()).data == peek(nd.__dlpack__(**VERSIONED)).data


class TestShapeAndStrides:
    @pytest.mark.parametrize("asked", [{}, VERSIONED])
    @pytest.mark.parametrize(
        "shape, strides",
        [((5,), (1,)), ((1, 77), (77, 1)), ((77, 1), (1, 1)), ((2, 3, 4), (12, 4, 1)), ((1, 1, 1), (1, 1, 1))],
    )
    def test_strides_are_filled_and_true(self, shape, strides, asked):
        view = peek(ti.ndarray(ti.f32, shape).__dlpack__(**asked))
        assert (view.shape, view.strides) == (shape, strides)

    @pytest.mark.parametrize("shape", helpers.EMPTY_SHAPES)
    def test_strides_of_a_zero_size_array_are_filled(self, shape):
        view = peek(new_ndarray("f32", shape).__dlpack__())
        assert view.shape == shape and view.strides is not None

    def test_zero_dimensions_have_no_shape(self):
        view = peek(ti.ndarray(ti.f32, ()).__dlpack__())
        assert view.ndim == 0 and view.shape == () and view.data is not None

    @pytest.mark.parametrize("element, strides", [((3,), (12, 3, 1)), ((2, 3), (24, 6, 3, 1)), ((1, 1), (4, 1, 1, 1))])
    def test_elements_are_trailing_dimensions(self, element, strides):
        view = peek(new_ndarray("f32", (2, 4), element).__dlpack__())
        assert view.shape == (2, 4) + element
        assert view.strides == strides

    @pytest.mark.parametrize("element", [(3,), (2, 3)])
    def test_zero_dimensions_of_elements_have_the_elements_shape(self, element):
        assert peek(new_ndarray("f32", (), element).__dlpack__()).shape == element


class TestDtypes:
    @pytest.mark.parametrize("asked", [{}, VERSIONED])
    @pytest.mark.parametrize("element", ELEMENTS)
    @pytest.mark.parametrize("name", DTYPES)
    def test_each_type_has_its_code_bits_and_one_lane(self, name, element, asked):
        array = new_ndarray(name, (2, 3), element)
        set_values(array, numbers((2, 3) + element, name))
        view = peek(array.__dlpack__(**asked))
        assert view.dtype == helpers.dl_type(name)
        assert view.bytes() == numbers((2, 3) + element, name).tobytes()

    def test_u1_is_bool_of_eight_bits(self):
        assert peek(ti.ndarray(ti.u1, (3,)).__dlpack__()).dtype == (dl.BOOL, 8, 1)

    @pytest.mark.parametrize(
        "dtype",
        [ti.types.quant.int(5, True), ti.types.quant.fixed(10, max_value=2), ti.types.struct(a=ti.f32, b=ti.i32)],
        ids=["quant.int", "quant.fixed", "struct"],
    )
    def test_quantised_and_custom_types_never_reach_an_export(self, dtype):
        # Taichi makes no such ndarray, so there is nothing that could be exported with wrong bytes.
        with pytest.raises(ti.TaichiRuntimeError, match="not supported as ndarray element type"):
            ti.ndarray(dtype, (3,))


class TestCopy:
    @pytest.mark.parametrize("copy", [None, False])
    @pytest.mark.parametrize("asked", [{}, VERSIONED])
    def test_none_and_false_alias(self, nd, copy, asked):
        assert peek(nd.__dlpack__(copy=copy, **asked)).data == peek(nd.__dlpack__()).data

    @pytest.mark.parametrize("asked", [{}, VERSIONED])
    @pytest.mark.parametrize("element", ELEMENTS)
    @pytest.mark.parametrize("name", DTYPES)
    def test_true_is_independent_memory(self, name, element, asked):
        array = new_ndarray(name, (2, 2), element)
        wanted = numbers((2, 2) + element, name)
        set_values(array, wanted)
        capsule = array.__dlpack__(copy=True, **asked)
        view = peek(capsule)
        assert view.data != peek(array.__dlpack__()).data
        set_values(array, np.zeros_like(wanted))
        assert view.shape == wanted.shape and view.bytes() == wanted.tobytes()

    @pytest.mark.parametrize("shape", helpers.EMPTY_SHAPES + [()])
    def test_true_works_for_zero_size_and_zero_dimensions(self, shape):
        view = peek(new_ndarray("f32", shape).__dlpack__(copy=True, **VERSIONED))
        assert view.shape == shape and view.flags == dl.FLAG_IS_COPIED

    @pytest.mark.parametrize("copy", [1, 0, "True", (), 1.0])
    def test_what_is_no_bool_is_a_type_error(self, nd, copy):
        with pytest.raises(TypeError, match="copy"):
            nd.__dlpack__(copy=copy)


class TestDlDevice:
    @pytest.mark.parametrize("copy", [None, False])
    def test_none_and_own_device_alias(self, nd, copy):
        for device in (None, own_device()):
            assert peek(nd.__dlpack__(dl_device=device, copy=copy)).data == peek(nd.__dlpack__()).data

    def test_own_device_with_copy_is_a_copy(self, nd):
        view = peek(nd.__dlpack__(dl_device=own_device(), copy=True, **VERSIONED))
        assert view.data != peek(nd.__dlpack__()).data and view.flags == dl.FLAG_IS_COPIED

    @pytest.mark.parametrize("copy", [None, True, False])
    @pytest.mark.parametrize(
        "device", [(2, 7), (1, 1), (3, 0), (4, 0), (8, 0), (10, 0), (13, 0), (0, 0), (-1, 0), (99, 0)]
    )
    def test_any_other_device_is_refused(self, nd, device, copy):
        with pytest.raises(BufferError, match=f"{device[0]}, {device[1]}"):
            nd.__dlpack__(dl_device=device, copy=copy)

    @pytest.mark.cpu_only("on CUDA that is the own device")
    @pytest.mark.parametrize("copy", [None, True, False])
    def test_cuda_is_refused_by_a_cpu_array(self, nd, copy):
        with pytest.raises(BufferError, match="2, 0"):
            nd.__dlpack__(dl_device=(2, 0), copy=copy)

    @pytest.mark.parametrize("device", ["cpu", 1, (1,), (1, 0, 0), (1.0, 0), ("cpu", 0), (1, None), ()])
    def test_what_is_no_pair_of_ints_is_a_type_error(self, nd, device):
        with pytest.raises(TypeError, match="dl_device"):
            nd.__dlpack__(dl_device=device)

    @pytest.mark.cuda_only("a CPU array is on the host already")
    @pytest.mark.parametrize("copy", [None, True])
    def test_the_host_gets_a_finished_copy_of_a_cuda_array(self, nd, copy):
        view = peek(nd.__dlpack__(dl_device=(1, 0), copy=copy, **VERSIONED))
        assert view.device == (1, 0) and view.flags == dl.FLAG_IS_COPIED
        import ctypes  # pylint: disable=C0415

        assert ctypes.string_at(view.data, 48) == numbers((3, 4), "f32").tobytes()

    @pytest.mark.cuda_only("a CPU array is on the host already")
    def test_a_host_copy_that_may_not_be_is_refused(self, nd):
        with pytest.raises(BufferError, match="copy"):
            nd.__dlpack__(dl_device=(1, 0), copy=False)


class TestMaxVersion:
    @pytest.mark.parametrize("version", ["1.0", 1, (1,), (1, 0, 0), (1.0, 0), ("1", "0"), (1, None), ()])
    def test_what_is_no_pair_of_ints_is_a_type_error(self, nd, version):
        with pytest.raises(TypeError, match="max_version"):
            nd.__dlpack__(max_version=version)


class TestStream:
    @pytest.mark.parametrize("stream", [None, -1])
    def test_none_and_minus_one_are_accepted(self, nd, stream):
        assert peek(nd.__dlpack__(stream=stream)).shape == (3, 4)

    @pytest.mark.cpu_only("on CUDA these are streams")
    @pytest.mark.parametrize("stream", [0, 1, 2, 3, -2, 12345678])
    def test_another_number_is_a_value_error_on_the_cpu(self, nd, stream):
        with pytest.raises(ValueError, match="stream"):
            nd.__dlpack__(stream=stream)

    @pytest.mark.cuda_only("the CPU has no streams")
    @pytest.mark.parametrize("stream", [1, 2])
    def test_the_named_streams_are_accepted_on_cuda(self, nd, stream):
        assert peek(nd.__dlpack__(stream=stream)).shape == (3, 4)

    @pytest.mark.cuda_only("the CPU has no streams")
    @pytest.mark.parametrize("stream", [0, -2])
    def test_zero_and_negative_streams_are_value_errors_on_cuda(self, nd, stream):
        with pytest.raises(ValueError, match="stream"):
            nd.__dlpack__(stream=stream)

    @pytest.mark.parametrize("stream", [True, False, 1.0, "1", (1,)])
    def test_what_is_no_int_is_a_type_error(self, nd, stream):
        with pytest.raises(TypeError, match="stream"):
            nd.__dlpack__(stream=stream)


class TestSignature:
    def test_arguments_are_keyword_only(self, nd):
        with pytest.raises(TypeError):
            nd.__dlpack__(None)

    def test_an_unknown_keyword_is_a_type_error(self, nd):
        with pytest.raises(TypeError):
            nd.__dlpack__(color="red")

    @pytest.mark.parametrize("element", ELEMENTS)
    def test_device_is_the_own_one(self, element):
        device = new_ndarray("f32", (2,), element).__dlpack_device__()
        assert device == own_device() and all(type(part) is int for part in device)

    def test_device_in_the_capsule_is_the_own_one(self, nd):
        assert peek(nd.__dlpack__()).device == own_device()


class TestOtherArchs:
    def test_a_program_on_one_is_refused_by_name(self, monkeypatch):
        """Of a backend that need not be there: only the program's word on its arch is another."""
        nd, runtime = ti.ndarray(ti.f32, 3), impl.get_runtime()
        elsewhere = SimpleNamespace(arch=ti_core.Arch.vulkan)
        monkeypatch.setattr(ti_core.Program, "config", lambda _: elsewhere)
        monkeypatch.setattr(runtime, "dlpack_device", None)
        for call in (nd.__dlpack__, nd.__dlpack_device__, lambda: ti.from_dlpack(Fake())):
            with pytest.raises(BufferError, match="vulkan.*x64.*cuda"):
                call()
        assert not hasattr(nd, "__array_interface__") and not hasattr(nd, "__cuda_array_interface__")

    def test_are_refused_by_name(self):
        code = """
            os.environ["TI_OFFLINE_CACHE"] = "0"
            try:
                ti.init(arch=ti.vulkan, enable_fallback=False, log_level=ti.ERROR)
                nd = ti.ndarray(ti.f32, 3)
            except Exception as error:
                print("NO VULKAN:", type(error).__name__)
                sys.exit(0)
            for call in (nd.__dlpack__, nd.__dlpack_device__):
                try:
                    call()
                except BufferError as error:
                    assert "vulkan" in str(error) and "cuda" in str(error) and "x64" in str(error), error
                else:
                    sys.exit("not refused")
            assert not hasattr(nd, "__array_interface__") and not hasattr(nd, "__cuda_array_interface__")
            print("REFUSED")
        """
        result = helpers.run_python(code)
        if "NO VULKAN" in result.stdout:
            pytest.skip("no arch beside the CPU and CUDA runs here: this Taichi or machine has no Vulkan")
        assert result.returncode == 0 and "REFUSED" in result.stdout, result.stdout + result.stderr


class TestCapsuleLife:
    @pytest.mark.parametrize("asked", [{}, VERSIONED])
    def test_an_unconsumed_capsule_frees_everything(self, asked):
        fake = Fake(numbers((4,), "f32"))
        capsule = ti.from_dlpack(fake).__dlpack__(**asked)
        helpers.collect()
        assert fake.open == 1, "the capsule does not keep the memory"
        del capsule
        helpers.collect()
        assert fake.open == 0, "the memory was not given back"

    @pytest.mark.parametrize("asked", [{}, VERSIONED])
    def test_a_consumed_capsule_does_nothing(self, asked):
        fake = Fake(numbers((4,), "f32"))
        capsule = ti.from_dlpack(fake).__dlpack__(**asked)
        view = take(capsule)
        del capsule
        helpers.collect()
        assert fake.open == 1, "the capsule gave up what its consumer owns"
        assert view.bytes() == numbers((4,), "f32").tobytes()
        view.delete()
        helpers.collect()
        assert fake.open == 0

    @pytest.mark.parametrize("asked", [{}, VERSIONED])
    def test_an_own_array_outlives_its_python_object(self, asked):
        array = ti.ndarray(ti.f32, (4,))
        set_values(array, numbers((4,), "f32"))
        alive = weakref.ref(array)
        view = take(array.__dlpack__(**asked))
        del array
        helpers.collect()
        assert alive() is None, "an export owns the memory, not the Python object"
        others = [ti.ndarray(ti.f32, (4,)) for _ in range(8)]
        for other in others:
            set_values(other, numbers((4,), "f32", start=50))
        assert view.bytes() == numbers((4,), "f32").tobytes()
        view.delete()


class TestDeleter:
    @pytest.mark.parametrize("asked", [{}, VERSIONED])
    def test_runs_on_this_thread_without_the_gil(self, asked):
        fake = Fake(numbers((4,), "f32"))
        view = take(ti.from_dlpack(fake).__dlpack__(**asked))
        view.delete()
        helpers.collect()
        assert (fake.made, fake.deleted) == (1, 1)

    @pytest.mark.parametrize("asked", [{}, VERSIONED])
    def test_runs_on_a_thread_that_is_not_pythons(self, asked):
        fake = Fake(numbers((4,), "f32"))
        view = take(ti.from_dlpack(fake).__dlpack__(**asked))
        view.delete_on_foreign_thread()
        helpers.collect()
        assert (fake.made, fake.deleted) == (1, 1)

    @pytest.mark.parametrize("asked", [{}, VERSIONED])
    @pytest.mark.filterwarnings("ignore")
    @pytest.mark.usefixtures("fresh_runtime")
    def test_runs_after_reset(self, asked):
        view = take(ti.ndarray(ti.f32, (4,)).__dlpack__(**asked))
        ti.reset()
        view.delete()
        helpers.init()
        again = take(ti.ndarray(ti.f32, (4,)).__dlpack__(**asked))
        helpers.init()
        again.delete_on_foreign_thread()

    @pytest.mark.parametrize("asked", [{}, VERSIONED])
    def test_gives_the_memory_back(self, asked):
        def round_trip():
            view = take(ti.ndarray(ti.f32, (1 << 20,)).__dlpack__(**asked))
            view.delete()

        assert helpers.growth(round_trip, 50) < 16 << 20  # of 200 MiB

    def test_one_of_several_exports_leaves_the_others_alone(self, nd):
        first, second = take(nd.__dlpack__()), take(nd.__dlpack__(**VERSIONED))
        first.delete()
        del nd
        helpers.collect()
        assert second.bytes() == numbers((3, 4), "f32").tobytes()
        second.delete()


class TestErrors:
    BAD = [
        ({"dl_device": (99, 0)}, BufferError),
        ({"dl_device": "cpu"}, TypeError),
        ({"max_version": 1}, TypeError),
        ({"copy": "no"}, TypeError),
        ({"stream": "one"}, TypeError),
        ({"stream": 0}, ValueError),
    ]

    @pytest.mark.parametrize("asked, error", BAD)
    def test_leave_nothing_held(self, asked, error):
        fake = Fake(numbers((4,), "f32"))
        array = ti.from_dlpack(fake)
        for _ in range(3):
            with pytest.raises(error):
                array.__dlpack__(**asked)
        del array
        helpers.collect()
        assert fake.open == 0, "a failed export holds the memory"

    def test_a_refusal_passes_through_torch_after_one_call(self, torch):
        # torch calls four times for a TypeError, once for a BufferError.
        calls = []

        class Counting:
            def __dlpack_device__(self):
                return own_device()

            def __dlpack__(self, **asked):
                calls.append(asked)
                asked.pop("dl_device", None)
                return ti_array.__dlpack__(dl_device=(99, 0), **asked)

        ti_array = ti.ndarray(ti.f32, (3,))
        with pytest.raises(BufferError):
            torch.from_dlpack(Counting())
        assert len(calls) == 1

    @pytest.mark.filterwarnings("ignore")
    @pytest.mark.usefixtures("fresh_runtime")
    def test_a_stale_array_is_refused_after_reset(self):
        array = ti.ndarray(ti.f32, (3,))
        helpers.init()
        for call in (array.__dlpack__, lambda: array.__dlpack__(copy=True)):
            with pytest.raises((BufferError, RuntimeError), match="reset|init"):
                call()

    def test_the_wrapped_capsule_is_the_one_consumed(self, torch):
        capsule = ti.ndarray(ti.f32, (3,)).__dlpack__()
        torch.from_dlpack(Wrapped(capsule))
        assert dl.capsule_name(capsule) == dl.USED_LEGACY
