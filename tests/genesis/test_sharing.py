"""What a live view means, how long it lives, and that what is remembered leaves no mark. See run_checks.py."""

import ast
from pathlib import Path

import pytest

SCRIPT = "run_checks.py"
_TREE = ast.parse((Path(__file__).resolve().parent / SCRIPT).read_text(encoding="utf-8"))
CHECKS = [node.name for node in _TREE.body if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")]


@pytest.fixture(scope="module", name="notes")
def notes_fixture(runner):
    return runner.notes(SCRIPT)


@pytest.mark.parametrize("check", CHECKS)
def test_sharing(notes, check):
    assert notes[check] == "", notes[check]
