"""The harness's own modules live in ci/; a small project to try the verbs on."""

import sys
from pathlib import Path

import pytest

from project import Project

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "ci"))


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
