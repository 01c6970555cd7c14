"""The verbs of the series, on a small repository in place of Taichi's."""

import shutil

import pytest

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


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
