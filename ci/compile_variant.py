"""Compiles the files that the series touches as a variant of the build: compile_variant.py TREE DATABASE [options].

DATABASE is a folder with CMake's compile_commands.json. Nothing is generated: the compiler reads, and judges. One line
tells the outcome; the compiler's errors stand before it. The exit status is 1 if one file fails.
"""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HUNK = re.compile(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@")
MESSAGE = re.compile(r"(?P<path>[^:\s]+):(?P<line>\d+):\d+: (?:warning|error):")


def changed_lines(tree, base):
    """The lines that the series adds, by path below `tree`."""
    command = ["git", "-C", tree, "diff", "--unified=0", "--no-color", base, "--", "*.cpp", "*.h"]
    lines, path = {}, None
    for text in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
        if text.startswith("+++ "):
            path = text[6:] if text.startswith("+++ b/") else None
        elif path and (hunk := HUNK.match(text)):
            first, count = int(hunk[1]), int(hunk[2] or 1)
            lines.setdefault(path, set()).update(range(first, first + count))
    return lines


def commands_of(database, tree, paths):
    """The compiler's arguments for each of `paths` that the variant builds."""
    entries = json.loads((database / "compile_commands.json").read_text(encoding="utf-8"))
    found = {os.path.relpath(entry["file"], tree): entry for entry in entries}
    return {path: found[path] for path in sorted(paths) if path in found}


def without_output(arguments):
    """The arguments, for a compiler that writes nothing."""
    output = arguments.index("-o")
    return [*arguments[:output], *arguments[output + 2 :], "-fsyntax-only"]


def with_python(arguments, include):
    """The arguments, with the headers of another Python. The files that need none stay as they are."""
    if not any((Path(argument) / "Python.h").exists() for argument in arguments):
        return None
    return [include if (Path(argument) / "Python.h").exists() else argument for argument in arguments]


def complaints(text, folder, tree, lines):
    """The compiler's messages about lines of the series. Paths may be relative to `folder`."""
    found = []
    for message in text.splitlines():
        place = MESSAGE.match(message)
        if not place:
            continue
        path = os.path.relpath(os.path.join(folder, place["path"]), tree)
        if int(place["line"]) in lines.get(path, ()):
            found.append(message)
    return found


def compile_file(entry, options, lines):
    """Whether this file is right as the variant, or None if the variant does not concern it. Prints what is wrong."""
    arguments = without_output(shlex.split(entry["command"]))
    if options.python_include:
        arguments = with_python(arguments, options.python_include)
        if arguments is None:
            return None
    folder, plain = entry["directory"], {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(arguments, cwd=folder, env=plain, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        return False
    found = complaints(done.stderr, folder, options.tree, lines) if options.warnings_of_the_series else []
    if found:
        print("\n".join(found), file=sys.stderr)
    return not found


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tree")
    parser.add_argument("database", type=Path)
    parser.add_argument("--base", required=True, help="the commit below the series")
    parser.add_argument("--name", required=True, help="what to call the variant")
    parser.add_argument("--python-include", help="the folder with Python.h to take in place of the build's")
    parser.add_argument("--warnings-of-the-series", action="store_true", help="warnings in its lines are errors")
    return parser.parse_args()


def main():
    options = parse()
    lines = changed_lines(options.tree, options.base)
    commands = commands_of(options.database, options.tree, [path for path in lines if path.endswith(".cpp")])
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(lambda entry: compile_file(entry, options, lines), commands.values()))
    right = results.count(True)
    looked_at = len(results) - results.count(None)
    print(f"== {options.name}: {right} of {looked_at} files compile")
    return 0 if right == looked_at > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
