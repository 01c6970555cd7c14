"""Who waits for whom (contract, section 7), with a slow kernel in front so that a missing wait is seen.

Each rule has a twin in which the wait is taken out, with stream=-1: it must see the old values. Otherwise the slow
kernel hides nothing, and the tests of the rule prove nothing.
"""

import ctypes
import time

import numpy as np
import pytest
import taichi as ti

import gpu as gpus
import helpers

SLOW_MS = 100
# No host that waits for the slow kernel gets by in this time.
PROMPT_MS = 50
PROVES_NOTHING = "the old values were not seen although nothing waited: the tests of this file prove nothing here"


def milliseconds(action):
    """(result, time on the host) of a call."""
    start = time.perf_counter()
    result = action()
    return result, (time.perf_counter() - start) * 1000


def write_slowly(gpu, nd, value):
    """Taichi writes, in a while; nothing waits for it."""
    gpu.sleep(gpu.default, SLOW_MS)
    gpus.put(nd, value)


def warm(gpu, nd):
    """All that is used later was used before: compiling and loading synchronise."""
    stream = gpu.side_stream()
    gpus.put(nd, 0)
    with gpu.torch.cuda.stream(stream):
        view = gpu.torch.from_dlpack(nd)
        view.clone().fill_(1)
        gpus.copy(ti.from_dlpack(view), nd)
    gpus.add(nd, 1)
    gpu.torch.cuda.synchronize()


@pytest.fixture(name="nd")
def nd_fixture(gpu):
    nd = gpus.array(1)
    warm(gpu, nd)
    gpus.put(nd, 1)
    ti.sync()
    return nd


def test_a_launch_does_not_wait(gpu, nd, record_property):
    """Not a rule of sharing, but all tests here stand on it: Taichi's launches do not wait for what is in front."""
    gpu.sleep(gpu.default, SLOW_MS)
    _, took = milliseconds(lambda: gpus.put(nd, 2))
    record_property("milliseconds of a launch behind a kernel of 100 ms", round(took, 3))
    assert took < PROMPT_MS
    assert gpus.values(nd) == [2]


class TestTaichiWrote:
    def read_on_side_stream(self, gpu, take):
        """What a side stream of torch's sees through `take`, called in it."""
        stream = gpu.side_stream()
        with gpu.torch.cuda.stream(stream):
            seen = take().clone()
        stream.synchronize()
        return seen.unique().tolist()

    def test_a_side_stream_sees_it(self, gpu, nd):
        write_slowly(gpu, nd, 2)
        assert self.read_on_side_stream(gpu, lambda: gpu.torch.from_dlpack(nd)) == [2]

    @pytest.mark.parametrize("versioned", [{}, {"max_version": (1, 0)}], ids=["legacy", "versioned"])
    def test_a_side_stream_sees_it_through_a_capsule(self, gpu, nd, versioned):
        write_slowly(gpu, nd, 2)

        def take():
            stream = gpu.torch.cuda.current_stream().cuda_stream
            return gpu.torch.utils.dlpack.from_dlpack(nd.__dlpack__(stream=stream, **versioned))

        assert self.read_on_side_stream(gpu, take) == [2]

    def test_without_the_wait_it_does_not(self, gpu, nd):
        write_slowly(gpu, nd, 2)
        assert self.read_on_side_stream(gpu, lambda: gpu.take(nd, stream=-1)) == [1], PROVES_NOTHING
        assert gpus.values(nd) == [2]

    def test_a_side_stream_sees_it_after_sync(self, gpu, nd):
        view = gpu.take(nd, stream=-1)
        write_slowly(gpu, nd, 2)
        ti.sync()
        assert self.read_on_side_stream(gpu, lambda: view) == [2]

    def test_an_old_view_needs_a_new_export(self, gpu, nd):
        """The view is the same memory; what orders it is the export."""
        view = gpu.torch.from_dlpack(nd)
        write_slowly(gpu, nd, 2)

        def take():
            gpu.torch.from_dlpack(nd)
            return view

        assert self.read_on_side_stream(gpu, take) == [2]

    def test_the_default_stream_sees_it(self, gpu, nd):
        view = gpu.torch.from_dlpack(nd)
        write_slowly(gpu, nd, 2)
        assert view.clone().unique().tolist() == [2]

    @pytest.mark.parametrize("stream", [None, 1], ids=str)
    def test_the_default_stream_needs_no_wait(self, gpu, nd, stream):
        write_slowly(gpu, nd, 2)
        assert gpu.take(nd, stream=stream).clone().unique().tolist() == [2]

    def test_the_per_thread_default_stream_sees_it(self, nd, gpu):
        # This stream waits for the legacy one by itself, so there is no twin without the wait.
        target = gpus.array(0)
        write_slowly(gpu, nd, 2)
        view = helpers.take(nd.__dlpack__(stream=gpus.PER_THREAD))
        gpus.copy_on_stream(gpus.PER_THREAD, helpers.Place(target).pointer, view.data, 4096)
        gpus.synchronize_stream(gpus.PER_THREAD)
        assert gpus.values(target) == [2]
        view.delete()

    def test_every_one_of_many_streams_sees_it(self, gpu, nd):
        streams = [gpu.side_stream() for _ in range(8)]
        write_slowly(gpu, nd, 2)
        seen = []
        for stream in streams:
            with gpu.torch.cuda.stream(stream):
                seen.append(gpu.torch.from_dlpack(nd).clone())
        gpu.torch.cuda.synchronize()
        assert [one.unique().tolist() for one in seen] == [[2]] * 8

    def test_the_host_does_not_wait(self, gpu, nd, record_property):
        stream = gpu.side_stream()
        write_slowly(gpu, nd, 2)
        with gpu.torch.cuda.stream(stream):
            view, took = milliseconds(lambda: gpu.torch.from_dlpack(nd))
            view.clone()
        pending = not stream.query()
        record_property("milliseconds of an export behind a kernel of 100 ms", round(took, 3))
        assert pending and took < PROMPT_MS

    def test_a_copy_on_the_host_waits(self, gpu, nd):
        write_slowly(gpu, nd, 2)
        view = helpers.take(nd.__dlpack__(dl_device=(1, 0)))
        assert set(np.frombuffer(ctypes.string_at(view.data, 4096), np.int32)) == {2}
        view.delete()


class TestTorchWrote:
    def taichi_sees(self, gpu, take):
        """What a Taichi kernel sees of a tensor that a side stream writes to, in a while; `take` imports it there."""
        theirs, target, stream = gpu.tensor(1), gpus.array(0), gpu.side_stream()
        gpu.sleep(stream, SLOW_MS)
        with gpu.torch.cuda.stream(stream):
            theirs.fill_(2)
            nd = take(theirs)
        gpus.copy(nd, target)
        return gpus.values(target)

    def test_taichi_sees_it(self, gpu, nd):  # pylint: disable=W0613
        assert self.taichi_sees(gpu, ti.from_dlpack) == [2]

    def test_without_the_wait_it_does_not(self, gpu, nd):  # pylint: disable=W0613
        seen = self.taichi_sees(gpu, lambda x: ti.from_dlpack(x.__dlpack__(stream=-1, max_version=(1, 0))))
        gpu.torch.cuda.synchronize()
        assert seen == [1], PROVES_NOTHING

    def test_taichi_sees_it_after_the_stream_is_synchronised(self, gpu, nd):  # pylint: disable=W0613
        def take(theirs):
            imported = ti.from_dlpack(theirs.__dlpack__(stream=-1, max_version=(1, 0)))
            gpu.torch.cuda.current_stream().synchronize()
            return imported

        assert self.taichi_sees(gpu, take) == [2]

    def test_an_old_import_needs_a_new_one(self, gpu, nd):  # pylint: disable=W0613
        """The ndarray is the same memory; what orders it is the import."""
        held = []

        def take(theirs):
            held.append(ti.from_dlpack(theirs.__dlpack__(stream=-1, max_version=(1, 0))))
            ti.from_dlpack(theirs)
            return held[0]

        assert self.taichi_sees(gpu, take) == [2]

    def test_taichi_sees_what_the_default_stream_wrote(self, gpu, nd):
        theirs = gpu.tensor(1)
        imported = ti.from_dlpack(theirs)
        gpu.sleep(gpu.default, SLOW_MS)
        theirs.fill_(2)
        gpus.copy(imported, nd)
        assert gpus.values(nd) == [2]

    @pytest.mark.parametrize("wait", [True, False], ids=["with the stream", "without it"])
    def test_the_stream_of_an_array_interface_is_waited_for(self, gpu, nd, wait):
        # torch's own interface names no stream: it is put in here, as CuPy and Numba do.
        def take(theirs):
            stream = gpu.torch.cuda.current_stream().cuda_stream if wait else None
            return ti.from_dlpack(gpus.Interface(theirs, stream=stream, version=3))

        seen = self.taichi_sees(gpu, take)
        gpu.torch.cuda.synchronize()
        assert seen == ([2] if wait else [1]), None if wait else PROVES_NOTHING

    def test_the_host_does_not_wait(self, gpu, nd, record_property):  # pylint: disable=W0613
        theirs, stream = gpu.tensor(1), gpu.side_stream()
        gpu.sleep(stream, SLOW_MS)
        with gpu.torch.cuda.stream(stream):
            theirs.fill_(2)
            imported, took = milliseconds(lambda: ti.from_dlpack(theirs))
        pending = not stream.query()
        record_property("milliseconds of an import behind a kernel of 100 ms", round(took, 3))
        assert pending and took < PROMPT_MS and imported.shape == (1024,)


class TestChains:
    """torch writes on one stream, Taichi works on it, torch reads on another."""

    @pytest.mark.parametrize("target", ["default", "side", "the same side"])
    @pytest.mark.parametrize("source", ["default", "side"])
    def test_every_pair_of_streams_is_ordered(self, gpu, nd, source, target):  # pylint: disable=W0613
        first = gpu.default if source == "default" else gpu.side_stream()
        last = {"default": gpu.default, "side": gpu.side_stream(), "the same side": first}[target]
        theirs = gpu.tensor(1)
        gpu.sleep(first, SLOW_MS)
        with gpu.torch.cuda.stream(first):
            theirs.fill_(10)
            imported = ti.from_dlpack(theirs)
        gpu.sleep(gpu.default, SLOW_MS)
        gpus.add(imported, 5)
        with gpu.torch.cuda.stream(last):
            seen = gpu.torch.from_dlpack(imported).clone()
        last.synchronize()
        assert seen.unique().tolist() == [15]


class TestMemoryInUse:
    """Memory that somebody let go of is not used again before the GPU is done with it."""

    def test_of_torch_while_taichi_reads_it(self, gpu, nd):
        torch, stream = gpu.torch, gpu.side_stream()
        with torch.cuda.stream(stream):
            theirs = torch.full((1024,), 2, dtype=torch.int32, device="cuda")
            imported = ti.from_dlpack(theirs)
            address = theirs.data_ptr()
            gpu.sleep(gpu.default, SLOW_MS)
            gpus.copy(imported, nd)
            del theirs, imported
            # torch gives a freed block to the next tensor of the same stream and size.
            later = [torch.full((1024,), 9, dtype=torch.int32, device="cuda") for _ in range(4)]
        assert address not in [one.data_ptr() for one in later], "torch has the memory back, and Taichi still reads it"
        assert gpus.values(nd) == [2]

    def test_of_torch_comes_back_once_taichi_is_done(self, gpu, nd):
        torch, stream = gpu.torch, gpu.side_stream()
        with torch.cuda.stream(stream):
            theirs = torch.full((1024,), 2, dtype=torch.int32, device="cuda")
            address = theirs.data_ptr()
            imported = ti.from_dlpack(theirs)
            gpus.copy(imported, nd)
            del theirs, imported
            ti.sync()
            later = torch.full((1024,), 9, dtype=torch.int32, device="cuda")
        assert later.data_ptr() == address, "torch did not get its memory back"

    def test_of_taichi_while_torch_reads_it(self, gpu, nd):  # pylint: disable=W0613
        torch, stream = gpu.torch, gpu.side_stream()
        target = gpu.tensor(0, 1 << 20)
        mine = gpus.array(2, 1 << 20)
        with torch.cuda.stream(stream):
            view = torch.from_dlpack(mine)
            gpu.sleep(stream, SLOW_MS)
            target.copy_(view)
        del mine, view
        others = [gpus.array(9, 1 << 20) for _ in range(4)]
        stream.synchronize()
        assert target.unique().tolist() == [2] and len(others) == 4
