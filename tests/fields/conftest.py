"""The field tests find their wheel and their backend as tests/interop does."""

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
pytest_runtest_setup = interop.pytest_runtest_setup
pytest_terminal_summary = interop.pytest_terminal_summary
arch = interop.arch
wheel = interop.wheel
peer = interop.peer
torch = interop.torch
runtime = interop.runtime
fresh_runtime = interop.fresh_runtime


@pytest.fixture
def room(runtime):  # pylint: disable=W0613
    """A program in which every field is placed, and with room for the nodes of a test."""
    import helpers  # pylint: disable=C0415
    import layouts  # pylint: disable=C0415
    from taichi.lang import impl  # pylint: disable=C0415

    state = impl.get_runtime()
    # ti.root is always being built.
    unfinished = state.global_vars or len(state.unfinalized_fields_builder) > 1
    if unfinished or layouts.is_full():
        helpers.init()
