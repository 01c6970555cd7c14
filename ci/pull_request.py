"""Prints the text of the pull request: pull_request.py RFC PATCHES --title TITLE --checker FILE ...

It follows upstream's template. What the series is for comes from the RFC, what each commit is for from the table in the
README of the patches. The titles must pass upstream's own checker.
"""

import argparse
import contextlib
import io
import re
import runpy
import sys
import types
from pathlib import Path
from unittest import mock

from check_patches import parse_patch, readme_rows

HEADING = re.compile(r"#+ ")


def sections(text):
    """Maps each heading of a Markdown text to the lines below it, up to the next heading of any level."""
    found, title, in_code = {}, "", False
    for line in text.splitlines():
        in_code ^= line.startswith("```")
        if not in_code and HEADING.match(line):
            title = HEADING.sub("", line, count=1)
            found[title] = []
        elif title:
            found[title].append(line)
    return {title: "\n".join(lines).strip() for title, lines in found.items()}


def without_anchors(text):
    """Links into the RFC lead nowhere in another text: only their words stay."""
    return re.sub(r"\[([^\]]+)\]\(#[^)]*\)", r"\1", text)


def issues(rfc):
    """The numbers in the RFC's line of relevant issues, as '#1, #2'."""
    line = re.search(r"^\* Relevant Issue:(.*)$", rfc, re.MULTILINE)
    return ", ".join(f"#{number}" for number in re.findall(r"/issues/(\d+)", line.group(1) if line else ""))


def refusal(title, checker):
    """Why upstream's checker refuses a title, or an empty string.

    Args:
        title (str): The title of a pull request.
        checker (Path): Upstream's misc/ci_check_pr_title.py, which ends with a message if it finds a fault.
    """
    # The two modules serve titles of releases alone, and need not be installed.
    modules = {name: types.ModuleType(name) for name in ("git", "semver")}
    with mock.patch.dict(sys.modules, modules), mock.patch.object(sys, "argv", [str(checker), title]):
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                runpy.run_path(str(checker), run_name="__main__", init_globals={"exit": sys.exit})
        except SystemExit as end:
            return str(end.code) if end.code else ""
        except IndexError:  # it looks behind the last tag without asking whether anything is there
            return f"the checker finds no words behind the tags: {title}"
    return ""


def commits(folder):
    """(subject, why) of each patch, from its header and from the README's table."""
    rows = readme_rows((folder / "README.md").read_text(encoding="utf-8"))
    return [(parse_patch(folder / name).subject, cells[1]) for name, cells in sorted(rows.items())]


def compose(rfc, rows, size, tests, bisected=False):
    """The text of the pull request.

    Args:
        rfc (str): The RFC.
        rows (List[Tuple[str, str]]): Subject and purpose of each commit.
        size (str): What `git diff --shortstat` says of the series.
        tests (List[str]): The files of tests that the series adds or changes.
        bisected (bool): Were the commits built and tested one by one?
    """
    parts = sections(rfc)

    def part(title):
        if title not in parts:
            sys.exit(
                f"error: the RFC has the sections {list(parts)}, wanted '{title}'; change ci/pull_request.py with it"
            )
        return without_anchors(parts[title])

    table = "".join(f"| {subject} | {why} |\n" for subject, why in rows)
    listed = "".join(f"* `{path}`\n" for path in tests)
    return f"""Issue: {issues(rfc)}

### Brief Summary

{part("TL;DR")}

**Goals**

{part("Goals")}

**Not goals**

{part("Non-Goals")}

### Walkthrough

{size.strip()}.{" Each commit builds and passes its tests on those before it." if bisected else ""}

| commit | why |
|---|---|
{table}
**Tests** that are new or changed:

{listed}
**What changes for existing code**

{part("Migration plan")}

**Limits**

{part("Limits")}

**Risks**

{part("Risks")}
"""


def main():
    """Prints the text; the exit status is 1 if upstream would refuse a title."""
    parser = argparse.ArgumentParser(description="Makes the text of the pull request.")
    parser.add_argument("rfc", type=Path)
    parser.add_argument("patches", type=Path, help="the folder of the series")
    parser.add_argument("--title", required=True)
    parser.add_argument("--checker", type=Path, required=True, help="upstream's checker of titles")
    parser.add_argument("--size", required=True, help="what git diff --shortstat says")
    parser.add_argument("--bisected", action="store_true", help="each commit was built and tested")
    parser.add_argument("--tests", nargs="*", default=[])
    args = parser.parse_args()
    rows = commits(args.patches)
    refused = [text for text in (refusal(title, args.checker) for title in [args.title, *next(zip(*rows))]) if text]
    for text in refused:
        print(
            f"error: upstream's checker of titles: {text}; change the title, or the subject of the patch",
            file=sys.stderr,
        )
    if not refused:
        print(compose(args.rfc.read_text(encoding="utf-8"), rows, args.size, args.tests, args.bisected), end="")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
