"""What belongs to an ended program raises when it is used. It neither crashes nor reaches into the next program."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

RUNNER = Path(__file__).with_name("stale_uses.py")
TIMEOUT = 1800


def run(*cases):
    """What went wrong, by case: a pair of use and end."""
    result = subprocess.run(
        [sys.executable, str(RUNNER), *cases], capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    assert result.returncode == 0 and not result.stderr, f"{RUNNER.name} failed\n{result.stdout}\n{result.stderr}"
    rows = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    return {tuple(row["case"]): row["wrong"] for row in rows}


@pytest.fixture(scope="module")
def outcomes():
    return run()


def uses():
    """The names of all uses, read without Taichi."""
    text = RUNNER.read_text(encoding="utf-8")
    table = text[text.index("USES = {") : text.index("\n}\n", text.index("USES = {"))]
    return [line.split('"')[1] for line in table.splitlines() if line.startswith('    "')]


@pytest.mark.parametrize("end", ["reset", "init"])
@pytest.mark.parametrize("use", uses())
def test_use_after_the_end_raises(outcomes, use, end):
    wrong = outcomes[use, end]
    again = shlex.join([sys.executable, str(RUNNER), f"{use},{end}"])
    assert wrong is None, f"exit code {wrong['exit_code']} (negative: a signal); again with: {again}\n{wrong['stderr']}"


def test_every_use_ran(outcomes):
    assert sorted(outcomes) == sorted((use, end) for use in uses() for end in ("reset", "init"))


def test_a_wrong_use_is_reported():
    (wrong,) = run("no such use,reset").values()
    assert wrong["exit_code"] == 1 and "KeyError" in wrong["stderr"]
