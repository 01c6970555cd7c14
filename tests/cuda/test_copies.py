"""Copies that were asked for, and memory that is neither plain device memory nor plain host memory."""

import ctypes

import numpy as np
import pytest
import taichi as ti

import dl_structs as dl
import gpu as gpus
import helpers
from helpers import DTYPES, Fake, assert_aliases, new_ndarray, numbers, own_device, peek, set_values, values_of


class TestHostCopy:
    @pytest.mark.parametrize("element", [(), (3,), (2, 3)], ids=str)
    @pytest.mark.parametrize("name", DTYPES)
    def test_has_the_values_and_nothing_in_common(self, name, element):
        nd = new_ndarray(name, (4,), element)
        wanted = numbers((4,) + element, name)
        set_values(nd, wanted)
        view = helpers.take(nd.__dlpack__(dl_device=(dl.CPU, 0), max_version=(1, 0)))
        set_values(nd, np.zeros_like(wanted))
        assert view.device == (dl.CPU, 0) and view.flags == dl.FLAG_IS_COPIED and view.shape == wanted.shape
        assert host_values(view, wanted.dtype).tolist() == wanted.reshape(-1).tolist()
        view.delete()

    @helpers.needs_numpy_2_1
    def test_numpy_asks_for_it(self):
        nd = gpus.array(1)
        gpus.put(nd, 6)
        array = np.from_dlpack(nd, device="cpu")
        assert set(array.tolist()) == {6}

    def test_of_nothing(self):
        view = helpers.take(new_ndarray("f32", (2, 0, 3)).__dlpack__(dl_device=(dl.CPU, 0)))
        assert view.shape == (2, 0, 3)
        view.delete()

    def test_is_refused_when_no_copy_may_be_made(self):
        with pytest.raises(BufferError, match="copy"):
            gpus.array(1).__dlpack__(dl_device=(dl.CPU, 0), copy=False)


def host_values(view, dtype):
    """What lies where a tensor on the host points to."""
    return np.frombuffer(ctypes.string_at(view.data, view.count * dtype.itemsize), dtype)


class TestDeviceCopy:
    @pytest.mark.parametrize("asked", [{}, {"max_version": (1, 0)}], ids=["legacy", "versioned"])
    def test_is_independent(self, asked):
        nd = gpus.array(3)
        view = helpers.take(nd.__dlpack__(copy=True, **asked))
        gpus.put(nd, 4)
        ti.sync()
        assert view.device == own_device() and view.data != helpers.Place(nd).pointer
        assert set(np.frombuffer(view.bytes(), np.int32).tolist()) == {3}
        view.delete()

    def test_of_an_import_is_independent(self, gpu):
        theirs = gpu.tensor(3)
        nd = ti.from_dlpack(theirs, copy=True)
        theirs.fill_(4)
        assert gpus.values(nd) == [3]


STRIDED = {
    "transposed": lambda x: x.T,
    "columns": lambda x: x[:, 1:5],
    "every other row": lambda x: x[::2],
    "every third column": lambda x: x[:, ::3],
    "one column": lambda x: x[:, 2],
    "broadcast": lambda x: x[:1].expand(5, x.shape[1]),
}
# torch does little with unsigned types of more than a byte.
TORCH_TYPES = [name for name in DTYPES if name not in ("u16", "u32", "u64")]


class TestStrided:
    """A strided array is refused; with copy=True a kernel packs it, on the device."""

    @pytest.mark.parametrize("case", STRIDED)
    def test_is_refused(self, gpu, case):
        theirs = STRIDED[case](gpu.tensor(1, 48).reshape(6, 8))
        with pytest.raises(BufferError, match="strides"):
            ti.from_dlpack(theirs)

    @pytest.mark.parametrize("name", TORCH_TYPES)
    @pytest.mark.parametrize("case", STRIDED)
    def test_is_packed(self, torch, case, name):
        base = torch.from_numpy(numbers((6, 8), name)).to("cuda")
        theirs = STRIDED[case](base)
        nd = ti.from_dlpack(theirs, copy=True)
        assert nd.shape == tuple(theirs.shape) and nd.dtype == helpers.ti_type(name) and not nd.read_only
        assert (values_of(nd) == theirs.cpu().numpy()).all()
        assert peek(nd.__dlpack__()).strides == helpers.compact_strides(nd.shape)
        base.zero_()
        assert (values_of(nd) == numbers_of(STRIDED[case], torch, name)).all(), "the copy is not independent"

    def test_elements_are_packed(self, torch):
        base = torch.arange(5 * 3 * 2, dtype=torch.float32, device="cuda").reshape(5, 3, 2)
        theirs = base.transpose(1, 2)
        nd = ti.from_dlpack(theirs, dtype=ti.types.matrix(2, 3, ti.f32), copy=True)
        assert nd.shape == (5,) and (values_of(nd) == theirs.cpu().numpy()).all()

    def test_is_packed_after_what_its_stream_wrote(self, gpu):
        torch, stream = gpu.torch, gpu.side_stream()
        theirs = gpu.tensor(1, 64).reshape(8, 8).T
        ti.from_dlpack(theirs, copy=True)
        with torch.cuda.stream(stream):
            gpu.sleep(stream, 100)
            theirs.fill_(2)
            nd = ti.from_dlpack(theirs, copy=True)
        assert gpus.values(nd) == [2]

    def test_a_large_one_is_packed(self, torch):
        theirs = torch.arange(1 << 24, dtype=torch.int32, device="cuda").reshape(4096, 4096).T
        nd = ti.from_dlpack(theirs, copy=True)
        assert torch.equal(torch.from_dlpack(nd), theirs)


def numbers_of(view, torch, name):
    """What a view of the numbers holds, found on the host."""
    return view(torch.from_numpy(numbers((6, 8), name))).numpy()


class TestManaged:
    def fake(self, claimed):
        fake = Fake(np.zeros(16, np.int32), device=(claimed, 0))
        fake.memory = gpus.Managed(numbers((16,), "i32"))
        return fake

    @pytest.mark.parametrize("claimed", [dl.CUDA, dl.CUDA_MANAGED], ids=["as device memory", "as managed memory"])
    def test_is_shared(self, claimed):
        fake = self.fake(claimed)
        nd = ti.from_dlpack(fake)
        assert helpers.Place(nd).pointer == fake.memory.pointer
        gpus.add(nd, 5)
        ti.sync()
        assert (fake.memory.on_host(np.int32) == numbers((16,), "i32") + 5).all()
        del nd
        helpers.check_released(fake)

    def test_of_cupy_is_shared(self, gpu):  # pylint: disable=W0613
        cupy = pytest.importorskip("cupy", reason="cupy is not installed: pip install cupy-cuda13x")
        with cupy.cuda.using_allocator(cupy.cuda.malloc_managed):
            theirs = cupy.arange(16, dtype=cupy.int32)
        cupy.cuda.Device().synchronize()
        nd = ti.from_dlpack(theirs)
        gpus.add(nd, 5)
        ti.sync()
        assert theirs.get().tolist() == list(range(5, 21))
        assert_aliases(nd, theirs)


class TestPinned:
    def test_is_refused_where_taichi_works_on_the_gpu(self):
        fake = Fake(np.zeros(16, np.int32), device=(dl.CUDA_HOST, 0))
        fake.memory = gpus.Pinned(numbers((16,), "i32"))
        with pytest.raises(BufferError, match="3, 0"):
            ti.from_dlpack(fake)
        helpers.check_released(fake)

    def test_is_refused_if_it_claims_to_be_device_memory(self):
        fake = Fake(np.zeros(16, np.int32), device=(dl.CUDA, 0))
        fake.memory = gpus.Pinned(numbers((16,), "i32"))
        with pytest.raises(BufferError, match="pinned host memory"):
            ti.from_dlpack(fake)
        helpers.check_released(fake)

    def test_of_torch_is_shared_where_taichi_works_on_the_cpu(self, torch):  # pylint: disable=W0613
        code = """
            import torch
            ti.init(arch=ti.cpu, log_level=ti.ERROR)
            theirs = torch.arange(16, dtype=torch.int32).pin_memory()
            assert theirs.is_pinned()
            nd = ti.from_dlpack(theirs)
            nd[3] = 77
            assert theirs[3] == 77 and nd[15] == 15
            print("SHARED")
        """
        helpers.assert_quiet_exit(helpers.run_python(code), "SHARED")
