"""The compilation of a series as a variant of its build, on a repository with two files."""

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

CI = Path(__file__).resolve().parents[2] / "ci"
OLD = "int old_sum(int a) {\n  int unused_of_old;\n  return a;\n}\n"


def git(tree, *arguments):
    """Its output, without anybody's settings."""
    names = ["-c", "user.name=A", "-c", "user.email=a@example.invalid", "-c", "commit.gpgSign=false"]
    command = ["git", "-C", str(tree), *names, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(name="variant")
def variant_fixture(tmp_path):
    """A function that adds files to the repository, and compiles what was added as a variant."""
    tree, database = tmp_path / "tree", tmp_path / "database"
    tree.mkdir()
    database.mkdir()
    git(tree, "init", "--quiet")
    (tree / "sum.cpp").write_text(OLD)
    git(tree, "add", ".")
    git(tree, "commit", "--quiet", "-m", "Sum")
    base = git(tree, "rev-parse", "HEAD")

    def run(files, *options, flags="", built=None):
        for name, text in files.items():
            (tree / name).write_text(text)
        git(tree, "add", ".")
        entries = [
            {"file": str(tree / name), "directory": str(tree), "command": f"g++ -Wall {flags} -o {name}.o -c {name}"}
            for name in (files if built is None else built)
        ]
        (database / "compile_commands.json").write_text(json.dumps(entries))
        command = [
            sys.executable,
            CI / "compile_variant.py",
            tree,
            database,
            "--base",
            base,
            "--name",
            "lamp",
            *options,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert not list(tree.glob("*.o"))
        return done.returncode, done.stdout + done.stderr

    return run


def test_an_error_fails_and_is_shown(variant):
    status, output = variant({"new.cpp": "int f() { return lamp; }\n", "sum.cpp": OLD + "int g();\n"})
    assert status == 1
    assert "== lamp: 1 of 2 files compile" in output and "'lamp' was not declared" in output


def test_a_file_that_the_variant_does_not_build_is_left_out(variant):
    files = {"new.cpp": "int f() { return lamp; }\n", "sum.cpp": OLD + "int g();\n"}
    assert variant(files, built=["sum.cpp"]) == (0, "== lamp: 1 of 1 files compile\n")


def test_a_variant_without_a_file_fails(variant):
    status, output = variant({"sum.cpp": OLD + "int g();\n"}, built=[])
    assert status == 1 and "0 of 0" in output


def test_only_warnings_in_lines_of_the_series_count(variant):
    added = {"sum.cpp": OLD + "int g() {\n  return 1;\n}\n"}
    assert variant(added, "--warnings-of-the-series")[0] == 0
    added = {"sum.cpp": OLD + "int g() {\n  int unused_of_new;\n  return 1;\n}\n"}
    assert variant(added)[0] == 0
    status, output = variant(added, "--warnings-of-the-series")
    assert status == 1
    assert "unused_of_new" in output and "unused_of_old" not in output


def test_another_python_replaces_the_builds(variant, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "Python.h").write_text("#define OTHER_PYTHON\n")
    own = sysconfig.get_path("include")
    files = {"new.cpp": "#include <Python.h>\n#ifndef OTHER_PYTHON\n#error the build's\n#endif\n"}
    assert variant(files, flags=f"-isystem {own}")[0] == 1
    assert variant(files, "--python-include", str(other), flags=f"-isystem {own}")[0] == 0


def test_a_file_without_python_is_no_matter_of_another_python(variant, tmp_path):
    status, output = variant({"new.cpp": "int f();\n"}, "--python-include", str(tmp_path))
    assert status == 1 and "0 of 0" in output
