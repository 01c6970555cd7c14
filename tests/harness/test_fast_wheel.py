"""The fast wheel is the released wheel and the named additions, and its RECORD is right."""

import base64
import csv
import hashlib
import io
import pathlib
import re
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Beside the new files of the series.
ADDED = {
    r"taichi/_lib/core/taichi_dlpack\..*\.so",
    r"taichi/_lib/dlpack_bridge\.py",
    r"taichi/_lib/snode_tree_bridge\.py",
    r"taichi/_lib/kept_pages\.py",
}
# What packing writes anew.
PACKING = {"METADATA", "WHEEL", "RECORD"}


def newest(folder, pattern):
    wheels = sorted((ROOT / folder).glob(pattern), key=lambda path: path.stat().st_mtime)
    if not wheels:
        pytest.skip(f"no {pattern} in {folder}/; make wheel-fast puts one there")
    return zipfile.ZipFile(wheels[-1])


@pytest.fixture(scope="module")
def fast():
    return newest("dist", "taichi-*.fast-*.whl")


@pytest.fixture(scope="module")
def released(fast):
    tag = re.search(r"-(cp\d+)-", fast.filename).group(1)
    return newest("build/fast/download", f"taichi-*-{tag}-*.whl")


def contents(wheel):
    """What the wheel installs, by its name without the version."""
    return {
        re.sub(r"^taichi-[^/]*\.dist-info/", "dist-info/", name): wheel.read(name)
        for name in wheel.namelist()
        if not name.endswith("/")
    }


def patched_files():
    """The files of the series that are in the wheel: those that it changes, those that it adds."""
    changed, added = set(), set()
    for patch in (ROOT / "patches").glob("*.patch"):
        for old, new in re.findall(r"^--- (.*)\n\+\+\+ b/python/(taichi/.*)$", patch.read_text(), re.MULTILINE):
            (added if old == "/dev/null" else changed).add(new)
    return changed - added, added


def test_files_are_the_released_ones_and_the_additions(fast, released):
    ours, theirs = contents(fast), contents(released)
    assert set(theirs) <= set(ours)
    _, new = patched_files()
    added = set(ours) - set(theirs)
    assert new <= added
    added -= new
    assert len(added) == len(ADDED)
    assert all(any(re.fullmatch(pattern, name) for pattern in ADDED) for name in added)


def test_changed_files_are_those_of_the_series(fast, released):
    ours, theirs = contents(fast), contents(released)
    changed = {name for name in theirs if ours[name] != theirs[name]}
    expected, _ = patched_files()
    assert changed == expected | {"taichi/_lib/__init__.py"} | {f"dist-info/{name}" for name in PACKING}


def test_record_names_every_file_with_its_digest(fast):
    (record,) = [name for name in fast.namelist() if name.endswith(".dist-info/RECORD")]
    rows = {row[0]: row[1:] for row in csv.reader(io.StringIO(fast.read(record).decode()))}
    assert set(rows) == {name for name in fast.namelist() if not name.endswith("/")}
    for name, (digest, size) in rows.items():
        if name == record:
            continue
        data = fast.read(name)
        expected = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        assert digest == f"sha256={expected}"
        assert int(size) == len(data)


def test_version_and_tag_agree_with_the_file_name(fast):
    name, version, *tags = pathlib.Path(fast.filename).stem.split("-")
    metadata = fast.read(f"{name}-{version}.dist-info/METADATA").decode()
    wheel = fast.read(f"{name}-{version}.dist-info/WHEEL").decode()
    assert re.search(r"^Version: (.*)$", metadata, re.MULTILINE).group(1) == version
    assert re.findall(r"^Tag: (.*)$", wheel, re.MULTILINE) == ["-".join(tags)]
    assert re.fullmatch(r"1\.7\.4\+dlpack\d+\.fast", version)
