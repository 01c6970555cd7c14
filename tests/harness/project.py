"""A copy of the harness around a small repository in place of Taichi's."""

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BODY = (
    "The sum was wrong when the list was empty, so the last caller of the day saw a crash.\n\nUpstream-Status: Pending"
)
IDENTITY = {
    f"GIT_{role}_{key}": value
    for role in ("AUTHOR", "COMMITTER")
    for key, value in (("NAME", "A Person"), ("EMAIL", "person@example.invalid"))
}


class Project:
    """A copy of the harness around a small upstream."""

    def __init__(self, path):
        self.root = path / "project"
        self.tree = self.root / "build" / "taichi"
        self.source = self.root / "taichi"
        self.env = {**os.environ, **IDENTITY, "HOME": str(path)}
        for name in ("VENV", "PYTHON", "FORCE", "TAG", "FROM", "TO", "BUILD", "SUITE", "MAKEFLAGS", "MAKELEVEL"):
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
