"""The table of `make bisect`: bisect_report.py FOLDER --tag TAG < steps.

Each line of the input is the name of a patch and the commit that it gives. FOLDER has a folder for each step, with what
the step noted in `result` and the JUnit files of its tests. The table is printed and written to FOLDER/report.md.
"""

import argparse
import sys
from pathlib import Path

from summary import read_suite

COLUMNS = ("step", "patch", "build s", "tests passed", "result")


def read_result(folder, commit):
    """What a step noted, or nothing if it looked at other patches than those of now."""
    path = folder / "result"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    result = dict(line.split("=", 1) for line in lines)
    return result if result.get("commit") == commit else {}


def is_tested(folder, commit):
    """Did all go well, with tests?"""
    result = read_result(folder, commit)
    return result.get("outcome") == "passed" and result["build"] == "1" and result["suite"] != "none"


def count_tests(folder):
    """'12 Python, 3 C++', with what failed or was skipped; '-' if no test ran."""
    texts = []
    for file, name in (("python.xml", "Python"), ("cpp.xml", "C++")):
        if (folder / file).exists():
            counts, _, _ = read_suite(folder / file)
            more = "".join(f", {counts[key]} {key}" for key in ("failed", "skipped") if counts[key])
            texts.append(f"{counts['passed']} {name}{more}")
    return "; ".join(texts) or "-"


def row(number, patch, commit, out):
    """The cells of one step."""
    folder = out / patch[:4]
    result = read_result(folder, commit)
    if not result:
        return (str(number), patch, "-", "-", "not run")
    outcome = result.get("outcome", "cut short")
    if outcome == "passed" and result["build"] == "0":
        outcome = "applies, is formatted; not built"
    if "left_out" in result:
        outcome += f"; left out: {result['left_out']}"
    return (str(number), patch, result.get("seconds", "-"), count_tests(folder), outcome)


def table(rows):
    """The rows as Markdown."""
    lines = [COLUMNS, ("---",) * len(COLUMNS), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main():
    """Prints the table and writes it."""
    parser = argparse.ArgumentParser(description="Makes the table of `make bisect`.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tag", required=True, help="the release below the patches")
    args = parser.parse_args()
    steps = [line.split() for line in sys.stdin if line.strip()]
    whole = all(is_tested(args.folder / patch[:4], commit) for patch, commit in steps)
    text = table([row(number, *step, args.folder) for number, step in enumerate(steps, 1)])
    title = f"# The series, patch by patch, on {args.tag}\n\nThe last patch gives commit {steps[-1][1]}.\n"
    title += "Each step was built and tested.\n\n" if whole else "Not each step was built and tested.\n\n"
    args.folder.mkdir(parents=True, exist_ok=True)
    (args.folder / "report.md").write_text(title + text, encoding="utf-8")
    print(text, end="")


if __name__ == "__main__":
    main()
