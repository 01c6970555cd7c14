"""The comparison of two runs of Taichi's own tests."""

import subprocess
import sys
from pathlib import Path

import pytest

import compare_suites
import split_junit

CI = Path(__file__).resolve().parents[2] / "ci"
PASSED, FAILED, SKIPPED = "", "<failure message='it is grey'/>", "<skipped message='no lamp'/>"


def write_junit(path, **tests):
    """A file with these tests of a lamp, each given by what is inside its case."""
    path.parent.mkdir(exist_ok=True)
    cases = "".join(f'<testcase classname="lamp" name="{name}">{inside}</testcase>' for name, inside in tests.items())
    path.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")


def compare(folder, *names):
    """(status, output) of the command on the runs in released/ and patched/."""
    command = [sys.executable, str(CI / "compare_suites.py"), str(folder / "released"), str(folder / "patched"), *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(name="runs")
def runs_fixture(tmp_path):
    """A function that writes both runs of the file test_lamp."""

    def write(released, patched):
        for run, tests in (("released", released), ("patched", patched)):
            write_junit(tmp_path / run / "test_lamp.xml", **tests)
        return tmp_path

    return write


@pytest.mark.parametrize("now, word", [(FAILED, "failed"), (SKIPPED, "skipped"), (None, "absent")])
def test_test_that_passes_on_the_release_alone_is_lost(runs, now, word):
    patched = {"green": PASSED, **({} if now is None else {"red": now})}
    status, output = compare(runs({"red": PASSED, "green": PASSED}, patched), "test_lamp")
    assert status == 1
    assert f"lost: `lamp::red` passed on the release, is {word} on the patched wheel" in output
    assert "Lost: 1. Gained: 0. New on the patched wheel: 0." in output


def test_what_fails_on_both_or_is_new_is_no_loss(runs):
    released = {"red": FAILED, "green": FAILED, "blue": SKIPPED}
    patched = {"red": FAILED, "green": PASSED, "blue": SKIPPED, "white": PASSED, "black": FAILED}
    status, output = compare(runs(released, patched), "test_lamp")
    assert status == 0
    assert "Lost: 0. Gained: 1. New on the patched wheel: 1." in output
    assert "gained: `lamp::green` was failed on the release" in output


def test_test_that_wants_graphics_is_told_apart(runs):
    no_graphics = "<skipped message='GGUI Not Available'/>"
    status, output = compare(runs({"red": PASSED, "green": PASSED}, {"red": no_graphics, "green": PASSED}), "test_lamp")
    assert status == 0
    assert "patched | 1 passed, 0 failed, 1 skipped" in output
    assert "Lost: 0." in output and "no graphics: 1." in output


def test_file_without_a_result_is_told(runs):
    folder = runs({"red": PASSED}, {"red": PASSED})
    (folder / "patched" / "test_door.log").write_text("Segmentation fault")
    status, output = compare(folder, "test_lamp", "test_door")
    assert status == 2
    assert "no result" in output and "test_door.xml" in output


def test_test_that_is_there_twice_passed_only_if_it_always_did(tmp_path):
    path = tmp_path / "lamp.xml"
    cases = f'<testcase classname="lamp" name="red"/><testcase classname="lamp" name="red">{FAILED}</testcase>'
    path.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    assert compare_suites.read_outcomes(path) == {"lamp::red": "failed"}


def test_case_without_a_name_is_no_test(tmp_path):
    path = tmp_path / "lamp.xml"
    path.write_text('<testsuites><testsuite><testcase time="0"/></testsuite></testsuites>')
    assert not compare_suites.read_outcomes(path)


def split(folder, cases, *names):
    """Splits a run with these cases; the outcomes by file."""
    run = folder / "run.xml"
    run.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    split_junit.split(run, folder, [Path("tests") / f"{name}.py" for name in names])
    return [compare_suites.read_outcomes(folder / f"{name}.xml") for name in names]


def test_a_run_of_several_files_is_split_by_file(tmp_path):
    cases = (
        f'<testcase classname="python.test_lamp" name="red"/><testcase classname="python.test_lamp.Big" name="red"/>'
        f'<testcase classname="python.test_lamp_post" name="red">{FAILED}</testcase>'
    )
    lamp, post, door = split(tmp_path, cases, "test_lamp", "test_lamp_post", "test_door")
    assert lamp == {"python.test_lamp::red": "passed", "python.test_lamp.Big::red": "passed"}
    assert post == {"python.test_lamp_post::red": "failed"}
    assert not door


def test_a_file_that_cannot_be_collected_keeps_its_error(tmp_path):
    cases = '<testcase classname="" name="python.test_lamp"><error message="collection failure"/></testcase>'
    assert split(tmp_path, cases, "test_lamp") == [{"::python.test_lamp": "failed"}]


def test_progress_shows_losses_at_once(runs):
    folder = runs({"red": PASSED}, {"red": FAILED})
    status, output = compare(folder, "--one-line", "test_lamp")
    assert status == 0
    assert output == (
        "test_lamp: released 1 passed, 0 failed, 0 skipped; patched 0 passed, 1 failed, 0 skipped; LOST 1\n"
    )
