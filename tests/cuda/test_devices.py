"""Which GPU an array is on: the number is the driver's, and what is on another GPU is refused."""

import os

import pytest
import taichi as ti

import gpu as gpus
import helpers

DESCRIBE = """
    import torch
    nd = ti.ndarray(ti.i32, 16)
    nd.fill(3)
    view = torch.from_dlpack(nd)
    assert nd.__dlpack_device__() == (2, 0) and view.device.index == 0, (nd.__dlpack_device__(), view.device)
    theirs = torch.full((16,), 4, dtype=torch.int32, device="cuda:0")
    assert ti.from_dlpack(theirs)[15] == 4 and view.sum().item() == 48
    properties = torch.cuda.get_device_properties(0)
    print("DEVICE", getattr(properties, "uuid", properties))
"""


def visible(text, code=DESCRIBE):
    """Runs code in a process that sees these GPUs; returns its result."""
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = text
    try:
        return helpers.run_python(code)
    finally:
        if before is None:
            del os.environ["CUDA_VISIBLE_DEVICES"]
        else:
            os.environ["CUDA_VISIBLE_DEVICES"] = before


def seen_devices():
    """The names of all GPUs that this process may see, as CUDA_VISIBLE_DEVICES has them."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    return listed.split(",") if listed else None


@pytest.fixture(name="two")
def two_fixture(torch):
    """The names of two GPUs."""
    count = torch.cuda.device_count()
    if count < 2:
        pytest.skip(f"needs two GPUs, this process sees {count}")
    return (seen_devices() or ["0", "1"])[:2]


def test_the_number_is_the_drivers(torch):
    nd = gpus.array(1)
    assert nd.__dlpack_device__() == (2, 0) == tuple(map(int, torch.from_dlpack(nd).__dlpack_device__()))


def test_a_gpu_that_is_named_is_number_zero(torch):  # pylint: disable=W0613
    result = visible((seen_devices() or ["0"])[0])
    helpers.assert_quiet_exit(result, "DEVICE")


def test_reordered_gpus_are_found(torch, two):  # pylint: disable=W0613
    results = [visible(text) for text in (",".join(two), ",".join(reversed(two)))]
    for result in results:
        helpers.assert_quiet_exit(result, "DEVICE")
    assert results[0].stdout != results[1].stdout


class TestTwoGpus:
    def test_a_tensor_on_the_other_is_refused(self, torch, two):  # pylint: disable=W0613
        with torch.cuda.device(1):
            theirs = torch.zeros(16, dtype=torch.int32, device="cuda:1")
            with pytest.raises(BufferError, match="(?s)2, 1.*2, 0"):
                ti.from_dlpack(theirs)

    def test_memory_of_the_other_that_claims_to_be_here_is_refused(self, torch, two):  # pylint: disable=W0613
        theirs = torch.zeros(16, dtype=torch.int32, device="cuda:1")
        with pytest.raises(BufferError, match="device 1"):
            ti.from_dlpack(gpus.Interface(theirs, stream=None, version=3))

    def test_an_export_works_while_torch_is_on_the_other(self, torch, two):  # pylint: disable=W0613
        nd = gpus.array(5)
        with torch.cuda.device(1):
            view = torch.from_dlpack(nd)
            assert torch.cuda.current_device() == 1
        assert view.device.index == 0 and view.unique().tolist() == [5]

    def test_an_export_to_the_other_is_refused(self, torch, two):  # pylint: disable=W0613
        with pytest.raises(BufferError, match="2, 1"):
            gpus.array(1).__dlpack__(dl_device=(2, 1))

    def test_a_side_stream_of_the_own_gpu_waits_while_torch_is_on_the_other(self, gpu, two):  # pylint: disable=W0613
        nd, stream = gpus.array(1), gpu.side_stream()
        gpu.sleep(gpu.default, 100)
        gpus.put(nd, 2)
        with gpu.torch.cuda.device(1), gpu.torch.cuda.stream(stream):
            seen = gpu.torch.from_dlpack(nd).clone()
        stream.synchronize()
        assert seen.unique().tolist() == [2]
