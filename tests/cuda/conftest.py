"""What only a real GPU can show. Wheel, backend and peers are found as in tests/interop."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "interop"))

import suite  # noqa: E402  pylint: disable=C0413
from suite import (  # noqa: E402, F401  pylint: disable=C0413, W0611
    arch,
    fresh_runtime,
    peer,
    pytest_configure,
    pytest_report_header,
    pytest_terminal_summary,
    pytest_unconfigure,
    runtime,
    torch,
    wheel,
)


def pytest_runtest_setup(item):
    """On the CPU there is nothing to see here."""
    if os.environ["TI_TEST_ARCH"] != "cuda":
        pytest.skip("backend cpu: these tests need a GPU")
    suite.pytest_runtest_setup(item)


@pytest.fixture
def gpu(torch):  # pylint: disable=W0613
    """Slow kernels, raw streams and the free memory of the device; needs torch for the slow kernels."""
    import gpu as module  # pylint: disable=C0415

    return module.Gpu(torch)
