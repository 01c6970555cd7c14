"""The verbs of the series, on a small repository in place of Taichi's."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BODY = (
    "The sum was wrong when the list was empty, so the last caller of the day saw a crash.\n\nUpstream-Status: Pending"
)
IDENTITY = {
    f"GIT_{role}_{key}": value
    for role in ("AUTHOR", "COMMITTER")
    for key, value in (("NAME", "A Person"), ("EMAIL", "person@example.invalid"))
}

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


class Project:
    """A copy of the harness around a small upstream."""

    def __init__(self, path):
        self.root = path / "project"
        self.tree = self.root / "build" / "taichi"
        self.source = self.root / "taichi"
        self.env = {**os.environ, **IDENTITY, "HOME": str(path)}
        for name in ("VENV", "PYTHON", "FORCE", "TAG", "MAKEFLAGS", "MAKELEVEL"):
            self.env.pop(name, None)
        shutil.copytree(ROOT / "ci", self.root / "ci", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "build.sh", self.root)
        self.make_upstream()
        (self.root / "patches").mkdir()
        self.write_readme()

    def make_upstream(self):
        """Two releases; v2 changes the last line of sum.txt."""
        (self.source / "misc").mkdir(parents=True)
        self.git("init", "--quiet", cwd=self.source)
        (self.source / "misc" / "prtags.json").write_text('{"lang": "Language"}')
        (self.source / "dos.txt").write_bytes(b"one\r\ntwo\r\n")
        for tag, last in (("v1", "z"), ("v2", "Z")):
            (self.source / "sum.txt").write_text("".join(f"{i}\n" for i in range(30)) + last + "\n")
            self.git("add", "-A", cwd=self.source)
            self.git("commit", "--quiet", "-m", tag, cwd=self.source)
            self.git("tag", tag, cwd=self.source)
        self.git("checkout", "--quiet", "--detach", "v1", cwd=self.source)
        commit = self.git("rev-parse", "v1", cwd=self.source)
        (self.root / "UPSTREAM").write_text(f"tag=v1\ncommit={commit}\npatched={commit}\nseries=1\n")

    def write_readme(self):
        """The README's table for whatever patches there are."""
        rows = "".join(f"| {path.name} | why | Pending |\n" for path in self.patches())
        (self.root / "patches" / "README.md").write_text("| patch | why | status |\n|---|---|---|\n" + rows)

    def git(self, *args, cwd=None):
        """Runs git in the patched tree or in `cwd`."""
        done = subprocess.run(
            ["git", *args], cwd=cwd or self.tree, env=self.env, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    def run(self, *args, status=0, **env):
        """Runs a verb, checks its exit status, returns all it printed."""
        command = ["bash", str(self.root / "build.sh"), *args]
        done = subprocess.run(command, env={**self.env, **env}, capture_output=True, text=True, check=False)
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    def commit(self, name, text, subject):
        """Commits a file in the patched tree."""
        (self.tree / name).write_bytes(text)
        self.git("add", "-A")
        self.git("commit", "--quiet", "-m", f"{subject}\n\n{BODY}")

    def patches(self):
        """The patch files, in order."""
        return sorted((self.root / "patches").glob("*.patch"))

    def upstream(self, key):
        """A value of the file UPSTREAM."""
        lines = (self.root / "UPSTREAM").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines)[key]


@pytest.fixture(name="project")
def project_fixture(tmp_path):
    """A project whose series has two patches, one of them in a file with CRLF."""
    project = Project(tmp_path)
    project.run("apply")
    text = (project.tree / "sum.txt").read_bytes()
    project.commit("sum.txt", text.replace(b"\n2\n", b"\n2 and more\n"), "[Lang] Add to the sum")
    project.commit("dos.txt", b"one\r\ntwo and more\r\n", "[lang] Write \u00e9t\u00e9 " + "into a file " * 4)
    project.run("export")
    project.write_readme()
    return project


def test_export_and_check_agree(project):
    assert [path.name[:4] for path in project.patches()] == ["0001", "0002"]
    assert "the series is whole: 2 patches on v1" in project.run("check")
    assert project.git("rev-parse", "HEAD") == project.upstream("patched")
    assert project.git("status", "--porcelain", cwd=project.source) == ""


def test_apply_gives_the_same_commit_whoever_runs_it(project):
    shutil.rmtree(project.tree)
    project.run("apply", GIT_COMMITTER_NAME="Another", GIT_AUTHOR_NAME="Another")
    assert project.git("rev-parse", "HEAD") == project.upstream("patched")
    assert (project.tree / "dos.txt").read_bytes() == b"one\r\ntwo and more\r\n"


def test_settings_of_the_user_do_not_leak_in(project):
    config = "[core]\n autocrlf = true\n[diff]\n noprefix = true\n context = 9\n[format]\n signature = me\n"
    (project.root.parent / ".gitconfig").write_text(config + "[commit]\n gpgsign = true\n[am]\n threeWay = true\n")
    project.run("check")


def test_apply_touches_only_files_that_differ(project):
    before = (project.tree / "dos.txt").stat().st_mtime_ns
    project.commit("new.txt", b"new\n", "[lang] Add a file")
    project.run("export")
    project.run("apply")
    assert (project.tree / "dos.txt").stat().st_mtime_ns == before


def test_apply_does_not_lose_changes(project):
    (project.tree / "sum.txt").write_text("mine\n")
    assert "changes that are not committed" in project.run("apply", status=1)
    assert (project.tree / "sum.txt").read_text() == "mine\n"
    project.run("apply", "FORCE=1")
    assert project.git("status", "--porcelain") == ""
    project.git("stash", "pop")
    assert (project.tree / "sum.txt").read_text() == "mine\n"


def test_apply_does_not_lose_commits(project):
    project.commit("new.txt", b"new\n", "[lang] Add a file")
    head = project.git("rev-parse", "HEAD")
    assert "commits that are not exported" in project.run("apply", status=1)
    assert head in project.run("apply", "FORCE=1")
    assert project.git("rev-parse", "HEAD") == project.upstream("patched")


def test_interrupted_apply_recovers(project):
    scratch = project.root / "build" / "series.4194999"
    project.git("worktree", "add", "--quiet", "--detach", str(scratch / "tree"), "v1", cwd=project.source)
    project.run("apply")
    assert not scratch.exists()
    assert str(scratch) not in project.git("worktree", "list", cwd=project.source)


def test_export_leaves_out_changes_and_keeps_them(project):
    (project.tree / "sum.txt").write_text("mine\n")
    assert "left out" in project.run("export")
    assert (project.tree / "sum.txt").read_text() == "mine\n"
    project.run("check")


def test_changed_patch_is_found(project):
    patch = project.patches()[0]
    patch.write_bytes(patch.read_bytes().replace(b"2 and more", b"2 and some more"))
    output = project.run("check", status=1)
    assert "a new export differs" in output and "UPSTREAM has patched=" in output


def test_fuzz_is_refused(project):
    patch = project.patches()[0]
    patch.write_bytes(patch.read_bytes().replace(b"\n 0\n", b"\n another line\n").replace(b"\n 4\n", b"\n four\n"))
    assert "does not apply" in project.run("check", status=1)
    assert "does not apply" in project.run("apply", status=1)


def test_bad_header_is_found(project):
    project.git("commit", "--quiet", "--amend", "-m", "[lang] Do")
    project.run("export")
    assert "Upstream-Status" in project.run("check", status=1)


def test_dirty_source_is_found(project):
    (project.source / "sum.txt").write_text("mine\n")
    assert "taichi/ has changes" in project.run("check", status=1)


def test_bump_moves_the_series(project):
    project.run("bump", "TAG=v2")
    assert project.upstream("tag") == "v2"
    assert (project.tree / "sum.txt").read_text().endswith("29\nZ\n")
    project.run("check")


def test_bump_stops_at_a_conflict_and_goes_on(project):
    text = (project.tree / "sum.txt").read_bytes()
    project.commit("sum.txt", text.replace(b"\nz\n", b"\nzz\n"), "[lang] Change the last line")
    project.run("export")
    assert "git rebase --continue" in project.run("bump", "TAG=v2", status=1)
    assert project.upstream("tag") == "v1"
    project.run("bump", "TAG=v2", status=1)
    bump = project.root / "build" / "bump"
    (bump / "sum.txt").write_bytes(text.replace(b"\nz\n", b"\nZz\n"))
    project.git("add", "-A", cwd=bump)
    project.git("-c", "core.editor=true", "rebase", "--continue", cwd=bump)
    project.run("bump", "TAG=v2")
    project.write_readme()
    project.run("check")
    assert not bump.exists()


def test_unknown_tag_is_refused(project):
    assert "upstream has no tag 'v9'" in project.run("bump", "TAG=v9", status=1)
    assert "needs the new tag" in project.run("bump", status=1)


def test_without_the_source_only_headers_are_checked(project):
    shutil.rmtree(project.source)
    project.source.mkdir()
    output = project.run("check", status=2)
    assert "headers of 2 patches are right" in output
    assert output.splitlines()[-1].endswith("git submodule update --init taichi")
    assert "git submodule update --init taichi" in project.run("export", status=1).splitlines()[-1]


def test_clean_refuses_to_lose_commits(project):
    project.commit("new.txt", b"new\n", "[lang] Add a file")
    assert "not exported" in project.run("clean", status=1)
    project.run("export")
    project.run("clean")
    assert not (project.root / "build").exists()


def test_unknown_verb_names_the_help(project):
    assert "./build.sh help" in project.run("fly", status=1)
    assert "make VERB" in project.run()
