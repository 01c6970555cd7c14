"""Puts the simulated CUDA driver in place before Taichi looks for one, and fails every test that makes a fault.

TI_TEST_WHEEL=fast says that the fast wheel is installed; CUDA_SIM_BUILD names the folder for builds of the driver.
"""

import os
import sys
import tempfile

import pytest

# All of this must stand before taichi is imported.
os.environ["TI_SKIP_VERSION_CHECK"] = "ON"
os.environ["ENABLE_TAICHI_HEADER_PRINT"] = "0"
os.environ.pop("CUDA_VISIBLE_DEVICES", None)
# The fake producer of tests/interop begins on the host; shared_arrays.py moves it.
os.environ["TI_TEST_ARCH"] = "cpu"
_cache = tempfile.TemporaryDirectory(prefix="ti-sim-cache-")
os.environ["TI_OFFLINE_CACHE_FILE_PATH"] = _cache.name

sys.path.insert(1, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "interop"))

import sim  # noqa: E402


def pytest_configure():
    try:
        sim.load()
    except RuntimeError as error:
        pytest.exit(str(error), returncode=2)


def pytest_unconfigure():
    _cache.cleanup()


@pytest.fixture(autouse=True)
def no_fault():
    """Each test begins with an idle device and ordinary settings, and makes no fault that it did not expect."""
    sim.restore()
    sim.clear_faults()
    yield
    sim.restore()
    seen = sim.faults()
    sim.clear_faults()
    assert not seen, f"faults: {seen}"


@pytest.fixture
def context(no_fault):  # pylint: disable=unused-argument
    """For tests without Taichi: the primary context of device 0, current on this thread."""
    from plain_calls import primary_context  # pylint: disable=C0415

    sim.cu("cuInit", 0)
    handle = primary_context(0)
    sim.cu("cuCtxSetCurrent", handle)
    before = sim.live_allocations()
    sim.clear_log()
    yield handle
    sim.cu("cuCtxSetCurrent", handle)
    sim.drain()
    for row in sim.live_allocations():
        if row not in before:
            sim.reclaim(row["ptr"])


@pytest.fixture
def cuda(no_fault):  # pylint: disable=unused-argument
    """Taichi on the simulated GPU, with nothing pending; fails where a test leaves device memory behind."""
    import helpers  # pylint: disable=C0415
    import shared_arrays  # pylint: disable=C0415

    if shared_arrays.program() is None:
        shared_arrays.init()
        shared_arrays.ask_what_is_asked_once()
    shared_arrays.settle()
    # As drivers do, and as Taichi's reading of elements takes for granted.
    sim.configure(free_synchronizes=True)
    program, before = shared_arrays.program(), sim.live_allocations()
    sim.clear_log()
    yield
    sim.restore()
    shared_arrays.settle()
    sim.configure(free_synchronizes=False)
    helpers.check_no_double_delete()
    if shared_arrays.program() is program:
        left = [row for row in sim.live_allocations() if row not in before]
        assert not left, f"left behind: {left}"


@pytest.fixture
def side():
    """A stream of another library, which nothing orders with the default one."""
    return sim.Stream(non_blocking=True)
