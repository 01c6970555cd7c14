"""Downloads and unpacks the LLVM 15 that upstream builds its releases with."""

import argparse
import os
import shutil
import sys
import tempfile
import urllib.request
import zipfile
from pathlib import Path

STEP = 1 << 20


def download(url, target):
    """Copies `url` into the open file `target`, with a line for every tenth."""
    with urllib.request.urlopen(url) as source:
        total = int(source.headers.get("Content-Length") or 0)
        done, shown = 0, 0
        while block := source.read(STEP):
            target.write(block)
            done += len(block)
            if total and done * 10 // total > shown:
                shown = done * 10 // total
                print(f"   {shown * 10} % of {total >> 20} MiB", flush=True)
    target.flush()


def unpack(archive, folder):
    """Unpacks a zip into `folder` without its top folder, keeping the modes of the files."""
    with zipfile.ZipFile(archive) as content:
        for entry in content.infolist():
            parts = Path(entry.filename).parts[1:]
            if not parts or entry.is_dir():
                continue
            if ".." in parts:
                raise ValueError(f"the archive holds a path outside itself: {entry.filename}")
            path = folder.joinpath(*parts)
            path.parent.mkdir(parents=True, exist_ok=True)
            with content.open(entry) as source, open(path, "wb") as target:
                shutil.copyfileobj(source, target)
            if mode := entry.external_attr >> 16 & 0o777:
                path.chmod(mode)


def main():
    """Leaves a whole LLVM in the folder, or nothing."""
    parser = argparse.ArgumentParser(description="Downloads upstream's prebuilt LLVM.")
    parser.add_argument("url")
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    args.folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=args.folder.parent) as scratch:
        try:
            with open(Path(scratch, "llvm.zip"), "wb") as target:
                download(args.url, target)
            unpack(Path(scratch, "llvm.zip"), Path(scratch, "llvm"))
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            print(f"error: {args.url}: {error}", file=sys.stderr)
            return 1
        os.replace(Path(scratch, "llvm"), args.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
