"""A pytest plugin: upstream's tests that cannot pass, each with its reason.

`tests/upstream_exceptions.txt` has a line for each: `WHEEL ACTION PATTERN REASON`.
WHEEL is fast, source or `*`; ACTION is xfail (which must fail) or skip (where it
would take the process with it); PATTERN is matched against pytest's node id as a shell
pattern; REASON is the rest of the line.
"""

import fnmatch
import os
from pathlib import Path

import pytest

FILE = Path(__file__).resolve().parents[1] / "tests" / "upstream_exceptions.txt"
ACTIONS = {"xfail": lambda reason: pytest.mark.xfail(reason=reason, strict=True), "skip": pytest.mark.skip}


def parse(text, wheel):
    """The (action, pattern, reason) of each line that concerns `wheel`."""
    exceptions = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        words = line.split(None, 3)
        if len(words) != 4 or words[1] not in ACTIONS:
            raise pytest.UsageError(f"{FILE.name}: got '{line}', wanted 'WHEEL xfail|skip PATTERN REASON'")
        if words[0] in ("*", wheel):
            exceptions.append(tuple(words[1:]))
    return exceptions


def matches(nodeid, pattern):
    """Brackets in a node id are its parameters, not a set of characters."""
    return fnmatch.fnmatchcase(nodeid, pattern.replace("[", "[[]"))


def pytest_collection_modifyitems(items):
    """Marks what the file names; a line that names nothing is an error."""
    for action, pattern, reason in parse(FILE.read_text(encoding="utf-8"), os.environ["TI_TEST_WHEEL"]):
        named = [item for item in items if matches(item.nodeid, pattern)]
        if not named:
            raise pytest.UsageError(f"{FILE.name}: '{pattern}' matches no test; remove the line")
        for item in named:
            item.add_marker(ACTIONS[action](reason=reason))
