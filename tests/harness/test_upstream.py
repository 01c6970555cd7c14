"""The verbs that look at upstream, on a small repository in place of Taichi's: check-master, pr, bisect."""

import shutil

import pytest

import bisect_report

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")

RFC = """# RFC: Sums
* Relevant Issue: https://example.invalid/issues/12
# TL;DR
Sums are right, see [Goals](#goals).
# Goals
* Sums.
## Non-Goals
* Products.
# Migration plan
None.
# Limits
None.
# Risks
None.
"""
# As upstream's checker: it needs modules that are not here, and ends with a message.
CHECKER = """import git, semver, sys
if not sys.argv[1].startswith("["):
    exit(f"no tag: {sys.argv[1]}")
"""


@pytest.fixture(name="upstream")
def upstream_fixture(project, tmp_path):
    """The project, whose upstream has a remote with a master: v2."""
    remote = tmp_path / "upstream.git"
    project.git("clone", "--quiet", "--bare", str(project.source), str(remote), cwd=tmp_path)
    project.git("update-ref", "refs/heads/master", "v2", cwd=remote)
    project.git("remote", "add", "origin", str(remote), cwd=project.source)
    project.remote = remote
    return project


def change_the_last_line(project, subject="[lang] Change the last line"):
    """A patch that conflicts with v2."""
    text = (project.tree / "sum.txt").read_bytes()
    project.commit("sum.txt", text[:-1] + b"z\n", subject)
    project.run("export")
    project.write_readme()


class TestCheckMaster:
    def test_series_that_applies(self, upstream):
        before = upstream.git("for-each-ref", "refs/heads", "refs/tags", cwd=upstream.source)
        output = upstream.run("check-master")
        assert "1 commits ahead of v1, 0 behind it" in output
        assert "the series applies to it: 2 patches, no conflict" in output
        assert upstream.git("for-each-ref", "refs/heads", "refs/tags", cwd=upstream.source) == before
        assert upstream.git("rev-parse", "HEAD", cwd=upstream.source) == upstream.upstream("commit")
        assert not list((upstream.root / "build").glob("series.*"))

    def test_conflict_is_named_with_its_files(self, upstream):
        change_the_last_line(upstream)
        output = upstream.run("check-master", status=1)
        assert "conflict: 0003-lang-Change-the-last-line.patch: sum.txt\n" in output
        assert "1 of 3 patches conflict" in output and "make bump" in output
        assert not list((upstream.root / "build").glob("series.*"))

    def test_later_patches_are_looked_at_too(self, upstream):
        change_the_last_line(upstream)
        upstream.commit("new.txt", b"new\n", "[lang] Add a file")
        change_the_last_line(upstream, "[lang] Change it again")
        output = upstream.run("check-master", status=1)
        assert "2 of 5 patches conflict" in output and "0005-lang-Change-it-again.patch: sum.txt" in output
        assert "may come only from an earlier patch" in output

    def test_without_a_network(self, upstream):
        shutil.rmtree(upstream.remote)
        assert "is there a network?" in upstream.run("check-master", status=1)

    def test_build_gets_the_rebased_tree(self, upstream):
        (upstream.root / "ci" / "wheel.sh").write_text('printf "built %s " "$@"; tail -n 1 "$2/sum.txt"\n')
        output = upstream.run("check-master", "BUILD=1", "--jobs")
        assert f"built --tree built {upstream.root}/build/taichi-master built --jobs Z\n" in output


@pytest.fixture(name="ready")
def ready_fixture(upstream):
    """An upstream that checks titles, and an RFC."""
    (upstream.root / "docs").mkdir()
    (upstream.root / "docs" / "RFC.md").write_text(RFC)
    config = '[submodule "taichi"]\n path = taichi\n url = https://github.com/someone/sums.git\n'
    (upstream.root / ".gitmodules").write_text(config)
    upstream.commit("misc/ci_check_pr_title.py", CHECKER.encode(), "[lang] Check titles")
    upstream.run("export")
    upstream.write_readme()
    return upstream


class TestPr:
    def test_makes_a_branch_a_text_and_commands(self, ready):
        output = ready.run("pr", "FORK=me")
        out = ready.root / "build" / "pr"
        assert "nothing was pushed" in output
        log = ready.git("log", "--format=%s%n%b", "v1..dlpack", cwd=out / "taichi")
        assert "[Lang] Add to the sum" in log and "Upstream-Status" not in log
        assert ready.git("diff", "dlpack", ready.upstream("patched"), cwd=out / "taichi") == ""
        text = (out / "pull-request.md").read_text()
        assert text.startswith("Issue: #12\n") and "| [Lang] Add to the sum | why |" in text
        assert "Sums are right, see Goals." in text
        commands = (out / "commands.txt").read_text()
        assert "git push https://github.com/me/sums.git dlpack\n" in commands
        assert "gh pr create --repo someone/sums --base master --head me:dlpack" in commands
        assert "dlpack" not in ready.git("for-each-ref", cwd=ready.remote)

    def test_claims_only_what_bisect_has_shown(self, ready):
        assert "make bisect" in ready.run("pr")
        text = ready.root / "build" / "pr" / "pull-request.md"
        assert "Each commit builds" not in text.read_text()
        report = ready.root / "build" / "bisect" / "report.md"
        report.parent.mkdir()
        report.write_text(
            f"The last patch gives commit {ready.upstream('patched')}.\nEach step was built and tested.\n"
        )
        ready.run("pr")
        assert "Each commit builds" in text.read_text()

    def test_starts_at_master(self, ready):
        ready.run("pr", "FROM=master")
        tree = ready.root / "build" / "pr" / "taichi"
        assert ready.git("rev-list", "--count", "v2..dlpack", cwd=tree) == "3"
        assert (tree / "sum.txt").read_text().endswith("29\nZ\n")

    def test_does_not_start_at_a_master_that_conflicts(self, ready):
        change_the_last_line(ready)
        assert "make check-master" in ready.run("pr", "FROM=master", status=1)
        assert not (ready.root / "build" / "pr").exists()

    def test_does_not_lose_work_on_the_branch(self, ready):
        ready.run("pr")
        tree = ready.root / "build" / "pr" / "taichi"
        ready.git("commit", "--quiet", "--amend", "-m", "[Lang] Better words", cwd=tree)
        assert "git -C taichi branch NAME dlpack" in ready.run("pr", status=1)
        assert ready.git("log", "-1", "--format=%s", cwd=tree) == "[Lang] Better words"
        ready.run("pr", "FORCE=1")
        assert ready.git("log", "-1", "--format=%s", cwd=tree) == "[lang] Check titles"

    def test_title_that_upstream_refuses(self, ready):
        output = ready.run("pr", "TITLE=Share sums", status=1)
        assert "upstream's checker of titles: no tag: Share sums" in output
        assert not (ready.root / "build" / "pr").exists()

    def test_unknown_start_is_refused(self, ready):
        assert "FROM is 'v2', wanted tag or master" in ready.run("pr", "FROM=v2", status=1)


@pytest.fixture(name="steps")
def steps_fixture(project):
    """The project with stubs for all that bisect would install or compile. A patch with 'broken' does not build."""
    (project.root / "ci" / "wheel.sh").write_text('! grep -q broken "$2/sum.txt"\n')
    with open(project.root / "ci" / "lib.sh", "a", encoding="utf-8") as lib:
        lib.write("make_venv() { :; }\nmake_wheel_venv() { :; }\n")
    for name, text in (("venv-lint/bin/black", "false"), ("venv-bisect/bin/python", "true")):
        stub = project.root / "build" / name
        stub.parent.mkdir(parents=True)
        stub.write_text(f"#!/bin/sh\n{text}\n")
        stub.chmod(0o755)
    return project


def add_patch(project, name, text, subject):
    """A third patch."""
    project.commit(name, text, subject)
    project.run("export")
    project.write_readme()


class TestBisect:
    def test_goes_through_all_steps(self, steps):
        output = steps.run("bisect")
        assert "each patch from 1 to 2 builds and passes" in output
        report = (steps.root / "build" / "bisect" / "report.md").read_text()
        assert steps.upstream("patched") in report and report.count("| passed |") == 2

    def test_without_a_build_it_claims_less(self, steps):
        assert "applies and is formatted" in steps.run("bisect", "BUILD=0")
        report = (steps.root / "build" / "bisect" / "report.md").read_text()
        assert "Not each step was built" in report and "not built |" in report

    def test_does_not_repeat_what_passed(self, steps):
        steps.run("bisect", "TO=1")
        output = steps.run("bisect")
        assert output.count("passed before") == 1
        assert steps.run("bisect", "FROM=1").count("passed before") == 0

    @pytest.mark.parametrize(
        "first, then, repeated", [("quick", "none", 0), ("none", "quick", 2), ("quick", "full", 2)]
    )
    def test_repeats_what_was_tested_less(self, steps, first, then, repeated):
        steps.run("bisect", f"SUITE={first}")
        assert steps.run("bisect", f"SUITE={then}").count("passed before") == 2 - repeated

    def test_stops_at_a_patch_that_does_not_build(self, steps):
        text = (steps.tree / "sum.txt").read_bytes()
        add_patch(steps, "sum.txt", b"broken\n" + text, "[lang] Break the sum")
        output = steps.run("bisect", status=1)
        assert "step 3 of 3, 0003-lang-Break-the-sum.patch: build failed" in output
        assert "build/bisect/0003/build.log" in output and "make bisect FROM=3" in output
        assert "build failed |" in (steps.root / "build" / "bisect" / "report.md").read_text()

    def test_stops_at_a_patch_that_is_not_formatted(self, steps):
        add_patch(steps, "sum.py", b"a=1\n", "[lang] Add a script")
        assert "0003-lang-Add-a-script.patch: format failed" in steps.run("bisect", "BUILD=0", status=1)

    def test_repeats_a_patch_that_changed(self, steps):
        steps.run("bisect")
        steps.git(
            "commit", "--quiet", "--amend", "-m", steps.git("log", "-1", "--format=%B").replace("a file", "a box")
        )
        steps.run("export")
        steps.write_readme()
        output = steps.run("bisect")
        assert "0001-Lang-Add-to-the-sum.patch: passed before" in output and output.count("passed before") == 1

    @pytest.mark.parametrize("word", ["FROM=0", "TO=3", "FROM=x", "SUITE=all", "BUILD=2"])
    def test_wrong_value_is_told(self, steps, word):
        name, _, value = word.partition("=")
        assert f"{name} is '{value}', wanted" in steps.run("bisect", word, status=1)

    def test_clean_removes_its_tree(self, steps):
        steps.run("bisect", "TO=1")
        steps.run("clean")
        assert "taichi-bisect" not in steps.git("worktree", "list", cwd=steps.source)


JUNIT = """<testsuites><testsuite>
<testcase classname="lamp" name="test_red"/><testcase classname="lamp" name="test_blue"><skipped message="dark"/></testcase>
</testsuite></testsuites>"""


def test_report_of_steps_counts_both_kinds_of_tests(tmp_path):
    step = tmp_path / "0001"
    step.mkdir()
    (step / "python.xml").write_text(JUNIT)
    (step / "cpp.xml").write_text(JUNIT)
    (step / "result").write_text("commit=a1\nsuite=quick\nbuild=1\nseconds=7\noutcome=passed\n")
    cells = bisect_report.row(1, "0001-lang-Add.patch", "a1", tmp_path)
    assert cells == ("1", "0001-lang-Add.patch", "7", "1 Python, 1 skipped; 1 C++, 1 skipped", "passed")
    assert bisect_report.row(1, "0001-lang-Add.patch", "b2", tmp_path)[-1] == "not run"
