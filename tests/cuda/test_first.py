"""Does sharing work on the GPU at all? If these fail, the other failures say little."""

import numpy as np
import taichi as ti

import gpu as gpus
import helpers
from helpers import Fake, numbers, own_device, peek, values_of


def test_taichi_runs_on_the_gpu():
    assert ti.cfg.arch == ti.cuda
    nd = gpus.array(1)
    gpus.add(nd, 2)
    assert gpus.values(nd) == [3]


def test_an_export_names_the_gpu_and_the_memory():
    nd = gpus.array(5, 16)
    view = peek(nd.__dlpack__())
    assert nd.__dlpack_device__() == view.device == own_device()
    assert np.frombuffer(helpers.read_bytes(view.data, 64), np.int32).tolist() == [5] * 16


def test_an_import_is_the_memory_of_another():
    fake = Fake(numbers((16,), "i32"))
    nd = ti.from_dlpack(fake)
    assert peek(nd.__dlpack__()).data == fake.pointer
    gpus.add(nd, 1)
    ti.sync()
    assert (values_of(ti.from_dlpack(fake)) == numbers((16,), "i32") + 1).all()


def test_torch_and_taichi_write_one_memory(gpu, record_property):
    """No copy is made of 256 MiB: one address, writes of each side seen by the other, and no memory taken."""
    torch = gpu.torch
    nd = ti.ndarray(ti.i32, 64 << 20)
    nd.fill(1)
    before = gpu.free_memory()
    view = torch.from_dlpack(nd)
    back = ti.from_dlpack(view)
    taken = before - gpu.free_memory()
    record_property("bytes shared", 4 * nd.shape[0])
    record_property("bytes taken by both exports", taken)
    assert view.device.type == "cuda" and view.data_ptr() == peek(nd.__dlpack__()).data == peek(back.__dlpack__()).data
    assert taken < 16 << 20
    gpus.add(nd, 1)
    assert view[0].item() == view[-1].item() == 2
    view += 1
    assert nd[0] == nd[(64 << 20) - 1] == back[0] == 3


def test_taichi_and_torch_write_one_memory_of_torch(gpu):
    theirs = gpu.tensor(1)
    nd = ti.from_dlpack(theirs)
    assert peek(nd.__dlpack__()).data == theirs.data_ptr()
    gpus.add(nd, 1)
    assert (theirs == 2).all().item()
    theirs += 1
    assert gpus.values(nd) == [3]


def test_the_host_may_not_be_taken_for_the_gpu():
    """What lies on the host is refused, also if its owner says that it is on the GPU."""
    import pytest  # pylint: disable=C0415

    host = np.arange(4, dtype=np.int32)
    with pytest.raises(BufferError, match="1, 0"):
        ti.from_dlpack(host)

    class Liar:
        __cuda_array_interface__ = {**host.__array_interface__, "version": 3}

    with pytest.raises(BufferError, match="host memory"):
        ti.from_dlpack(Liar())
