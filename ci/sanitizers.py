#!/usr/bin/env python3
"""Builds the series' conversion and capsule code by itself, with the sanitizers of clang.

Usage: sanitizers.py fuzzer|extension OUT [--python PATH]
       sanitizers.py runtime

`fuzzer` makes the program OUT, of tests/fuzz/tensor_fuzzer.cpp. `extension` makes the
extension of the fast wheel in the folder OUT. `runtime` prints what the dynamic loader
must load before a Python that imports that extension.
"""

import argparse
import os
import pathlib
import platform
import shutil
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "ci" / "fast"))

import build  # noqa: E402

FUZZER = ROOT / "tests" / "fuzz" / "tensor_fuzzer.cpp"
INSTALL = "apt-get install clang-15 libclang-common-15-dev"
FLAGS = ["-std=c++17", "-O1", "-g", "-fno-omit-frame-pointer", "-Wall", "-Wextra", "-Werror"]
# A program that goes on after its first fault would look like one without.
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def compiler():
    """clang++: the one in CXX, or the first on PATH."""
    named = os.environ.get("CXX", "")
    names = [named] if "clang" in named else []
    names += ["clang++-15", "clang++", *(f"clang++-{version}" for version in range(20, 13, -1))]
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        raise build.BuildError(f"clang++ is not here; install it with: {INSTALL}, or set CXX to a clang++")
    return found


def runtime(kind, suffix):
    """The path of one of clang's runtime libraries, which a package of their own brings."""
    name = f"libclang_rt.{kind}-{platform.machine()}.{suffix}"
    path = pathlib.Path(build.run(compiler(), f"-print-file-name={name}"))
    if not path.is_absolute():
        raise build.BuildError(f"{compiler()} has no {name}; install it with: {INSTALL}")
    return path


def preloaded():
    """The sanitizer's library, and the one whose exceptions it follows."""
    return [runtime("asan", "so"), pathlib.Path(build.run(compiler(), "-print-file-name=libstdc++.so.6"))]


def build_fuzzer(cpp, out):
    runtime("fuzzer", "a")
    source = cpp / "taichi" / "program" / "dlpack_tensor.cpp"
    build.run(compiler(), *FLAGS, *SANITIZE, "-fsanitize=fuzzer", f"-I{cpp}", source, FUZZER, "-o", out)


def build_extension(target, cpp, out):
    runtime("asan", "so")
    includes = build.extension_includes(target, build.get_tools(target), cpp)
    sources = build.extension_sources(cpp)
    flags = [*FLAGS, *SANITIZE, "-shared-libasan", "-shared", "-fPIC", "-fvisibility=hidden"]
    build.run(compiler(), *flags, *includes, *sources, "-o", out / f"taichi_dlpack{target.suffix}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("fuzzer", "extension", "runtime"))
    parser.add_argument("out", type=pathlib.Path, nargs="?", help="the program, or the folder of the extension")
    parser.add_argument("--python", default=sys.executable, help="the Python to build for (default: this one)")
    arguments = parser.parse_args()
    try:
        if arguments.what == "runtime":
            print(":".join(map(str, preloaded())))
            return
        if arguments.out is None:
            parser.error(f"{arguments.what} needs OUT")
        with tempfile.TemporaryDirectory(prefix="taichi-sanitize-") as scratch:
            cpp = pathlib.Path(scratch)
            build.apply_series(cpp, build.CPP_FILES)
            if arguments.what == "fuzzer":
                build_fuzzer(cpp, arguments.out.resolve())
            else:
                build_extension(build.Target(arguments.python), cpp, arguments.out.resolve())
    except build.BuildError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
