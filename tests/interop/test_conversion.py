"""`to_numpy` and `to_torch` of ndarrays, with `copy=` (contract, section 5). Those of fields: tests/fields."""

import numpy as np
import pytest
import taichi as ti

import helpers
from helpers import DTYPES, ON_CUDA, Fake, assert_aliases, assert_independent, new_ndarray, numbers, set_values

ELEMENTS = {"scalar": (), "vector": (3,), "matrix": (2, 3)}
each_element = pytest.mark.parametrize("element", ELEMENTS.values(), ids=ELEMENTS)
each_type = pytest.mark.parametrize("name", DTYPES)


def filled(name="f32", shape=(4,), element=()):
    nd = new_ndarray(name, shape, element)
    set_values(nd, numbers(shape + element, name))
    return nd


@pytest.mark.cpu_only("NumPy reads host memory")
class TestToNumpyOnTheCpu:
    @helpers.needs_numpy_2_1
    @each_element
    @each_type
    @pytest.mark.parametrize("copy", [False, None])
    def test_aliases(self, name, element, copy):
        nd = filled(name, (4,), element)
        array = nd.to_numpy(copy=copy)
        assert (array == numbers((4,) + element, name)).all()
        assert_aliases(nd, array)

    @each_element
    def test_copies_by_default(self, element):
        nd = filled(element=element)
        for array in (nd.to_numpy(), nd.to_numpy(copy=True)):
            assert (array == numbers((4,) + element, "f32")).all()
            assert_independent(nd, array)

    def test_alias_of_a_read_only_import_is_read_only(self):
        nd = ti.from_dlpack(Fake(numbers((4,), "f32"), flags=1, capsule="versioned"))
        assert not nd.to_numpy(copy=False).flags.writeable and nd.to_numpy(copy=True).flags.writeable


@pytest.mark.cuda_only("on the CPU NumPy shares the memory")
class TestToNumpyOnCuda:
    def test_alias_is_refused_and_none_copies(self):
        nd = filled()
        with pytest.raises(BufferError, match="GPU"):
            nd.to_numpy(copy=False)
        assert nd.to_numpy(copy=None).tolist() == [1, 2, 3, 4]


class TestToTorch:
    @each_element
    @pytest.mark.parametrize("copy", [False, None])
    def test_aliases(self, torch, element, copy):  # pylint: disable=W0613
        nd = filled(element=element)
        assert_aliases(nd, nd.to_torch(copy=copy))

    @each_type
    def test_keeps_the_element_type(self, torch, name):  # pylint: disable=W0613
        nd = filled(name)
        assert_aliases(nd, nd.to_torch(copy=False))

    @each_element
    def test_copies_by_default(self, torch, element):  # pylint: disable=W0613
        nd = filled(element=element)
        for tensor in (nd.to_torch(), nd.to_torch(copy=True)):
            assert tuple(tensor.shape) == (4,) + element
            assert (tensor.cpu().numpy() == numbers((4,) + element, "f32")).all()
            assert_independent(nd, tensor)

    def test_takes_its_own_device(self, torch):
        device = torch.device("cuda" if ON_CUDA else "cpu")
        nd = filled()
        assert_aliases(nd, nd.to_torch(device, copy=False))
        assert nd.to_torch(device).device.type == device.type

    def test_alias_on_another_device_is_refused_and_none_copies(self, torch):  # pylint: disable=W0613
        nd, other = filled(), "cpu" if ON_CUDA else "meta"
        with pytest.raises(BufferError, match=f"{other}.*copy=None"):
            nd.to_torch(other, copy=False)
        assert nd.to_torch(other, copy=None).device.type == other

    def test_alias_outlives_the_program(self, torch):  # pylint: disable=W0613
        if ON_CUDA:
            pytest.skip("tests/cuda/test_outlive.py has it")
        tensor = filled().to_torch(copy=False)
        helpers.init()
        assert tensor.tolist() == [1, 2, 3, 4]


class TestBoth:
    @pytest.mark.parametrize("convert", ["to_numpy", "to_torch"])
    @pytest.mark.parametrize("copy", [0, "no", np.True_])
    def test_copy_that_is_no_bool_is_a_type_error(self, torch, convert, copy):  # pylint: disable=W0613
        with pytest.raises(TypeError, match="copy"):
            getattr(filled(), convert)(copy=copy)

    @pytest.mark.parametrize("convert", ["to_numpy", "to_torch"])
    def test_copy_is_keyword_only(self, torch, convert):  # pylint: disable=W0613
        with pytest.raises(TypeError):
            getattr(filled(), convert)(None, False)
