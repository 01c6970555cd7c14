"""Prints what a test run was about and how it ended, from pytest's JUnit files."""

import argparse
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PEERS = ("torch", "numpy", "jax", "warp-lang", "apache-tvm-ffi")


def outcome(case):
    """(outcome, message) of one test case: passed, failed or skipped."""
    for child in case:
        if child.tag in ("failure", "error"):
            return "failed", child.get("message", "")
        if child.tag == "skipped":
            return "skipped", child.get("message", "")
    return "passed", ""


def read_suite(path):
    """Reads one JUnit file.

    Args:
        path (Path): The file that pytest wrote.

    Returns:
        Tuple[Counter, Counter, List[str]]: Tests by outcome, skips by reason, names of the failed ones.
    """
    counts, reasons, failed = Counter(), Counter(), []
    for case in ET.parse(path).iter("testcase"):
        result, message = outcome(case)
        counts[result] += 1
        if result == "skipped":
            reasons[" ".join(message.split()) or "NO REASON GIVEN"] += 1
        if result == "failed":
            failed.append(f"{case.get('classname')}::{case.get('name')}")
    return counts, reasons, failed


def version_of(package):
    """`name version`, or that it is not installed."""
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"{package} NOT INSTALLED"


def verdict(status, counts):
    """Why a suite is not a success, or an empty string."""
    if status not in (0, 1):
        return f"pytest ended with status {status}"
    if counts["failed"] or status == 1:
        return "failed"
    return "" if counts["passed"] else "no test passed"


def main():
    """Prints the summary; the exit status is 1 unless all suites ended well."""
    parser = argparse.ArgumentParser(description="Sums up a test run.")
    parser.add_argument("results", type=Path, help="folder with NAME.xml files")
    parser.add_argument("--arch", required=True)
    parser.add_argument("--left-out", default="", help="what did not run, and why")
    parser.add_argument("suites", nargs="+", metavar="NAME=STATUS", help="each suite and pytest's exit status")
    args = parser.parse_args()

    print(f"\n== summary\nwheel:   {version_of('taichi')}\nbackend: {args.arch}, Python {sys.version.split()[0]}")
    print(f"peers:   {', '.join(map(version_of, PEERS))}")
    bad = False
    for suite in args.suites:
        name, _, status = suite.partition("=")
        path = args.results / f"{name}.xml"
        counts, reasons, failed = read_suite(path) if path.exists() else (Counter(), Counter(), [])
        problem = verdict(int(status), counts)
        bad = bad or bool(problem)
        numbers = ", ".join(f"{counts[key]} {key}" for key in ("passed", "failed", "skipped"))
        print(f"{name + ':':<12} {numbers}{' -- ' + problem if problem else ''}")
        for reason, count in reasons.most_common():
            print(f"    skipped {count}: {reason}")
        for test in failed:
            print(f"    failed: {test}")
    if args.left_out:
        print(f"left out:    {args.left_out}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
