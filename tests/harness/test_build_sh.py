"""The one entry: verbs, their help, and words that no verb takes."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# A setting of each kind, a wrong value, and what is asked for.
WRONG_SETTINGS = [
    ("bench", "QUICK=yes", "QUICK is 'yes', wanted 0 or 1, as in: QUICK=1"),
    ("bench-genesis", "KEEP=2", "KEEP is '2', wanted 0 or 1, as in: KEEP=1"),
    ("bench-genesis", "ENVS=1 many", "ENVS is 'many', wanted a whole number above 0, as in: ENVS=\"1 64\""),
    ("check-master", "BUILD=on", "BUILD is 'on', wanted 0 or 1, as in: BUILD=1"),
    ("apply", "FORCE=please", "FORCE is 'please', wanted 0 or 1, as in: FORCE=1"),
    ("genesis", "SOURCE=2", "SOURCE is '2', wanted 0 or 1, as in: SOURCE=1"),
    ("test-genesis", "FULL=all", "FULL is 'all', wanted 0 or 1, as in: FULL=1"),
    ("fuzz", "RUNS=0", "RUNS is '0', wanted a whole number above 0, as in: RUNS=200000"),
    ("soak", "CYCLES=1e6", "CYCLES is '1e6', wanted a whole number above 0, as in: CYCLES=50000"),
    ("valgrind", "ORDERS=-1", "ORDERS is '-1', wanted a whole number above 0, as in: ORDERS=12"),
    ("compare-upstream", "WORKERS=two", "WORKERS is 'two', wanted a whole number above 0, as in: WORKERS=2"),
]
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


def test_help_of_clean_removes_nothing(project):
    project.run("clean", "--help")
    assert (project.tree / "sum.txt").exists()
    project.run("clean")
    assert not project.tree.exists()


def test_the_list_names_each_verb():
    _, output = run("help")
    assert not [verb for verb in VERBS if not re.search(rf"(^|[ ,]){verb}\b", output)]


@pytest.mark.parametrize("verb", ["lint", "soak", "apply", "genesis", "check-variants", "pr"])
def test_a_word_that_the_verb_does_not_take_is_refused(verb):
    status, output = run(verb, "--quick")
    assert status == 1 and f"make {verb} takes no '--quick'" in output and "--help" in output


@pytest.mark.parametrize("verb, setting, answer", WRONG_SETTINGS)
def test_a_wrong_setting_is_told_before_any_work(verb, setting, answer):
    status, output = run(verb, setting)
    assert (status, output) == (1, f"error: {answer}\n")


def test_bench_takes_options_of_the_build_with_builds_only():
    status, output = run("bench", "--quick")
    assert status == 1 and output.startswith("error: got '--quick', wanted settings, as in: make bench QUICK=1")


def test_an_unknown_verb_is_refused():
    status, output = run("fly")
    assert status == 1 and "no verb 'fly'" in output
