"""What only a real GPU can show. Wheel, backend and peers are found as in tests/interop."""

import importlib.util
import sys
from pathlib import Path

import pytest

_INTEROP = Path(__file__).resolve().parents[1] / "interop"


def _load_interop():
    """The conftest of tests/interop, under a name of its own: two of the name conftest cannot be imported."""
    sys.path.insert(0, str(_INTEROP))
    spec = importlib.util.spec_from_file_location("interop_conftest", _INTEROP / "conftest.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


interop = _load_interop()

# Hooks and fixtures that are the same here.
pytest_configure = interop.pytest_configure
pytest_unconfigure = interop.pytest_unconfigure
pytest_report_header = interop.pytest_report_header
pytest_terminal_summary = interop.pytest_terminal_summary
arch = interop.arch
wheel = interop.wheel
runtime = interop.runtime
fresh_runtime = interop.fresh_runtime
peer = interop.peer
torch = interop.torch


def pytest_runtest_setup(item):
    """On the CPU there is nothing to see here."""
    if interop.os.environ["TI_TEST_ARCH"] != "cuda":
        pytest.skip("backend cpu: these tests need a GPU")
    interop.pytest_runtest_setup(item)


@pytest.fixture
def gpu(torch):  # pylint: disable=W0613
    """Slow kernels, raw streams and the free memory of the device; needs torch for the slow kernels."""
    import gpu as module  # pylint: disable=C0415

    return module.Gpu(torch)
