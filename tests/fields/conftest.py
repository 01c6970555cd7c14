"""The field tests find their wheel and their backend as tests/interop does."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "interop"))

from suite import *  # noqa: E402, F403  pylint: disable=C0413, W0401, W0614


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
