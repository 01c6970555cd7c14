#!/usr/bin/env python3
"""Builds the simulated CUDA driver, libcuda.so.

Usage: build.py [--out DIR] [--hide NAME,NAME...]

With --hide the library lacks those entry points, as an older driver does. A build is kept and used again until a
source changes. The last line printed is the library's path.
"""

import argparse
import concurrent.futures
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
SOURCES = sorted((HERE / "driver").glob("*.cpp"))
FLAGS = ["-std=c++17", "-O1", "-fPIC", "-fvisibility=hidden", "-pthread", "-Wall", "-Wextra", "-Werror"]


def default_folder():
    """Where builds are kept: CUDA_SIM_BUILD, or the checkout's build folder."""
    return pathlib.Path(os.environ.get("CUDA_SIM_BUILD") or HERE.parents[1] / "build" / "cuda_sim")


def compiler():
    found = os.environ.get("CXX", "g++")
    if shutil.which(found) is None:
        raise RuntimeError(
            f"the simulated CUDA driver needs a C++17 compiler ({found}): apt-get install g++, or set CXX"
        )
    return found


def run(*command):
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}\n{result.stdout}{result.stderr}failed, see above")


def fingerprint():
    """A name for this state of the sources, this compiler and these flags."""
    digest = hashlib.sha256(" ".join([compiler(), *FLAGS, pathlib.Path(__file__).read_text()]).encode())
    for path in sorted((HERE / "driver").iterdir()):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def compile_into(folder):
    pairs = [(source, folder / f"{source.stem}.o") for source in SOURCES]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda pair: run(compiler(), *FLAGS, "-c", pair[0], "-o", pair[1]), pairs))


def link(objects, hide, folder):
    """libcuda.so without the hidden names. It answers to the names by which the driver is asked for."""
    script = folder / "names.map"
    hidden = "".join(f" {name};" for name in hide)
    # An exact name wins over a pattern: a hidden one is local, whatever the sources export.
    script.write_text(f"{{ global: cu*; sim*; local:{hidden} *; }};\n")
    library = folder / "libcuda.so"
    run(
        compiler(),
        "-shared",
        "-pthread",
        *objects,
        "-Wl,-soname,libcuda.so",
        f"-Wl,--version-script={script}",
        "-Wl,--no-undefined",
        "-o",
        library,
    )
    (folder / "libcuda.so.1").symlink_to(library.name)


def make_folder(folder, fill):
    """Fills a folder aside and gives it its name, so that nobody meets half a build."""
    if folder.is_dir():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        aside = pathlib.Path(scratch) / folder.name
        aside.mkdir()
        fill(aside)
        try:
            aside.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was faster
                raise


def build(out=None, hide=()):
    """The path of libcuda.so, built where it is not there yet."""
    root = pathlib.Path(out or default_folder()).resolve()
    mark = fingerprint()
    objects = root / f"objects-{mark}"
    folder = root / "-without-".join([f"driver-{mark}", *sorted(hide)])
    if not folder.is_dir():
        make_folder(objects, compile_into)
        make_folder(folder, lambda aside: link(sorted(objects.glob("*.o")), hide, aside))
    return folder / "libcuda.so"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, help="where builds are kept (default: build/cuda_sim)")
    parser.add_argument("--hide", default="", help="entry points to leave out, with commas between them")
    arguments = parser.parse_args()
    try:
        print(build(arguments.out, [name for name in arguments.hide.split(",") if name]))
    except RuntimeError as error:
        sys.exit(f"cuda_sim: {error}")


if __name__ == "__main__":
    main()
