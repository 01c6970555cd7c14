"""The text of the pull request, and upstream's checker of titles."""

from pathlib import Path

import pytest

import pull_request

CHECKER = Path(__file__).resolve().parents[2] / "taichi" / "misc" / "ci_check_pr_title.py"


def test_section_ends_at_the_next_heading_of_any_level():
    text = "# Lamps\nred\n## Doors\nshut\n# Cups\n"
    assert pull_request.sections(text) == {"Lamps": "red", "Doors": "shut", "Cups": ""}


def test_comment_in_code_is_no_heading():
    text = "# Lamps\n```python\n# red\n```\n"
    assert pull_request.sections(text) == {"Lamps": "```python\n# red\n```"}


def test_links_within_the_rfc_become_words():
    text = "see [the lamps](#lamps) and [5057](https://example.invalid/5057)"
    assert pull_request.without_anchors(text) == "see the lamps and [5057](https://example.invalid/5057)"


def test_issues_come_from_their_line_alone():
    rfc = "* Relevant Issue: https://a/issues/12, https://a/issues/3\nhttps://a/issues/4\n"
    assert pull_request.issues(rfc) == "#12, #3"
    assert pull_request.issues("no such line") == ""


def test_missing_section_is_told():
    with pytest.raises(SystemExit, match="wanted 'TL;DR'"):
        pull_request.compose("# Lamps\nred\n", [], "1 file changed", [])


@pytest.mark.skipif(not CHECKER.exists(), reason="the source of Taichi is not here")
@pytest.mark.parametrize(
    "title, part",
    [
        ("[Lang] Share lamps", ""),
        ("[Lang] [cuda] Share lamps", ""),
        ("Share lamps", "does not start with any tag"),
        ("[Lamp] Share lamps", "Unrecognized PR tag"),
        ("[Lang] [Cuda] Share lamps", "At most 1 uppercase tag"),
        ("[Lang] Share `lamps`", "backquotes"),
        ("[Lang] share lamps", "uppercase letters"),
        ("[Lang]", "regardless tags"),
    ],
)
def test_upstreams_own_checker_is_asked(title, part):
    refusal = pull_request.refusal(title, CHECKER)
    assert part in refusal and bool(part) is bool(refusal)
