"""The small tools of the harness: summary, exceptions, the prebuilt LLVM's download."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import upstream_exceptions

CI = Path(__file__).resolve().parents[2] / "ci"

JUNIT = """<testsuites><testsuite>
<testcase classname="lamp" name="test_red"/>
<testcase classname="lamp" name="test_green"><failure message="it is grey">...</failure></testcase>
<testcase classname="lamp" name="test_blue"><skipped message="no blue
 lamp here"/></testcase>
</testsuite></testsuites>"""


def sum_up(tmp_path, *suites):
    """Runs the summary as `make test` does."""
    command = [sys.executable, str(CI / "summary.py"), str(tmp_path), "--arch", "cpu", *suites]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_summary_counts_and_says_why(tmp_path):
    (tmp_path / "lamps.xml").write_text(JUNIT)
    done = sum_up(tmp_path, "lamps=1")
    assert done.returncode == 1
    assert "1 passed, 1 failed, 1 skipped" in done.stdout
    assert "skipped 1: no blue lamp here" in done.stdout
    assert "failed: lamp::test_green" in done.stdout


@pytest.mark.parametrize("status, tests, good", [(0, 1, True), (0, 0, False), (5, 0, False), (139, 1, False)])
def test_summary_is_good_only_if_something_passed(tmp_path, status, tests, good):
    cases = '<testcase classname="lamp" name="test_red"/>' * tests
    (tmp_path / "lamps.xml").write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    assert (sum_up(tmp_path, f"lamps={status}").returncode == 0) is good


def test_summary_notices_a_suite_that_left_no_file(tmp_path):
    done = sum_up(tmp_path, "lamps=134")
    assert done.returncode == 1
    assert "pytest ended with status 134" in done.stdout


def test_exception_concerns_its_wheel_only():
    text = "# note\n\nfast xfail test_lamp.py::test_red it is grey\n* skip test_door.py::* it is shut\n"
    door = ("skip", "test_door.py::*", "it is shut")
    assert upstream_exceptions.parse(text, "source") == [door]
    assert upstream_exceptions.parse(text, "fast") == [("xfail", "test_lamp.py::test_red", "it is grey"), door]


@pytest.mark.parametrize("line", ["fast xfail test_lamp.py", "fast ignore test_lamp.py it is grey"])
def test_exception_without_a_reason_is_refused(line):
    with pytest.raises(pytest.UsageError, match="wanted"):
        upstream_exceptions.parse(line, "fast")


def test_exception_matches_parameters_literally():
    assert upstream_exceptions.matches("test_lamp.py::test_red[arch=x64]", "test_lamp.py::test_red[arch=*]")
    assert not upstream_exceptions.matches("test_lamp.py::test_redx", "test_lamp.py::test_red[xyz]")


@pytest.fixture(name="fetch_llvm")
def fetch_llvm_fixture(tmp_path):
    """A function that packs files into an archive and unpacks them as LLVM."""

    def fetch(files):
        with zipfile.ZipFile(tmp_path / "llvm.zip", "w") as archive:
            for name, text in files.items():
                archive.writestr(name, text)
        command = [sys.executable, str(CI / "prebuilt_llvm.py"), (tmp_path / "llvm.zip").as_uri(), str(tmp_path / "to")]
        return subprocess.run(command, capture_output=True, text=True, check=False), tmp_path / "to"

    return fetch


def test_llvm_is_unpacked_without_its_top_folder(fetch_llvm):
    done, folder = fetch_llvm({"llvm-15/lib/cmake/LLVMConfig.cmake": "here"})
    assert done.returncode == 0, done.stderr
    assert (folder / "lib" / "cmake" / "LLVMConfig.cmake").read_text() == "here"
    assert sorted(path.name for path in folder.parent.iterdir()) == ["llvm.zip", "to"]


def test_archive_that_reaches_outside_leaves_nothing(fetch_llvm):
    done, folder = fetch_llvm({"llvm-15/a": "here", "llvm-15/../../b": "there"})
    assert done.returncode == 1
    assert "a path outside itself" in done.stderr
    assert [path.name for path in folder.parent.iterdir()] == ["llvm.zip"]


def test_machine_without_a_gpu_gets_one_line():
    done = subprocess.run([sys.executable, str(CI / "has_gpu.py")], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        pytest.skip("this machine has a GPU")
    assert done.stderr.count("\n") == 1
    assert "make test-cpu" in done.stderr
