"""Compares two runs of the same tests: compare_suites.py RELEASED PATCHED [--report FILE] NAME...

Both are folders with pytest's JUnit file of each file of tests, NAME.xml. A test that passes on the release must pass on
the patched wheel, but for those that skip there since it has no graphics, which the released wheel has. The exit status
is 1 if one does not, and 2 if a file left no result.
"""

import argparse
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

from summary import outcome

EXIT_INCOMPLETE = 2
# Why a test skips itself where Taichi is built without graphics, as `make wheel` does unless asked.
NO_GRAPHICS = "GGUI Not Available"


def read_outcomes(path):
    """Maps the tests of one JUnit file to passed, failed, skipped or 'no graphics'; nothing if there is no file.

    A crash may leave a test twice: it passed only if it did so each time. It may leave a case without a name, too.
    """
    outcomes = {}
    if not path.exists():
        return outcomes
    for case in ET.parse(path).iter("testcase"):
        if not case.get("name"):
            continue
        name = f"{case.get('classname')}::{case.get('name')}"
        result, message = outcome(case)
        if result == "skipped" and NO_GRAPHICS in message:
            result = "no graphics"
        outcomes[name] = result if outcomes.get(name, result) == result else "failed"
    return outcomes


def changes(released, patched):
    """The tests whose outcome differs.

    Args:
        released (Dict[str, str]): Outcomes by test.
        patched (Dict[str, str]): The same of the other run.

    Returns:
        Tuple[List[Tuple[str, str]], List[Tuple[str, str]]]: Lost: passed on the release, with what they do now.
        Gained: pass on the patched wheel, with what they did. A test that is absent is 'absent'. One that wants graphics
        is neither.
    """
    names = sorted({*released, *patched})
    pairs = [(name, released.get(name, "absent"), patched.get(name, "absent")) for name in names]
    lost = [(name, now) for name, before, now in pairs if before == "passed" and now not in ("passed", "no graphics")]
    gained = [(name, before) for name, before, now in pairs if before != "passed" == now]
    return lost, gained


def count(outcomes):
    """'3 passed, 1 failed, 0 skipped'."""
    counts = Counter("skipped" if outcome == "no graphics" else outcome for outcome in outcomes.values())
    return ", ".join(f"{counts[key]} {key}" for key in ("passed", "failed", "skipped"))


class Comparison:
    """The files of both runs."""

    def __init__(self, released, patched, names):
        self.released, self.patched = {}, {}
        self.incomplete = []
        for name in names:
            self.released.update(read_outcomes(released / f"{name}.xml"))
            self.patched.update(read_outcomes(patched / f"{name}.xml"))
            # A file that the series adds has no tests on the release.
            self.incomplete += [str(run / f"{name}.xml") for run in (released, patched) if self.is_missing(run, name)]
        self.lost, self.gained = changes(self.released, self.patched)

    @staticmethod
    def is_missing(run, name):
        """Is there a log of a run that left no result?"""
        return (run / f"{name}.log").exists() and not (run / f"{name}.xml").exists()

    def summary(self):
        """Lines of Markdown."""
        added = [name for name, before in self.gained if before == "absent"]
        gained = [(name, before) for name, before in self.gained if before != "absent"]
        yield "| wheel | tests |\n|---|---|"
        yield f"| released | {count(self.released)} |\n| patched | {count(self.patched)} |\n"
        yield f"Lost: {len(self.lost)}. Gained: {len(gained)}. New on the patched wheel: {len(added)}."
        yield f"Not compared, as the patched wheel has no graphics: {len(self.without_graphics())}."
        yield from (f"* lost: `{name}` passed on the release, is {now} on the patched wheel" for name, now in self.lost)
        yield from (f"* gained: `{name}` was {before} on the release" for name, before in gained)
        yield from (f"* no result: {path}; its log is beside it" for path in self.incomplete)

    def without_graphics(self):
        """The tests that pass on the release and skip themselves for want of graphics on the patched wheel."""
        return [
            name for name, now in self.patched.items() if now == "no graphics" and self.released.get(name) == "passed"
        ]

    def one_line(self, name):
        """What to show while it runs."""
        more = f"; LOST {len(self.lost)}" if self.lost else ""
        more += "; NO RESULT, see its log" if self.incomplete else ""
        return f"{name}: released {count(self.released)}; patched {count(self.patched)}{more}"


def main():
    """Prints the comparison."""
    parser = argparse.ArgumentParser(description="Compares two runs of the same tests.")
    parser.add_argument("released", type=Path)
    parser.add_argument("patched", type=Path)
    parser.add_argument("--report", type=Path, help="also write it there")
    parser.add_argument("--one-line", action="store_true", help="counts alone, and a status of 0")
    parser.add_argument("names", nargs="+")
    args = parser.parse_args()
    found = Comparison(args.released, args.patched, args.names)
    if args.one_line:
        print(found.one_line(" ".join(args.names)))
        return 0
    text = "\n".join(found.summary()) + "\n"
    print(text, end="")
    if args.report:
        args.report.write_text(f"# The released wheel against the patched one\n\n{text}", encoding="utf-8")
    if found.lost:
        print("error: the patched wheel loses tests, listed above", file=sys.stderr)
        return 1
    if found.incomplete:
        print("error: not all files left a result; run the same command again", file=sys.stderr)
        return EXIT_INCOMPLETE
    print("== the patched wheel loses no test")
    return 0


if __name__ == "__main__":
    sys.exit(main())
