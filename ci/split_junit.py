"""Splits pytest's JUnit file by the files of tests: split_junit.py RUN.xml FOLDER tests/python/test_a.py ...

Writes FOLDER/test_a.xml for each. A file that could not be collected has one case, its own module, in error.
"""

import argparse
import os
import sys
import xml.etree.ElementTree as ET
from pathlib import Path


def belongs(case, path):
    """Is the case a test of that file, or of a class in it?"""
    # As python.test_a.TestClass, from where pytest has its root. What fails before there are tests has it as its name.
    owner = case.get("classname") or case.get("name") or ""
    return path.stem in owner.split(".")


def write_whole(path, root):
    """Never half of it, whenever the process ends."""
    part = path.with_name(f"{path.name}.part")
    ET.ElementTree(root).write(part, encoding="unicode", xml_declaration=True)
    os.replace(part, path)


def split(run, folder, paths):
    """Writes what each of the files got."""
    cases = list(ET.parse(run).iter("testcase"))
    for path in paths:
        root = ET.Element("testsuites")
        ET.SubElement(root, "testsuite").extend(case for case in cases if belongs(case, path))
        write_whole(folder / f"{path.stem}.xml", root)


def main():
    """Reads the command line."""
    parser = argparse.ArgumentParser(description="Splits pytest's JUnit file by the files of tests.")
    parser.add_argument("run", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("paths", type=Path, nargs="+")
    args = parser.parse_args()
    split(args.run, args.folder, args.paths)


if __name__ == "__main__":
    sys.exit(main())
