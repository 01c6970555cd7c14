"""Checks of the patch files that need no source: headers, numbers, README table.

Each check takes what it looks at and returns its complaints, one string each.
"""

import argparse
import json
import re
import sys
from dataclasses import dataclass, field
from email import message_from_string, policy
from pathlib import Path

MAX_SUBJECT = 72
MIN_BODY_WORDS = 15
STATUS = "Upstream-Status"
# The states that Yocto's documentation of the trailer knows.
STATES = ("Pending", "Submitted", "Accepted", "Backport", "Denied", "Inactive-Upstream", "Inappropriate")
STATES_WITH_DETAIL = ("Submitted", "Backport", "Inactive-Upstream", "Inappropriate")
TRAILER = re.compile(r"^([A-Z][A-Za-z]*(?:-[A-Za-z]+)+): (.+)$")
# Imperatives that look like another form of a verb.
IMPERATIVES = {"alias", "bring", "embed", "exceed", "feed", "need", "proceed", "seed", "shed", "string"}


@dataclass
class Patch:
    """One patch file, taken apart."""

    name: str
    subject: str
    body: list = field(default_factory=list)
    trailers: dict = field(default_factory=dict)
    added: list = field(default_factory=list)

    @property
    def status(self):
        """The value of its Upstream-Status trailer, or an empty string."""
        return self.trailers.get(STATUS, "")


def parse_patch(path):
    """Reads a file that `git format-patch` wrote.

    Args:
        path (Path): The patch file.

    Returns:
        Patch: Its subject, the lines of its message, its trailers and the lines it adds.
    """
    message = message_from_string(path.read_bytes().decode("utf-8", errors="replace"), policy=policy.compat32)
    subject = str(policy.default.header_factory("subject", re.sub(r"\r?\n", "", message["subject"] or "")))
    text = message.get_payload()
    head, _, diff = text.partition("\n---\n") if "\n---\n" in text else text.partition("\ndiff --git ")
    lines = head.strip("\n").split("\n")
    start = len(lines)
    while start > 0 and TRAILER.match(lines[start - 1]):
        start -= 1
    trailers = dict(TRAILER.match(line).groups() for line in lines[start:])
    added = [line[1:] for line in diff.split("\n") if line.startswith("+") and not line.startswith("+++ ")]
    return Patch(path.name, subject, lines[:start], trailers, added)


def split_tags(subject):
    """Splits `[Lang] [cuda] Do it` into (["Lang", "cuda"], "Do it")."""
    tags = []
    while match := re.match(r"\[([^\]]*)\] ", subject):
        tags.append(match.group(1))
        subject = subject[match.end() :]
    return tags, subject


def check_subject(patch, known_tags=None):
    """`[Tag] Imperative`, short, with tags that upstream knows (if `known_tags` are given)."""
    complaints = []
    tags, title = split_tags(patch.subject)
    if len(patch.subject) > MAX_SUBJECT:
        complaints.append(f"subject has {len(patch.subject)} characters, at most {MAX_SUBJECT} wanted; shorten it")
    if not tags:
        complaints.append(f"subject '{patch.subject}' has no tag; write '[Tag] Imperative'")
    if known_tags is not None:
        unknown = [tag for tag in tags if tag.lower() not in known_tags]
        complaints += [f"tag [{tag}] is unknown to upstream; take one of misc/prtags.json" for tag in unknown]
    if len([tag for tag in tags if not tag.islower()]) > 1:
        complaints.append(f"{len(tags)} tags {tags}: at most one is capitalised, the one of the release notes")
    return complaints + check_title(title)


def check_title(title):
    """The words after the tags: an imperative sentence without a full stop."""
    word = title.split(" ")[0]
    if not word or not word[0].isupper():
        return [f"title '{title}' does not begin with a capital letter; write '[Tag] Imperative'"]
    if title.endswith("."):
        return [f"title '{title}' ends with a full stop; leave it out"]
    if word.lower() not in IMPERATIVES and re.search(r"(ing|ed|[^siu]s)$", word):
        return [f"title begins with '{word}', an imperative is wanted (Add, not Added or Adds)"]
    return []


def check_body(patch):
    """A message that says why, apart from its trailers."""
    words = len(" ".join(patch.body).split())
    if words < MIN_BODY_WORDS:
        return [f"the message has {words} words, at least {MIN_BODY_WORDS} wanted; say the problem and why this way"]
    return []


def check_status(patch):
    """The trailer that says where the patch stands upstream."""
    if not patch.status:
        return [f"no '{STATUS}:' trailer; end the message with one of {', '.join(STATES)}"]
    state, _, detail = patch.status.partition(" ")
    if state not in STATES:
        return [f"{STATUS} is '{state}', one of {', '.join(STATES)} wanted"]
    if state in STATES_WITH_DETAIL and not re.fullmatch(r"\[.+\]", detail):
        return [f"{STATUS} '{state}' says nothing more; add the address or the reason in brackets: {state} [...]"]
    return []


def check_whitespace(patch):
    """No added line ends with white space."""
    count = sum(1 for line in patch.added if line.rstrip("\r") != line.rstrip("\r").rstrip())
    return [f"{count} added lines end with white space; remove it"] if count else []


def check_numbers(patches):
    """Files are numbered 0001, 0002, ... without a gap."""
    wanted = [f"{i:04}" for i in range(1, len(patches) + 1)]
    got = [patch.name[:4] for patch in patches]
    return [] if got == wanted else [f"files are numbered {got}, wanted {wanted}; write them with: make export"]


def readme_rows(readme):
    """Maps the file name in each row of the README's table to the row's cells."""
    rows = {}
    for line in readme.split("\n"):
        name = re.search(r"\b\d{4}-[\w.-]+\.patch", line)
        if line.startswith("|") and name:
            rows[name.group()] = [cell.strip() for cell in line.strip("|").split("|")]
    return rows


def check_readme(patches, readme):
    """One row for each patch, with its true status, and no row for another."""
    rows = readme_rows(readme)
    names = {patch.name for patch in patches}
    complaints = [f"README.md has a row for {name}, which is not here; remove it" for name in sorted(set(rows) - names)]
    for patch in patches:
        if patch.name not in rows:
            complaints.append(f"README.md has no row for {patch.name}; add one: file, why, {STATUS}")
        elif patch.status and patch.status.split(" ")[0] not in rows[patch.name][-1]:
            row = rows[patch.name][-1]
            complaints.append(f"README.md says '{row}' of {patch.name}, its trailer '{patch.status}'; make them agree")
    return complaints


def check_all(folder, known_tags=None):
    """Runs every check on a folder of patches.

    Args:
        folder (Path): The folder with `NNNN-*.patch` and `README.md`.
        known_tags (Optional[Collection[str]]): Upstream's tags, in lower case.

    Returns:
        List[str]: The complaints, each with the file's name.
    """
    patches = [parse_patch(path) for path in sorted(folder.glob("[0-9]*.patch"))]
    if not patches:
        return [f"{folder} has no patches; write them with: make export"]
    complaints = check_numbers(patches)
    for patch in patches:
        found = check_subject(patch, known_tags) + check_body(patch) + check_status(patch) + check_whitespace(patch)
        complaints += [f"{patch.name}: {complaint}" for complaint in found]
    readme = folder / "README.md"
    return complaints + check_readme(patches, readme.read_text(encoding="utf-8") if readme.exists() else "")


def main():
    """Prints the complaints; the exit status is 1 when there are any."""
    parser = argparse.ArgumentParser(description="Checks the headers of the patch series.")
    parser.add_argument("folder", type=Path, help="the folder with the patches")
    parser.add_argument("--tags", type=Path, help="upstream's misc/prtags.json")
    args = parser.parse_args()
    known_tags = set(json.loads(args.tags.read_text(encoding="utf-8"))) if args.tags else None
    complaints = check_all(args.folder, known_tags)
    for complaint in complaints:
        print(f"error: {complaint}", file=sys.stderr)
    if not complaints:
        without = "" if args.tags else " (tags not compared with upstream's list: the source is not here)"
        print(f"== headers of {len(list(args.folder.glob('[0-9]*.patch')))} patches are right{without}")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
