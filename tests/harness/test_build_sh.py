"""The one entry: verbs, their help, and words that no verb takes."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
VERBS = re.search(r"VERBS := ((?:.*\\\n)*.*)", (ROOT / "Makefile").read_text()).group(1).replace("\\\n", " ").split()


def run(*words):
    """(status, output)."""
    done = subprocess.run(["bash", str(ROOT / "build.sh"), *words], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("verb", sorted(set(VERBS) - {"wheel-fast"}))
def test_each_verb_has_a_help_that_names_it(verb):
    status, output = run(verb, "--help")
    assert status == 0
    assert verb == "clean" or re.search(rf"(make|build.sh) ([\w, -]*, )?{verb}\b", output), output
    assert (ROOT / "ci").is_dir() and "removed" not in output


def test_the_list_names_each_verb():
    _, output = run("help")
    assert not [verb for verb in VERBS if not re.search(rf"(^|[ ,]){verb}\b", output)]


@pytest.mark.parametrize("verb", ["lint", "soak", "apply", "genesis", "check-variants", "pr"])
def test_a_word_that_the_verb_does_not_take_is_refused(verb):
    status, output = run(verb, "--quick")
    assert status == 1 and f"make {verb} takes no '--quick'" in output and "--help" in output


def test_an_unknown_verb_is_refused():
    status, output = run("fly")
    assert status == 1 and "no verb 'fly'" in output
