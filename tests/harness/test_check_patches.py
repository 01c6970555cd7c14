"""The header checks of the series, on patches made up for the purpose."""

import pytest

import check_patches

BODY = """\
Two people looked at the same lamp and each saw another colour.
Say which colour it is, rather than let them argue until the evening.
"""
PATCH = """\
From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001
From: A Person <person@example.invalid>
Date: Fri, 2 Jan 2026 03:04:05 +0000
Subject: {subject}

{body}
{trailers}
---
diff --git a/lamp b/lamp
index 1111111..2222222 100644
--- a/lamp
+++ b/lamp
@@ -1 +1 @@
-grey
+{added}
"""


@pytest.fixture(name="folder")
def folder_fixture(tmp_path):
    """A function that writes a series of one patch and its README."""

    def make(subject="[Lang] Name the colour", body=BODY, trailers="Upstream-Status: Pending", added="red", row=None):
        text = PATCH.format(subject=subject, body=body, trailers=trailers, added=added)
        (tmp_path / "0001-lamp.patch").write_text(text)
        row = "| [0001-lamp.patch](0001-lamp.patch) | colour | Pending |" if row is None else row
        (tmp_path / "README.md").write_text(f"| patch | why | status |\n|---|---|---|\n{row}\n")
        return tmp_path

    return make


def complaints_about(folder):
    """All complaints as one string."""
    return "\n".join(check_patches.check_all(folder, known_tags={"lang", "cuda"}))


def test_good_patch_has_no_complaints(folder):
    assert complaints_about(folder()) == ""


def test_patch_is_taken_apart(folder):
    patch = check_patches.parse_patch(folder(subject="[Lang] [cuda] Name\n the colour") / "0001-lamp.patch")
    assert patch.subject == "[Lang] [cuda] Name the colour"
    assert patch.body[0].startswith("Two people")
    assert patch.trailers == {"Upstream-Status": "Pending"}
    assert patch.added == ["red"]


@pytest.mark.parametrize(
    "subject, complaint",
    [
        ("Name the colour", "has no tag"),
        ("[Cheese] Name the colour", "[Cheese] is unknown"),
        ("[Lang] [Cuda] Name the colour", "at most one is capitalised"),
        ("[Lang] name the colour", "capital letter"),
        ("[Lang] Named the colour", "imperative"),
        ("[Lang] Names the colour", "imperative"),
        ("[Lang] Naming the colour", "imperative"),
        ("[Lang] Name the colour.", "full stop"),
        ("[Lang] Name " + "x" * 61, "73 characters"),
    ],
)
def test_bad_subject_is_refused(folder, subject, complaint):
    assert complaint in complaints_about(folder(subject=subject))


def test_subject_of_72_characters_is_accepted(folder):
    assert complaints_about(folder(subject="[Lang] Name " + "x" * 60)) == ""


def test_tag_is_not_compared_without_the_source(folder):
    assert check_patches.check_all(folder(subject="[Cheese] Name the colour")) == []


def test_body_that_says_nothing_is_refused(folder):
    assert "say the problem" in complaints_about(folder(body="Colour.\n"))


@pytest.mark.parametrize(
    "trailers, complaint",
    [
        ("", "no 'Upstream-Status:'"),
        ("Signed-off-by: A Person <person@example.invalid>", "no 'Upstream-Status:'"),
        ("Upstream-Status: Perhaps", "'Perhaps', one of"),
        ("Upstream-Status: Inappropriate", "add the address or the reason"),
    ],
)
def test_bad_status_is_refused(folder, trailers, complaint):
    assert complaint in complaints_about(folder(trailers=trailers))


def test_status_is_found_among_other_trailers(folder):
    trailers = "Upstream-Status: Pending\nSigned-off-by: A Person <person@example.invalid>"
    assert complaints_about(folder(trailers=trailers)) == ""


def test_trailing_white_space_is_refused(folder):
    assert "white space" in complaints_about(folder(added="red "))


def test_gap_in_the_numbers_is_refused(folder):
    path = folder()
    (path / "0001-lamp.patch").rename(path / "0003-lamp.patch")
    assert "numbered ['0003'], wanted ['0001']" in complaints_about(path)


@pytest.mark.parametrize(
    "row, complaint",
    [
        ("", "no row for 0001-lamp.patch"),
        ("| [0002-door.patch](0002-door.patch) | door | Pending |", "0002-door.patch, which is not here"),
        ("| [0001-lamp.patch](0001-lamp.patch) | colour | Denied |", "make them agree"),
    ],
)
def test_readme_that_differs_is_refused(folder, row, complaint):
    assert complaint in complaints_about(folder(row=row))


def test_empty_series_is_refused(tmp_path):
    assert "has no patches" in complaints_about(tmp_path)
