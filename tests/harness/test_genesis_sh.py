"""make genesis and genesis-undo on a tiny environment whose pip only notes what it is asked for."""

import fcntl
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, TimeoutError  # pylint: disable=redefined-builtin
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PIP = """\
import os, sys
if "--version" in sys.argv:
    print("pip 0 (a stub)")
    sys.exit(0)
with open(os.environ["PIP_NOTES"], "a") as notes:
    notes.write(" ".join(sys.argv[1:]) + "\\n")
sys.exit("no index here")
"""

pytestmark = [
    pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed"),
    pytest.mark.skipif(sys.version_info < (3, 10), reason="Genesis 0.3.1 needs Python 3.10"),
]


class Environment:
    """A virtual environment with a stub for pip."""

    def __init__(self, path):
        self.prefix, self.notes = path / "venv", path / "notes"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(self.prefix)], check=True)
        version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        self.site = self.prefix / "lib" / version / "site-packages"
        (self.site / "pip").mkdir()
        (self.site / "pip" / "__main__.py").write_text(PIP)
        (self.site / "pip" / "__init__.py").write_text("")

    def add(self, name, version, needs="", complete=True):
        """Adds a distribution without any file. One that is not complete has no RECORD."""
        folder = self.site / f"{name}-{version}.dist-info"
        folder.mkdir()
        needs = f"Requires-Dist: {needs}\n" if needs else ""
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}")
        if complete:
            (folder / "RECORD").write_text("nothing,,\n")

    def run(self, verb, **more):
        """(status, output) of a verb."""
        environment = {**os.environ, "VENV": str(self.prefix), "PIP_NOTES": str(self.notes), **more}
        for name in ("WHEEL", "SOURCE", "PYTHON", "MAKEFLAGS", "MAKELEVEL"):
            if name not in more:
                environment.pop(name, None)
        command = ["bash", str(ROOT / "build.sh"), verb]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def asked(self):
        """What pip was asked for."""
        return self.notes.read_text() if self.notes.exists() else ""


@pytest.fixture(name="environment")
def environment_fixture(tmp_path):
    return Environment(tmp_path)


def test_later_genesis_is_refused_before_anything_is_installed(environment):
    environment.add("genesis_world", "1.4.5", needs="quadrants>=1.0")
    status, output = environment.run("genesis")
    assert status == 1 and environment.asked() == ""
    assert "got genesis-world 1.4.5, wanted 0.3.1" in output and "runs on quadrants" in output
    assert "make genesis VENV=path" in output


def test_torch_comes_first_and_alone(environment):
    status, output = environment.run("genesis")
    assert status == 1 and "Without a package index" in output and "run the same command again" in output
    assert environment.asked() == "install --disable-pip-version-check torch==2.13.0\n"


def test_a_half_installed_torch_is_installed_again(environment):
    environment.add("torch", "2.13.0", complete=False)
    assert environment.run("genesis")[0] == 1
    assert "torch==2.13.0" in environment.asked()
    assert not list(environment.site.glob("torch-*"))


@pytest.mark.parametrize("made_by", ["egg-info", "another installer"])
def test_what_something_else_installed_is_left_alone(environment, made_by):
    environment.add("torch", "2.9.1", complete=False)
    folder = environment.site / "torch-2.9.1.dist-info"
    if made_by == "egg-info":
        (folder / "METADATA").rename(folder / "PKG-INFO")
        folder = folder.rename(folder.with_suffix(".egg-info"))
    else:
        (folder / "INSTALLER").write_text("conda\n")
    assert "torch is 2.9.1 here" in environment.run("genesis")[1]
    assert folder.is_dir()


def test_an_environment_without_pip_stays_what_it_is(environment, tmp_path):
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    before = (bare / "pyvenv.cfg").read_text()
    status, output = environment.run("genesis", VENV=str(bare), PIP_NO_INDEX="1", PIP_CONFIG_FILE=os.devnull)
    assert status == 1 and f"{bare} has no pip; adding it" in output and "Without a package index" in output
    assert "making the environment" not in output and (bare / "pyvenv.cfg").read_text() == before


def test_a_second_run_waits_for_the_first(environment):
    environment.add("taichi", "1.7.4")
    lock = os.open(environment.prefix, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with ThreadPoolExecutor() as pool:
        second = pool.submit(environment.run, "genesis-undo")
        try:
            with pytest.raises(TimeoutError):
                second.result(timeout=2)
        finally:
            os.close(lock)
        status, output = second.result(timeout=60)
    assert status == 0 and "another run works in" in output


def test_another_torch_stays(environment):
    environment.add("torch", "2.9.1")
    status, output = environment.run("genesis")
    assert status == 1 and "torch is 2.9.1 here; this was tested with 2.13.0" in output
    assert environment.asked().endswith("genesis-world==0.3.1 taichi==1.7.4\n")


def test_a_wheel_that_is_not_there_is_named(environment):
    for name, version in (("torch", "2.13.0+cpu"), ("genesis_world", "0.3.1"), ("matplotlib", "3")):
        environment.add(name, version)
    status, output = environment.run("genesis", WHEEL="/no/such.whl")
    assert status == 1 and "WHEEL=/no/such.whl is not there" in output and "make wheel-fast" in output
    assert environment.asked() == ""


def test_two_environments_at_once_are_refused(environment):
    status, output = environment.run("genesis", PYTHON=sys.executable)
    assert status == 1 and "got both VENV and PYTHON, wanted one" in output


def test_a_folder_with_other_things_is_not_taken(environment, tmp_path):
    (tmp_path / "things").mkdir()
    (tmp_path / "things" / "letter").write_text("dear")
    status, output = environment.run("genesis", VENV=str(tmp_path / "things"))
    assert status == 1 and "wanted an environment or a new path" in output


def test_undo_asks_for_the_released_taichi(environment):
    environment.add("taichi", "1.7.4+dlpack1.fast")
    status, output = environment.run("genesis-undo")
    assert status == 1 and "in place of 1.7.4+dlpack1.fast" in output
    assert (
        environment.asked() == "install --disable-pip-version-check --quiet --force-reinstall --no-deps taichi==1.7.4\n"
    )


def test_undo_without_an_environment_says_so(environment, tmp_path):
    status, output = environment.run("genesis-undo", VENV=str(tmp_path / "nowhere"))
    assert status == 1 and "there is no environment in" in output
