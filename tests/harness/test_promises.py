"""The table of promises in tests/README.md names tests that are there."""

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
NAMED = re.compile(r"`(\w+/test_\w+\.py)((?:::\w+)*)`")


def names_in(path):
    """The functions and classes of a file, those in classes as Class::function."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names.update(f"{node.name}::{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef))
    return names


def promises(text):
    """(promise, test) for each row of the tables of tests."""
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return [(row[0].strip(), found) for row in rows for found in NAMED.findall(row[-1])]


PROMISES = promises((TESTS / "README.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize("promise, test", PROMISES, ids=[promise for promise, _ in PROMISES])
def test_a_promise_names_a_test_that_is_there(promise, test):
    file, name = test
    assert (TESTS / file).is_file(), f"'{promise}': there is no {file}"
    assert not name or name[2:] in names_in(TESTS / file), f"'{promise}': {file} has no {name[2:]}"


def test_every_row_names_a_test():
    text = (TESTS / "README.md").read_text(encoding="utf-8").partition("## What users are promised")[2]
    rows = [line for line in text.splitlines() if line.startswith("|") and "---" not in line]
    unnamed = [row for row in rows if not NAMED.search(row) and not row.startswith("| promise")]
    assert len(rows) > 30 and not unnamed


def test_a_missing_test_is_noticed():
    ((_, (file, name)),) = promises("| a lamp is red | `harness/test_promises.py::test_nowhere` |")
    assert name[2:] not in names_in(TESTS / file)
