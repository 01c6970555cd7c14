"""Patches an installed Genesis, and takes the patches out again.

The files that patches touch are kept, as Genesis has them, in a store inside the environment, together with a note of
what they were made into. The store is whole before the first file is replaced, and each file is replaced in one step:
a run that was cut short is completed, or undone, by the next one.
"""

import argparse
import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from email import message_from_string
from pathlib import Path

STORE = Path(".taichi-dlpack") / "genesis"
# What later releases of Genesis run on. They cannot use a wheel of Taichi.
OTHER_TAICHI = ("gstaichi", "quadrants")
TOUCHED = re.compile(r"^diff --git a/(\S+) b/\1$", re.MULTILINE)


class Refusal(Exception):
    """Says what was got, what was wanted, and the remedy."""


def digest(data):
    """SHA-256 as a RECORD file has it."""
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def read(path):
    """The bytes of a file, or None if there is none."""
    return path.read_bytes() if path.is_file() else None


def replace(path, data):
    """Writes a file in one step; without data, removes it."""
    if data is None:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(path.name + ".new")
    scratch.write_bytes(data)
    os.replace(scratch, path)


def find_genesis(site):
    """The .dist-info folder of Genesis.

    Args:
        site (Path): The site-packages folder.

    Raises:
        Refusal: There is none, or its installation was cut short.
    """
    found = [path for path in sorted(site.glob("genesis_world-*.dist-info")) if (path / "RECORD").is_file()]
    if len(found) != 1:
        raise Refusal(f"got {len(found)} installations of genesis-world in {site}, wanted one; run: make genesis")
    return found[0]


def check_version(dist_info, wanted):
    """Refuses a release that the patches were not made for."""
    metadata = message_from_string((dist_info / "METADATA").read_text(encoding="utf-8"))
    version = metadata["Version"]
    if version == wanted:
        return
    needs = " ".join(metadata.get_all("Requires-Dist", []))
    remedy = f"use an environment of its own: make genesis VENV=path, or: pip install genesis-world=={wanted}"
    for name in OTHER_TAICHI:
        if re.search(rf"\b{name}\b", needs):
            raise Refusal(
                f"got genesis-world {version}, wanted {wanted}: {version} runs on {name}, another library, and "
                f"cannot use this Taichi; {remedy}"
            )
    raise Refusal(f"got genesis-world {version}, wanted {wanted}, which the patches were made for; {remedy}")


def recorded(dist_info):
    """Maps each file of the installation to the digest that its RECORD gives."""
    digests = {}
    for line in (dist_info / "RECORD").read_text(encoding="utf-8").splitlines():
        path, _, rest = line.rpartition(",")[0].rpartition(",")
        if rest.startswith("sha256="):
            digests[path.strip('"')] = rest[len("sha256=") :]
    return digests


@dataclass
class Store:
    """The originals, and what was made of them.

    Attributes:
        folder (Path): Where they are.
        made (dict): The digest that each file got; that of a file that the patches add, too.
    """

    folder: Path
    made: dict

    @classmethod
    def load(cls, prefix):
        """The store of an environment, which may be empty."""
        note = read(prefix / STORE / "made.json")
        return cls(prefix / STORE, json.loads(note) if note else {})

    def original(self, name):
        """A file as Genesis has it, or None."""
        return read(self.folder / "originals" / name)

    def save(self, originals, made):
        """Keeps the originals, then the note. What an earlier run made stays known until the files are replaced."""
        for name, data in originals.items():
            if data is not None:
                replace(self.folder / "originals" / name, data)
        self.made = made
        replace(self.folder / "made.json", json.dumps(made, indent=1).encode())

    def remove(self):
        """Removes the store, and the folder around it if nothing else is there."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.folder.parent.is_dir() and not any(self.folder.parent.iterdir()):
            self.folder.parent.rmdir()


def refuse_editable(dist_info):
    """Refuses a Genesis that is a working copy: its files are the user's own."""
    source = json.loads(read(dist_info / "direct_url.json") or "{}")
    if source.get("dir_info", {}).get("editable"):
        raise Refusal(
            f"got an editable genesis-world, from {source.get('url')}, wanted an installed wheel; apply the patches of "
            "integrations/genesis there with `git apply`, or use an environment of its own: make genesis VENV=path"
        )


def reinstall(site):
    """The command that gets Genesis' own files again."""
    version = message_from_string((find_genesis(site) / "METADATA").read_text(encoding="utf-8"))["Version"]
    return f"pip install --force-reinstall --no-deps genesis-world=={version}"


def original_of(name, site, store, digests):
    """A file as Genesis has it: the installed one, else the stored one; None if Genesis has no such file.

    Raises:
        Refusal: Somebody else changed the file.
    """
    present, wanted = read(site / name), digests.get(name)
    if present is not None and digest(present) not in (wanted, *store.made.get(name, [])):
        remedy = reinstall(site) if wanted is not None else f"rm {site / name}"
        raise Refusal(
            f"{site / name} was changed by somebody else: got a file that is neither Genesis' own nor made here; save "
            f"your changes, then: {remedy}, and again"
        )
    if wanted is None:
        return None
    for data in (present, store.original(name)):
        if data is not None and digest(data) == wanted:
            return data
    raise Refusal(f"{site / name} as Genesis has it is lost; get it with: {reinstall(site)}")


def apply_patches(originals, patches):
    """The files that patches make out of the originals. No fuzz is allowed."""
    with tempfile.TemporaryDirectory() as scratch:
        for name, data in originals.items():
            if data is not None:
                replace(Path(scratch) / name, data)
        # A repository around the folder would change what paths mean.
        environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(Path(scratch).parent)}
        command = ["git", "-c", "core.autocrlf=false", "apply", "--whitespace=nowarn", *map(str, patches)]
        done = subprocess.run(
            command, cwd=scratch, env=environment, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        )
        if done.returncode != 0:
            raise Refusal(
                f"the patches do not apply: {done.stderr.strip()}; get them back with: git checkout integrations"
            )
        return {name: read(Path(scratch) / name) for name in originals}


def patch(prefix, site, patches, version):
    """Puts the patches in. Returns the names of the files that were not patched yet."""
    dist_info = find_genesis(site)
    check_version(dist_info, version)
    digests, store = recorded(dist_info), Store.load(prefix)
    names = sorted({name for path in patches for name in TOUCHED.findall(path.read_text(encoding="utf-8"))})
    originals = {name: original_of(name, site, store, digests) for name in sorted({*names, *store.made})}
    patched = apply_patches(originals, patches)
    changed = [name for name in originals if read(site / name) != patched[name]]
    # Until all are replaced, files may be what either run made.
    either = {name: list(store.made.get(name, [])) for name in originals}
    for name in names:
        if digest(patched[name]) not in either[name]:
            either[name].append(digest(patched[name]))
    store.save(originals, either)
    for name in changed:
        replace(site / name, patched[name])
    store.save({}, {name: [digest(patched[name])] for name in names})
    return changed


def undo(prefix, site):
    """Takes the patches out. Returns the names of the files that were patched, and of others that are not the wheel's."""
    digests, store = recorded(find_genesis(site)), Store.load(prefix)
    originals = {name: original_of(name, site, store, digests) for name in store.made}
    changed = [name for name, data in originals.items() if read(site / name) != data]
    for name in changed:
        replace(site / name, originals[name])
    store.remove()
    return changed, changed_files(site, digests)


def changed_files(site, digests):
    """Names of the files that are not what RECORD says."""
    return [name for name, wanted in digests.items() if digest(read(site / name) or b"") != wanted]


def main():
    """Exit status 1, with the reason, where an environment is refused."""
    parser = argparse.ArgumentParser(description="Patches an installed Genesis, or takes the patches out.")
    parser.add_argument("verb", choices=["check", "patch", "undo"])
    parser.add_argument("prefix", type=Path, help="the environment")
    parser.add_argument("site", type=Path, help="its site-packages folder")
    parser.add_argument("--version", help="the release of Genesis that the patches are for")
    parser.add_argument("patches", nargs="*", type=Path)
    args = parser.parse_intermixed_args()
    try:
        if args.verb == "check":
            check_version(find_genesis(args.site), args.version)
            refuse_editable(find_genesis(args.site))
        elif args.verb == "patch":
            changed = patch(args.prefix, args.site, [path.resolve() for path in args.patches], args.version)
            print(f"== {len(changed)} files of Genesis patched" if changed else "== Genesis is patched already")
        else:
            report_undo(args.site, *undo(args.prefix, args.site))
    except Refusal as refusal:
        print(f"error: {refusal}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: {error}; wanted an environment that can be written, then again", file=sys.stderr)
        return 1
    return 0


def report_undo(site, changed, others):
    """Says what was restored. Files that the patches never touched are the user's own matter."""
    if others:
        print(f"== {len(changed)} files of Genesis restored")
        print(
            f"warning: {len(others)} other files are not those of its wheel, among them {others[0]}; if that was not "
            f"you: {reinstall(site)}",
            file=sys.stderr,
        )
    else:
        print(f"== {len(changed)} files of Genesis restored; all files are those of its wheel")


if __name__ == "__main__":
    sys.exit(main())
