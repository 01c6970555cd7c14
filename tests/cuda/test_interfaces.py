"""The CUDA array interface both ways, with Numba and CuPy where they are installed, and with nobody's help."""

import numpy as np
import pytest
import taichi as ti

import gpu as gpus
import helpers
from helpers import DTYPES, Fake, element_type, new_ndarray, numbers, set_values, values_of

# The consumers and producers beside DLPack: the package, and how to get a module that sees the GPU.
NUMBA, CUPY = "numba", "cupy"
each_library = pytest.mark.parametrize("library", [NUMBA, CUPY], indirect=True)


class Numba:
    """numba.cuda, whose arrays have the interface only."""

    def __init__(self):
        self.module = pytest.importorskip("numba.cuda", reason="numba is not installed: pip install numba-cuda")
        if not self.module.is_available():
            pytest.skip("numba sees no GPU here")

    def take(self, x):
        return self.module.as_cuda_array(x)

    def make(self, array):
        return self.module.to_device(array)

    def on_host(self, x):
        return x.copy_to_host()

    def write(self, x, array):
        x.copy_to_device(array)


class Cupy:
    """CuPy, through the interface alone."""

    def __init__(self):
        self.module = pytest.importorskip("cupy", reason="cupy is not installed: pip install cupy-cuda13x")
        try:
            self.module.cuda.runtime.getDeviceCount()
        except self.module.cuda.runtime.CUDARuntimeError as error:
            pytest.skip(f"cupy sees no GPU here: {error}")

    def take(self, x):
        return self.module.asarray(gpus.Interface(x))

    def make(self, array):
        return self.module.asarray(array)

    def on_host(self, x):
        return x.get()

    def write(self, x, array):
        x.set(array)


@pytest.fixture(name="library")
def library_fixture(request):
    return {NUMBA: Numba, CUPY: Cupy}[request.param]()


def pointer_of(x):
    return x.__cuda_array_interface__["data"][0]


@each_library
class TestLibraries:
    @pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 3, 4)], ids=str)
    @pytest.mark.parametrize("name", DTYPES)
    def test_they_take_ours(self, library, name, shape):
        nd = new_ndarray(name, shape)
        set_values(nd, numbers(shape, name))
        theirs = library.take(nd)
        assert pointer_of(theirs) == pointer_of(nd) == helpers.Place(nd).pointer
        assert tuple(theirs.shape) == shape and theirs.dtype == helpers.np_type(name)
        assert (library.on_host(theirs) == numbers(shape, name)).all()
        library.write(theirs, numbers(shape, name, start=20))
        assert (values_of(nd) == numbers(shape, name, start=20)).all()

    @pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 3, 4)], ids=str)
    @pytest.mark.parametrize("name", DTYPES)
    def test_we_take_theirs(self, library, name, shape):
        theirs = library.make(numbers(shape, name))
        nd = ti.from_dlpack(gpus.Interface(theirs))
        assert helpers.Place(nd).pointer == pointer_of(theirs) and nd.shape == shape
        assert nd.dtype == helpers.ti_type(name) and (values_of(nd) == numbers(shape, name)).all()
        set_values(nd, numbers(shape, name, start=20))
        assert (library.on_host(theirs) == numbers(shape, name, start=20)).all()

    def test_kernels_of_ours_are_seen_by_them(self, library):
        nd = gpus.array(1)
        theirs = library.take(nd)
        gpus.add(nd, 4)
        assert np.unique(library.on_host(theirs)).tolist() == [5]

    def test_what_they_write_is_seen_by_kernels(self, library):
        theirs = library.make(np.full(1024, 3, np.int32))
        nd, target = ti.from_dlpack(gpus.Interface(theirs)), gpus.array(0)
        library.write(theirs, np.full(1024, 8, np.int32))
        gpus.copy(nd, target)
        assert gpus.values(target) == [8]

    def test_vectors_and_matrices_are_trailing_dimensions(self, library):
        for element in ((3,), (2, 3)):
            nd = new_ndarray("f32", (5,), element)
            set_values(nd, numbers((5,) + element, "f32"))
            theirs = library.take(nd)
            assert tuple(theirs.shape) == (5,) + element
            back = ti.from_dlpack(gpus.Interface(theirs), dtype=element_type("f32", element))
            assert back.shape == (5,) and back.element_shape == element
            assert helpers.Place(back).pointer == helpers.Place(nd).pointer

    def test_a_strided_array_of_theirs_is_refused_or_packed(self, library):
        theirs = library.make(numbers((4, 6), "i32"))[:, ::2]
        with pytest.raises(BufferError, match="strides"):
            ti.from_dlpack(gpus.Interface(theirs))
        packed = ti.from_dlpack(gpus.Interface(theirs), copy=True)
        assert (values_of(packed) == numbers((4, 6), "i32")[:, ::2]).all()


@pytest.mark.parametrize("library", [CUPY], indirect=True)
class TestCupyStreams:
    """CuPy names its current stream in the interface."""

    def test_taichi_waits_for_it(self, library, gpu):
        cupy, target = library.module, gpus.array(0)
        theirs = cupy.ones(1024, cupy.int32)
        gpus.copy(ti.from_dlpack(gpus.Interface(theirs)), target)
        stream = cupy.cuda.Stream(non_blocking=True)
        cupy.cuda.Device().synchronize()
        with stream:
            gpu.sleep(gpu.torch.cuda.ExternalStream(stream.ptr), 100)
            theirs.fill(2)
            nd = ti.from_dlpack(gpus.Interface(theirs))
        gpus.copy(nd, target)
        assert gpus.values(target) == [2]

    def test_it_waits_for_taichi(self, library, gpu):
        cupy, nd = library.module, gpus.array(1)
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            cupy.asarray(gpus.Interface(nd)).copy()
            stream.synchronize()
            gpu.sleep(gpu.default, 100)
            gpus.put(nd, 2)
            seen = cupy.asarray(gpus.Interface(nd)).copy()
            stream.synchronize()
            assert cupy.unique(seen).tolist() == [2]


class TestAlone:
    """What needs no library: the interface as a dictionary."""

    def test_it_describes_the_memory(self):
        nd = new_ndarray("f64", (2, 3))
        interface = nd.__cuda_array_interface__
        assert interface["data"] == (helpers.Place(nd).pointer, False) and interface["shape"] == (2, 3)
        assert (interface["typestr"], interface["version"], interface["stream"]) == ("<f8", 3, 1)

    def test_our_own_is_taken_by_us(self):
        nd = gpus.array(7)
        back = ti.from_dlpack(gpus.Interface(nd))
        gpus.add(back, 1)
        assert gpus.values(nd) == [8]

    def test_a_stream_without_a_meaning_is_refused(self):
        with pytest.raises(ValueError, match="stream"):
            ti.from_dlpack(gpus.Interface(gpus.array(1), stream=0))

    @pytest.mark.parametrize("stream", [None, 1, 2])
    def test_the_default_streams_are_taken(self, stream):
        assert gpus.values(ti.from_dlpack(gpus.Interface(gpus.array(7), stream=stream))) == [7]

    def test_memory_stays_as_long_as_the_describing_object(self):
        fake = Fake(numbers((16,), "i32"))
        nd = ti.from_dlpack(gpus.Interface(ti.from_dlpack(fake)))
        ti.sync()
        assert fake.open == 1 and (values_of(nd) == numbers((16,), "i32")).all()
        del nd
        helpers.check_released(fake)
