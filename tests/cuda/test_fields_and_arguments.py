"""On the GPU: dense fields as views, and arrays of others as kernel arguments."""

import numpy as np
import pytest
import taichi as ti

import gpu as gpus
from helpers import assert_quiet_exit, numbers, run_python

FIELDS = pytest.mark.needs_core("fields are shared on CUDA by the series' core only")


@ti.kernel
def put_in_field(x: ti.template(), value: ti.i32):
    for i in x:
        x[i] = value


@ti.kernel
def copy_any(source: ti.types.ndarray(), target: ti.types.ndarray()):
    for I in ti.grouped(source):
        target[I] = source[I]


@ti.kernel
def add_any(x: ti.types.ndarray(), value: ti.i32):
    for I in ti.grouped(x):
        x[I] += value


class Forward:
    """A library of nobody's: its arrays speak DLPack and are torch's tensors in truth."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack__(self, **asked):
        return self.tensor.__dlpack__(**asked)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


@FIELDS
class TestFields:
    def test_a_view_is_the_fields_memory(self, gpu):
        field = ti.field(ti.i32, shape=(16, 32))
        view = gpu.torch.from_dlpack(field)
        assert view.device.type == "cuda" and tuple(view.shape) == (16, 32)
        field[3, 5] = 7
        assert view[3, 5].item() == 7
        view[4, 6] = 9
        gpu.torch.cuda.synchronize()
        assert field[4, 6] == 9

    def test_views_of_vectors_have_trailing_dimensions(self, gpu):
        field = ti.Vector.field(3, ti.f32, shape=(8,))
        view = gpu.torch.from_dlpack(field)
        assert tuple(view.shape) == (8, 3)
        view[:, 1] = 5
        gpu.torch.cuda.synchronize()
        assert field[7][1] == 5 and field[7][0] == 0

    @pytest.mark.parametrize("wait", [True, False], ids=["with the wait", "without it"])
    def test_a_side_stream_waits_for_taichi(self, gpu, wait):
        field, stream = ti.field(ti.i32, shape=1024), gpu.side_stream()
        put_in_field(field, 1)
        with gpu.torch.cuda.stream(stream):
            gpu.torch.from_dlpack(field).clone()
        gpu.torch.cuda.synchronize()
        gpu.sleep(gpu.default, 100)
        put_in_field(field, 2)
        with gpu.torch.cuda.stream(stream):
            view = gpu.torch.from_dlpack(field) if wait else gpu.take(field, stream=-1)
            seen = view.clone()
        stream.synchronize()
        assert seen.unique().tolist() == ([2] if wait else [1])

    def test_a_view_outlives_the_program(self, torch):  # pylint: disable=W0613
        code = """
            import torch
            field = ti.field(ti.i32, shape=4096)
            field.fill(3)
            view = torch.from_dlpack(field)
            helpers.init()
            other = ti.field(ti.i32, shape=4096)
            other.fill(9)
            ti.sync()
            assert bool((view == 3).all().item()) and other[0] == 9
            print("STILL THERE")
        """
        assert_quiet_exit(run_python(code), "STILL THERE")


class TestArguments:
    def test_a_kernel_writes_anybodys_array(self, gpu):
        theirs = gpu.tensor(1)
        add_any(Forward(theirs), 4)
        assert theirs.unique().tolist() == [5]

    def test_a_kernel_takes_an_array_interface(self, gpu):
        theirs = gpu.tensor(1)
        add_any(gpus.Interface(theirs, stream=None, version=3), 4)
        assert theirs.unique().tolist() == [5]

    def test_a_kernel_waits_for_the_stream_that_wrote(self, gpu):
        theirs, target, stream = gpu.tensor(1), gpus.array(0), gpu.side_stream()
        copy_any(Forward(theirs), target)
        gpu.torch.cuda.synchronize()
        gpu.sleep(stream, 100)
        with gpu.torch.cuda.stream(stream):
            theirs.fill_(2)
            copy_any(Forward(theirs), target)
        assert gpus.values(target) == [2]

    def test_a_strided_array_is_refused(self, gpu):
        with pytest.raises(BufferError, match="strides"):
            add_any(Forward(gpu.tensor(1, 64).reshape(8, 8).T), 1)

    def test_an_array_of_the_host_is_refused(self, gpu):
        with pytest.raises(BufferError, match="1, 0"):
            add_any(Forward(gpu.torch.zeros(4, dtype=gpu.torch.int32)), 1)

    @pytest.mark.parametrize("who", ["torch", "jax", "warp", "tvm_ffi", "cupy"])
    def test_a_kernel_reads_the_arrays_of(self, peer, who):
        library = peer(who)
        theirs, target = library.make(numbers((4, 6), "i32")), ti.ndarray(ti.i32, (4, 6))
        copy_any(library.producer(theirs), target)
        assert (target.to_numpy() == numbers((4, 6), "i32")).all()

    def test_a_loop_of_launches_leaves_the_array_alone(self, gpu):
        theirs = gpu.tensor(0)
        for _ in range(1000):
            add_any(Forward(theirs), 1)
        assert np.unique(theirs.cpu().numpy()).tolist() == [1000]
