"""Which GPU an array is on: ordinals as the driver counts them, with CUDA_VISIBLE_DEVICES and with two GPUs."""

import pytest

import processes

BEGIN = """
import pytest
import dl_structs as dl
import helpers
import shared_arrays as s
import taichi as ti
s.init()
nd = s.ndarray(3)
"""


@pytest.mark.parametrize("visible", [None, "0", "1", "1,0", "2,1", "0,1,2"])
def test_taichi_is_on_the_first_visible_gpu_which_is_number_zero(visible):
    code = """
    assert nd.__dlpack_device__() == (dl.CUDA, 0)
    view = s.consume(nd)
    assert view.device == (dl.CUDA, 0)
    (row,) = [row for row in sim.live_allocations() if row["ptr"] == view.data]
    assert row["device"] == 0
    x = ti.from_dlpack(s.Producer(s.Memory(4)))
    assert s.values_of(x) == [4] * s.COUNT
    view.delete()
    """
    environment = {"CUDA_SIM_DEVICES": "3"}
    if visible is not None:
        environment["CUDA_VISIBLE_DEVICES"] = visible
    processes.run_python(BEGIN + processes.dedent(code), **environment).check()


def test_the_other_gpu_s_memory_is_refused():
    code = """
    for producer in (s.Producer(s.Memory(device=1), device=(dl.CUDA, 1)), s.Producer(s.Memory(device=1))):
        with pytest.raises(BufferError, match="1.*0"):
            ti.from_dlpack(producer)
    for claimed in (1, 7):
        with pytest.raises(BufferError, match=f"{claimed}"):
            nd.__dlpack__(dl_device=(dl.CUDA, claimed))
    """
    processes.run_python(BEGIN + processes.dedent(code), CUDA_VISIBLE_DEVICES="1,0").check()


def test_the_other_gpu_s_managed_memory_is_refused():
    """Taichi could read it, but its producer orders a stream of the other GPU."""
    code = """
    writer = sim.Stream(non_blocking=True, device=1)
    producer = s.Producer(s.Memory(0, "managed", device=1), writer=writer, device=(dl.CUDA_MANAGED, 1))
    with pytest.raises(BufferError, match="managed memory.*1.*0"):
        ti.from_dlpack(producer)
    own = ti.from_dlpack(s.Producer(s.Memory(4, "managed"), device=(dl.CUDA_MANAGED, 0)))
    assert s.values_of(own) == [4] * s.COUNT
    """
    processes.run_python(BEGIN + processes.dedent(code)).check()


def test_a_program_that_works_on_the_other_gpu_meanwhile():
    """The context of the caller is another GPU's all the time, and stays."""
    code = """
    with s.context_of(1) as other:
        context = ctypes.c_void_p()
        side = sim.Stream(non_blocking=True, device=0)
        for action in (
            lambda: s.consume(nd, stream=side.handle).delete(),
            lambda: s.consume(nd, stream=2).delete(),
            lambda: s.consume(nd, dl_device=(dl.CPU, 0)).delete(),
            lambda: ti.from_dlpack(s.Producer()),
            lambda: ti.from_dlpack(s.InterfaceProducer(stream=side.handle)),
        ):
            action()
            sim.cu("cuCtxGetCurrent", ctypes.byref(context))
            assert context.value == other
    """
    processes.run_python(BEGIN + processes.dedent(code)).check()


def test_no_gpu_that_is_visible():
    code = """
    import taichi as ti
    with sim_raises():
        ti.init(arch=ti.cuda, enable_fallback=False, log_level=ti.CRITICAL)
    """
    prelude = """
    import contextlib
    @contextlib.contextmanager
    def sim_raises():
        try:
            yield
        except RuntimeError as error:
            assert "CUDA_ERROR_NO_DEVICE" in str(error), error
        else:
            raise AssertionError("ti.init found a GPU")
    """
    done = processes.run_python(processes.dedent(prelude) + processes.dedent(code), CUDA_VISIBLE_DEVICES="")
    assert done.code == 0, done.errors
