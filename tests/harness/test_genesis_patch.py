"""make genesis on a made-up environment: what it refuses, what it restores, how it goes on after it was cut short."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import genesis_patch

PATCHER = Path(genesis_patch.__file__)
ADDED = "genesis/new.py"
LAMP = b"".join(b"lamp %d\n" % number for number in range(9))
PATCH = """\
diff --git a/genesis/lamp.py b/genesis/lamp.py
--- a/genesis/lamp.py
+++ b/genesis/lamp.py
@@ -4,3 +4,3 @@
 lamp 3
-lamp 4
+{word}
 lamp 5
diff --git a/genesis/new.py b/genesis/new.py
new file mode 100644
--- /dev/null
+++ b/genesis/new.py
@@ -0,0 +1 @@
+{word}
"""

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


class Environment:
    """A folder that looks like an environment with Genesis in it."""

    def __init__(self, path):
        self.prefix, self.site = path / "venv", path / "venv" / "site-packages"
        self.dist_info = self.site / "genesis_world-0.3.1.dist-info"
        self.patches = [path / "0001-lamp.patch"]
        self.files = {"genesis/lamp.py": LAMP, "genesis/door.py": b"door\n"}
        for name, data in self.files.items():
            genesis_patch.replace(self.site / name, data)
        record = "".join(
            f"{name},sha256={genesis_patch.digest(data)},{len(data)}\n" for name, data in self.files.items()
        )
        genesis_patch.replace(self.dist_info / "RECORD", (record + "genesis/__pycache__/lamp.pyc,,\n").encode())
        self.write_metadata()
        self.write_patch("bright")

    def write_metadata(self, version="0.3.1", needs="taichi>=1.7.4"):
        """The release that is installed."""
        text = f"Metadata-Version: 2.1\nName: genesis-world\nVersion: {version}\nRequires-Dist: {needs}\n"
        genesis_patch.replace(self.dist_info / "METADATA", text.encode())

    def write_patch(self, word):
        """A patch that writes this word."""
        self.patches[0].write_text(PATCH.format(word=word))

    def patch(self):
        """Names of the files that were patched."""
        return genesis_patch.patch(self.prefix, self.site, self.patches, "0.3.1")

    def undo(self):
        """Names of the files that were restored."""
        return genesis_patch.undo(self.prefix, self.site)[0]

    def lamp(self):
        """The file that the patch changes."""
        return (self.site / "genesis/lamp.py").read_bytes()

    def is_pristine(self):
        """Whether everything is as it came, without any trace."""
        present = {str(p.relative_to(self.site)): p.read_bytes() for p in self.site.glob("genesis/**/*") if p.is_file()}
        return present == self.files and not (self.prefix / ".taichi-dlpack").exists()


@pytest.fixture(name="environment")
def environment_fixture(tmp_path):
    return Environment(tmp_path)


def test_patch_and_undo_restore_every_byte(environment):
    assert environment.patch() == ["genesis/lamp.py", "genesis/new.py"]
    assert b"bright\n" in environment.lamp() and (environment.site / "genesis/new.py").read_bytes() == b"bright\n"
    assert environment.undo() == ["genesis/lamp.py", "genesis/new.py"]
    assert environment.is_pristine()


def test_each_verb_may_be_repeated(environment):
    environment.patch()
    assert environment.patch() == []
    environment.undo()
    assert environment.undo() == []
    assert environment.is_pristine()


def test_a_new_patch_replaces_the_old_one(environment):
    environment.patch()
    environment.write_patch("green")
    assert environment.patch() == ["genesis/lamp.py", "genesis/new.py"]
    assert b"green\n" in environment.lamp() and b"bright\n" not in environment.lamp()
    environment.undo()
    assert environment.is_pristine()


class Cut(Exception):
    """Stands for a Ctrl-C."""


@pytest.mark.parametrize("verb", ["patch", "undo", "patch anew"])
@pytest.mark.parametrize("writes", range(7))
def test_a_run_that_was_cut_short_is_completed_or_undone(environment, monkeypatch, verb, writes):
    if verb != "patch":
        environment.patch()
    if verb == "patch anew":
        environment.write_patch("green")
    left, whole = [writes], genesis_patch.replace

    def replace(path, data):
        if environment.prefix in path.parents:
            if left[0] == 0:
                raise Cut
            left[0] -= 1
        whole(path, data)

    monkeypatch.setattr(genesis_patch, "replace", replace)
    try:
        environment.undo() if verb == "undo" else environment.patch()  # pylint: disable=expression-not-assigned
    except Cut:
        pass
    monkeypatch.setattr(genesis_patch, "replace", whole)
    copy = environment.prefix.with_name("copy")
    shutil.copytree(environment.prefix, copy)
    environment.undo()
    assert environment.is_pristine()
    shutil.rmtree(environment.prefix)
    shutil.copytree(copy, environment.prefix)
    environment.patch()
    assert (b"green\n" if verb == "patch anew" else b"bright\n") in environment.lamp()
    assert environment.patch() == []


@pytest.mark.parametrize(
    "version, needs, words",
    [
        ("0.3.5", "gstaichi>=2.0", "runs on gstaichi, another library"),
        ("1.4.5", "quadrants==1.3", "runs on quadrants, another library"),
        ("0.2.1", "taichi>=1.7.2", "wanted 0.3.1, which the patches were made for"),
    ],
)
def test_another_version_is_refused(environment, version, needs, words):
    environment.write_metadata(version, needs)
    with pytest.raises(genesis_patch.Refusal, match=words) as refusal:
        environment.patch()
    assert f"got genesis-world {version}" in str(refusal.value) and "pip install genesis-world==0.3.1" in str(
        refusal.value
    )
    assert environment.is_pristine()


def test_missing_or_half_installed_genesis_is_refused(environment):
    (environment.dist_info / "RECORD").unlink()
    with pytest.raises(genesis_patch.Refusal, match="got 0 installations.*run: make genesis"):
        environment.patch()


@pytest.mark.parametrize("patched", [False, True])
def test_changes_of_somebody_else_are_kept(environment, patched):
    if patched:
        environment.patch()
    mine = environment.lamp() + b"mine\n"
    (environment.site / "genesis/lamp.py").write_bytes(mine)
    for verb in (environment.patch, environment.undo) if patched else (environment.patch,):
        with pytest.raises(genesis_patch.Refusal, match="changed by somebody else.*pip install"):
            verb()
    assert environment.lamp() == mine


def test_undo_notices_other_files_that_differ(environment):
    environment.patch()
    (environment.site / "genesis/door.py").write_bytes(b"window\n")
    command = [sys.executable, str(PATCHER), "undo", str(environment.prefix), str(environment.site)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.endswith("files of Genesis restored\n")
    assert "1 other files are not those of its wheel, among them genesis/door.py" in done.stderr
    assert "genesis-world==0.3.1" in done.stderr
    assert environment.lamp() == LAMP and not (environment.prefix / ".taichi-dlpack").exists()


def test_an_added_file_that_somebody_changed_is_to_be_removed_by_hand(environment):
    environment.patch()
    (environment.site / ADDED).write_bytes(b"mine\n")
    with pytest.raises(genesis_patch.Refusal, match=f"then: rm .*{ADDED}, and again"):
        environment.undo()
    (environment.site / ADDED).unlink()
    environment.undo()
    assert environment.is_pristine()


def test_a_working_copy_is_refused_before_anything_is_installed(environment):
    (environment.dist_info / "direct_url.json").write_text('{"url": "file:///src", "dir_info": {"editable": true}}')
    command = [sys.executable, str(PATCHER), "check", str(environment.prefix), str(environment.site)]
    done = subprocess.run([*command, "--version", "0.3.1"], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "got an editable genesis-world, from file:///src" in done.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_environment_that_cannot_be_written_is_an_error_with_a_remedy(environment):
    (environment.site / "genesis").chmod(0o555)
    command = [sys.executable, str(PATCHER), "patch", str(environment.prefix), str(environment.site), "--version"]
    done = subprocess.run([*command, "0.3.1", str(environment.patches[0])], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "wanted an environment that can be written" in done.stderr


def test_a_patch_that_does_not_apply_changes_nothing(environment):
    environment.patches[0].write_text(PATCH.format(word="bright").replace(" lamp 3", " lamp x"))
    with pytest.raises(genesis_patch.Refusal, match="(?s)do not apply.*git checkout"):
        environment.patch()
    assert environment.is_pristine()


def test_genesis_installed_anew_over_the_patches_is_patched_again(environment):
    environment.patch()
    (environment.site / "genesis/lamp.py").write_bytes(LAMP)
    assert environment.patch() == ["genesis/lamp.py"]


def test_the_command_line_says_what_it_made_and_what_it_refused(environment):
    command = [sys.executable, str(PATCHER), "patch", str(environment.prefix), str(environment.site), "--version"]
    done = subprocess.run([*command, "0.3.1", str(environment.patches[0])], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "== 2 files of Genesis patched\n")
    done = subprocess.run([*command, "9.9", str(environment.patches[0])], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr.startswith("error: got genesis-world 0.3.1, wanted 9.9")
