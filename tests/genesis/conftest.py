"""Runs scenes in processes of their own, patched and as released."""

import functools
import hashlib
import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent
FULL = os.environ.get("GENESIS_FULL", "") not in ("", "0")


def pytest_collection_modifyitems(items):
    """The short form leaves out what takes minutes."""
    for item in items:
        if item.get_closest_marker("full") and not FULL:
            item.add_marker(pytest.mark.skip(reason="takes minutes; it runs with FULL=1"))


def pytest_configure(config):
    """Declares the marker."""
    config.addinivalue_line("markers", "full: takes minutes, runs with FULL=1")


@functools.lru_cache(maxsize=None)
def core_of(python):
    """Part of the digest of Taichi's compiled core. The kernels that one core compiled are not for another."""
    code = "import importlib.util as u, sys; sys.stdout.write(u.find_spec('taichi').submodule_search_locations[0])"
    found = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    (core,) = Path(found.stdout, "_lib", "core").glob("taichi_python*.so")
    return hashlib.sha256(core.read_bytes()).hexdigest()[:12]


class Runner:
    """Runs the scripts of this folder.

    Attributes:
        stock (str): The Python that has the released Genesis and Taichi.
        results (Path): Where notes are kept. Those of the released Genesis do not change, and are made once.
    """

    def __init__(self):
        self.stock = os.environ["GENESIS_STOCK_PYTHON"]
        self.results = Path(os.environ["GENESIS_RESULTS"])

    def run(self, script, *args, python=sys.executable, **environment):
        """Runs a script; returns what it printed. It has to end with status 0."""
        return self.call(python, str(FOLDER / script), *args, python=python, **environment)

    def call(self, *command, python=sys.executable, **environment):
        """Runs a command; returns what it printed. It has to end with status 0."""
        cache = str(self.results / "kernels" / core_of(python))
        done = subprocess.run(
            [*map(str, command)],
            env={**os.environ, "TI_OFFLINE_CACHE_FILE_PATH": cache, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def notes(self, script, *args, **environment):
        """The notes of a patched run."""
        path = self.results / f"{script}-{'-'.join(map(str, args))}.json"
        path.unlink(missing_ok=True)
        environment = {"GS_ENABLE_ZEROCOPY": "1", **environment}
        shares = str(environment["GS_ENABLE_ZEROCOPY"] != "0")
        self.run(script, *args, path, GENESIS_SHARES=shares, **environment)
        return json.loads(path.read_text())

    def stock_notes(self, script, *args):
        """The notes of the released Genesis, from an earlier run of the same scripts and packages if there is one."""
        made_by = [(FOLDER / name).read_bytes() for name in (script, "run_scene.py", "calls.py")]
        made_by += [core_of(self.stock).encode(), importlib.metadata.version("torch").encode()]
        key = hashlib.sha256(b"".join(made_by)).hexdigest()[:12]
        path = self.results / f"stock-{script}-{'-'.join(map(str, args))}-{key}.json"
        if not path.exists():
            # A run that is cut short leaves no notes under the name of whole ones.
            scratch = path.with_suffix(".new")
            self.run(script, *args, scratch, python=self.stock, GENESIS_SHARES="None", GS_ENABLE_ZEROCOPY="1")
            scratch.replace(path)
        return json.loads(path.read_text())


@pytest.fixture(scope="session", name="runner")
def runner_fixture():
    if "GENESIS_STOCK_PYTHON" not in os.environ:
        pytest.fail("these tests need two environments with Genesis; run them with: make test-genesis")
    return Runner()


@pytest.fixture(name="assert_same")
def assert_same_fixture():
    """A function that compares two sets of notes, and names what differs."""

    def compare(got, wanted):
        different = [f"{key}: {got.get(key)}, released: {wanted[key]}" for key in wanted if got.get(key) != wanted[key]]
        assert got.keys() == wanted.keys() and not different, f"{len(different)} differ:\n" + "\n".join(different[:10])

    return compare
