"""Section 3 of the contract: `__array_interface__` on the CPU, `__cuda_array_interface__` on CUDA."""

import numpy as np
import pytest
import taichi as ti

import dl_structs as dl
import helpers
from helpers import DTYPES, Fake, assert_aliases, new_ndarray, numbers, peek, set_values

ELEMENTS = [(), (3,), (2, 3)]
ON_CPU = pytest.mark.cpu_only("device memory has no __array_interface__")
ON_CUDA = pytest.mark.cuda_only("host memory has no __cuda_array_interface__")


def interface_of(nd):
    return nd.__cuda_array_interface__ if helpers.ON_CUDA else nd.__array_interface__


class TestBoth:
    @pytest.mark.parametrize("element", ELEMENTS)
    @pytest.mark.parametrize("name", DTYPES)
    def test_shape_typestr_data_strides_version(self, name, element):
        nd = new_ndarray(name, (2, 5), element)
        interface = interface_of(nd)
        assert interface["shape"] == (2, 5) + element
        assert interface["typestr"] == helpers.np_type(name).str
        assert interface["data"] == (peek(nd.__dlpack__()).data, False)
        assert interface.get("strides") is None
        assert interface["version"] == 3

    def test_only_the_one_of_the_backend_exists(self):
        nd = ti.ndarray(ti.f32, 3)
        assert hasattr(nd, "__array_interface__") is not helpers.ON_CUDA
        assert hasattr(nd, "__cuda_array_interface__") is helpers.ON_CUDA

    @pytest.mark.parametrize("name", ["__array_interface__", "__cuda_array_interface__"])
    @pytest.mark.usefixtures("fresh_runtime")
    def test_is_gone_after_reset(self, name):
        nd = ti.ndarray(ti.f32, 3)
        assert interface_of(nd)
        ti.reset()
        assert not hasattr(nd, name)

    def test_read_only_is_said(self):
        nd = ti.from_dlpack(Fake(numbers((4,), "f32"), flags=dl.FLAG_READ_ONLY))
        assert interface_of(nd)["data"][1] is True

    @pytest.mark.parametrize("shape", helpers.EMPTY_SHAPES)
    def test_zero_size_is_described(self, shape):
        assert interface_of(new_ndarray("f32", shape))["shape"] == shape

    def test_dictionaries_own_nothing(self):
        fake = Fake(numbers((4,), "f32"))
        nd = ti.from_dlpack(fake)
        interface = interface_of(nd)
        del nd
        helpers.collect()
        assert fake.open == 0, f"{interface} keeps the memory"


@ON_CPU
class TestCpu:
    @pytest.mark.parametrize("element", ELEMENTS)
    @pytest.mark.parametrize("shape", helpers.SHAPES)
    @pytest.mark.parametrize("name", DTYPES)
    def test_asarray_aliases(self, name, shape, element):
        nd = new_ndarray(name, shape, element)
        set_values(nd, numbers(shape + element, name))
        view = np.asarray(nd)
        assert (view == numbers(shape + element, name)).all()
        assert_aliases(nd, view)

    @pytest.mark.parametrize("shape", helpers.EMPTY_SHAPES)
    def test_asarray_of_zero_size(self, shape):
        view = np.asarray(new_ndarray("i16", shape))
        assert view.shape == shape and view.dtype == np.int16

    def test_asarray_of_a_read_only_import_is_read_only(self):
        nd = ti.from_dlpack(Fake(numbers((4,), "f32"), flags=dl.FLAG_READ_ONLY))
        assert not np.asarray(nd).flags.writeable

    def test_asarray_keeps_a_temporary_alive(self):
        fake = Fake(numbers((4,), "f32"))
        view = np.asarray(ti.from_dlpack(fake))
        helpers.collect()
        assert fake.open == 1 and (view == numbers((4,), "f32")).all()
        del view
        helpers.collect()
        assert fake.open == 0

    def test_asarray_of_an_own_temporary(self):
        view = np.asarray(ti.ndarray(ti.f32, (1000,)))
        others = [ti.ndarray(ti.f32, (1000,)) for _ in range(8)]
        for other in others:
            other.fill(7)
        helpers.collect()
        assert not view.any()

    def test_memory_stays_valid_across_reset(self):
        code = """
            nd = ti.ndarray(ti.f32, (4096,))
            nd.fill(3)
            view = np.asarray(nd)
            interface = nd.__array_interface__
            ti.reset()
            helpers.init()
            other = ti.ndarray(ti.f32, (4096,))
            other.fill(9)
            assert (view == 3).all(), view
            view[:] = 5
            assert other[0] == 9 and helpers.read_bytes(interface["data"][0], 4) == np.float32(5).tobytes()
            print("STILL THERE")
        """
        helpers.assert_quiet_exit(helpers.run_python(code), "STILL THERE")


@ON_CUDA
class TestCuda:
    def test_stream_is_the_legacy_default_stream(self):
        assert ti.ndarray(ti.f32, 3).__cuda_array_interface__["stream"] == 1

    def test_strides_are_none(self):
        assert ti.ndarray(ti.f32, 3).__cuda_array_interface__["strides"] is None

    @pytest.mark.parametrize("shape", helpers.EMPTY_SHAPES)
    def test_zero_size_has_pointer_zero(self, shape):
        assert new_ndarray("f32", shape).__cuda_array_interface__["data"][0] == 0
