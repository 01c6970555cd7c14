#!/usr/bin/env python3
"""Builds the fast wheel: the released Taichi wheel with the series' Python half and capsule code.

Usage: build.py [--python PATH] [--out DIR]

Takes a minute and a C++ compiler. The last line printed is the wheel's path.
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).resolve().parent
RELEASE = "1.7.4"
TOOLS = ("pybind11", "wheel")

# The files of the series that the wheel takes, as `git apply` patterns.
PYTHON_FILES = "python/taichi/*"
CPP_FILES = (
    "taichi/program/dlpack*",
    "taichi/python/dlpack_*",
    "taichi/python/export_cuda_interop*",
    "taichi/rhi/cuda/cuda_interop*",
)
SOURCES = (
    "taichi/program/dlpack_tensor.cpp",
    "taichi/python/dlpack_capsule.cpp",
    "taichi/python/dlpack_exchange.cpp",
    "taichi/python/dlpack_view.cpp",
    "taichi/python/export_cuda_interop.cpp",
    "taichi/rhi/cuda/cuda_interop.cpp",
)

# What stands in for the built core.
BRIDGE = ("dlpack_bridge.py", "snode_tree_bridge.py", "kept_pages.py")

HOOK = """
# The fast wheel supplies what the released core lacks.
from taichi._lib import dlpack_bridge

dlpack_bridge.install(core)
"""


class BuildError(Exception):
    """What went wrong, and the command that helps."""


def say(text):
    print(f"wheel-fast: {text}", flush=True)


def run(*command, **options):
    result = subprocess.run(
        [str(part) for part in command], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options
    )
    if result.returncode != 0:
        raise BuildError(f"{' '.join(str(part) for part in command)}\n{result.stdout.rstrip()}\nfailed, see above")
    return result.stdout.strip()


def series_number():
    match = re.search(r"^series=(\d+)$", (ROOT / "UPSTREAM").read_text(), re.MULTILINE)
    if match is None:
        raise BuildError("UPSTREAM has no line series=N")
    return match.group(1)


class Target:
    """The Python for which the wheel is built."""

    def __init__(self, python):
        query = (
            "import sys, sysconfig, os; print(sys.executable);"
            "print('.'.join(map(str, sys.version_info[:2])));"
            "print(sysconfig.get_paths()['include']);"
            "print(sysconfig.get_config_var('EXT_SUFFIX'));"
            "print(sysconfig.get_platform())"
        )
        try:
            lines = run(python, "-c", query).splitlines()
        except FileNotFoundError:
            raise BuildError(f"{python} is not there; pass the path of a Python 3.9 to 3.13 with --python") from None
        self.python, self.version, self.include, self.suffix, self.platform = lines[-5:]

    def check(self):
        missing = []
        if not self.platform.startswith("linux"):
            raise BuildError(
                f"the fast wheel is for Linux; this Python is for {self.platform}. make wheel builds others"
            )
        if not (pathlib.Path(self.include) / "Python.h").exists():
            missing.append(
                f"Python.h of Python {self.version}: apt-get install python3-dev (or python{self.version}-dev)"
            )
        if shutil.which(compiler()) is None:
            missing.append(f"a C++17 compiler ({compiler()}): apt-get install g++, or set CXX")
        if shutil.which("git") is None:
            missing.append("git: apt-get install git")
        if subprocess.run([self.python, "-m", "pip", "--version"], capture_output=True, check=False).returncode != 0:
            missing.append(f"pip of {self.python}: apt-get install python3-pip python3-venv")
        if not any((ROOT / "patches").glob("*.patch")):
            missing.append("the patches of the series in patches/")
        if missing:
            raise BuildError("missing:\n  " + "\n  ".join(missing))


def compiler():
    return os.environ.get("CXX", "g++")


def pip(target, *arguments):
    return run(target.python, "-m", "pip", "--disable-pip-version-check", *arguments)


def pinned(names):
    """The requirements of that name, as the source wheel is built with them."""
    lines = (ROOT / "requirements" / "build.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.partition("==")[0] in names]


def get_tools(target):
    """pybind11's headers and the wheel packer, in a folder of their own."""
    folder, tools = ROOT / "build" / "fast" / f"tools-{target.version}", pinned(TOOLS)
    done = folder / "done"
    if not done.exists() or done.read_text() != "\n".join(tools):
        shutil.rmtree(folder, ignore_errors=True)
        pip(target, "install", "-q", "--target", folder, *tools)
        done.write_text("\n".join(tools))
    return folder


def get_release(target):
    """The released wheel, from the package index or an earlier download."""
    folder = ROOT / "build" / "fast" / "download"
    folder.mkdir(parents=True, exist_ok=True)
    tag = "cp" + target.version.replace(".", "")
    if not list(folder.glob(f"taichi-{RELEASE}-{tag}-*.whl")):
        say(f"downloading taichi {RELEASE} for Python {target.version}")
        with tempfile.TemporaryDirectory(dir=folder) as partial:
            pip(target, "download", "-q", "--no-deps", "--only-binary=:all:", "-d", partial, f"taichi=={RELEASE}")
            for wheel in pathlib.Path(partial).glob("*.whl"):
                wheel.rename(folder / wheel.name)
    return next(folder.glob(f"taichi-{RELEASE}-{tag}-*.whl"))


def apply_series(tree, includes):
    """Applies the parts of the patches that match, in order, without fuzz."""
    for patch in sorted((ROOT / "patches").glob("*.patch")):
        arguments = [f"--include={pattern}" for pattern in includes]
        environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tree.parent)}
        run("git", "apply", "--whitespace=nowarn", *arguments, patch, cwd=tree, env=environment)


def extension_includes(target, tools, cpp):
    """Compiler flags: the series' headers, those that stand in for the core's, pybind11's and Python's."""
    ours = ["-DTI_WITH_CUDA", f"-I{cpp}", f"-I{HERE / 'include'}"]
    return [*ours, "-isystem", tools / "pybind11" / "include", "-isystem", target.include]


def extension_sources(cpp):
    return [cpp / source for source in SOURCES] + [HERE / "extension.cpp"]


def compile_extension(target, tools, cpp, output):
    flags = ["-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror"]
    includes, sources = extension_includes(target, tools, cpp), extension_sources(cpp)
    objects = [cpp / f"{source.stem}.o" for source in sources]

    def compile_one(source, obj):
        run(compiler(), *flags, *includes, "-c", source, "-o", obj)

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile_one, sources, objects))
    # The C++ runtime goes in, so that the wheel does not ask for this machine's.
    run(
        compiler(),
        "-shared",
        *objects,
        "-static-libstdc++",
        "-static-libgcc",
        "-Wl,--exclude-libs,ALL",
        "-ldl",
        "-o",
        output,
    )


def unpack(target, tools, release, folder):
    """The released wheel's files, laid out so that the paths in the patches fit."""
    environment = {**os.environ, "PYTHONPATH": str(tools)}
    run(target.python, "-m", "wheel", "unpack", "-d", folder, release, env=environment)
    tree = folder / f"taichi-{RELEASE}"
    return tree.rename(folder / "python")


def rename_version(tree, version, target):
    info = (tree / f"taichi-{RELEASE}.dist-info").rename(tree / f"taichi-{version}.dist-info")
    metadata = info / "METADATA"
    metadata.write_text(
        metadata.read_text(encoding="utf-8").replace(f"Version: {RELEASE}\n", f"Version: {version}\n", 1),
        encoding="utf-8",
    )
    # The extension was linked here, against this machine's C library.
    platform = target.platform.replace("-", "_").replace(".", "_")
    tag = "cp" + target.version.replace(".", "")
    wheel = info / "WHEEL"
    text = re.sub(r"^Tag: .*\n", "", wheel.read_text(), flags=re.MULTILINE).rstrip("\n")
    wheel.write_text(f"{text}\nTag: {tag}-{tag}-{platform}\n\n")


def assemble(target, tools, release, folder):
    """Turns the released wheel's files into those of the fast wheel."""
    tree = unpack(target, tools, release, folder)
    apply_series(folder, [PYTHON_FILES, *CPP_FILES])
    say("compiling the capsule code")
    core = tree / "taichi" / "_lib" / "core"
    compile_extension(target, tools, folder, core / f"taichi_dlpack{target.suffix}")
    for module in BRIDGE:
        shutil.copy(HERE / module, tree / "taichi" / "_lib")
    with open(tree / "taichi" / "_lib" / "__init__.py", "a", encoding="utf-8") as init:
        init.write(HOOK)
    rename_version(tree, f"{RELEASE}+dlpack{series_number()}.fast", target)
    return tree


def build(target, out):
    target.check()
    tools = get_tools(target)
    release = get_release(target)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="taichi-fast-") as scratch:
        folder = pathlib.Path(scratch)
        tree = assemble(target, tools, release, folder)
        say("packing")
        environment = {**os.environ, "PYTHONPATH": str(tools)}
        run(target.python, "-m", "wheel", "pack", "-d", folder, tree, env=environment)
        (packed,) = folder.glob("*.whl")
        out.mkdir(parents=True, exist_ok=True)
        # Into the folder first, then in one step to the name: nobody sees half a wheel.
        wheel = out / packed.name
        with tempfile.TemporaryDirectory(prefix=".partial-", dir=out) as partial:
            os.replace(shutil.copy(packed, partial), wheel)
    say(f"done in {time.monotonic() - start:.0f} s, downloads aside")
    return wheel


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="the Python to build for (default: this one)")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "dist", help="where the wheel goes (default: dist/)")
    arguments = parser.parse_args()
    try:
        wheel = build(Target(arguments.python), arguments.out.resolve())
    except BuildError as error:
        sys.exit(f"wheel-fast: {error}")
    print(wheel)


if __name__ == "__main__":
    main()
