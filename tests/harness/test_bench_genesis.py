"""make bench-genesis without Genesis: what its tables make of samples, and what it refuses."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

# pylint: disable=wrong-import-position
from bench import genesis, markdown, results
from bench import genesis_measures as measures

ABOUT = {
    "arch": "cpu",
    "command": "make lamps",
    "date": "2026-01-01",
    "machine": dict(cpu_count=2, memory_gb=8, platform="Lamp", python="3.11", load_before=0, pinned_core=None),
    "left_out": [],
}
COUNTS = (1, 64)


def run(times, reference=measures.STOCK):
    """A run in which the reference takes 100 us for all, and the patched Genesis `times[name, side]` us."""
    entries = []
    for count in COUNTS:
        names = {name for name, _ in times} | {measures.RL}
        for name in names:
            entries.append(results.Entry(reference, name, count, measures.CALL, "call()", 1, [1e-4, 2e-4, 1e-4]))
        for (name, side), microseconds in times.items():
            values = [microseconds * 1e-6, 2e-6 * microseconds, microseconds * 1e-6]
            entries.append(results.Entry(measures.PATCHED, name, count, side, "call()", 1, values))
    facts = {name: {"versions": {"taichi": "1"}} for name in (reference, measures.PATCHED)}
    return results.Results(entries, {**ABOUT, "facts": facts})


def lines_of(text, start):
    """The cells of the table lines that start with a word."""
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith(start)]


@pytest.mark.parametrize("reference", [measures.STOCK, measures.OFF])
def test_ratios_are_over_the_reference(reference):
    text = genesis.tables(run({(measures.RL, measures.CALL): 80.0, (measures.RL, measures.VIEW): 50.0}, reference))
    found = lines_of(genesis.ratio_table(genesis.Figures(run({(measures.RL, measures.CALL): 80.0}, reference))), "| RL")
    assert found == [["RL loop", "snapshots", "0.80 (0.80 to 0.80)", "0.80 (0.80 to 0.80)", "100.0 µs", "80.0 µs"]]
    assert [line[1] for line in lines_of(text, "| RL loop |")] == ["snapshots", "live views"]


@pytest.mark.parametrize("microseconds, verdict", [(4.9, "met"), (5.2, "**not met**")])
def test_a_time_that_is_wanted_is_judged(microseconds, verdict):
    times = {("get_dofs_position", measures.VIEW): microseconds, (measures.RL, measures.CALL): 80.0}
    (line,) = lines_of(genesis.wanted_table(genesis.Figures(run(times))), "| get_dofs_position, live")
    assert line[1:3] == ["64", "5 µs"] and line[4] == verdict


@pytest.mark.parametrize("microseconds, verdict", [(75.0, "met"), (76.0, "**not met**")])
def test_a_ratio_that_is_wanted_is_judged(microseconds, verdict):
    table = genesis.wanted_table(genesis.Figures(run({(measures.RL, measures.CALL): microseconds})))
    first, _second = lines_of(table, "| RL loop, snapshots")
    assert first[1:3] == ["1", "0.75"] and first[4] == verdict


def test_what_was_not_measured_has_no_line():
    text = genesis.tables(run({(measures.RL, measures.CALL): 80.0}))
    assert not lines_of(text, "| get_") and len(lines_of(text, "| RL loop, snapshots")) == 2


def test_a_run_is_added_to_an_earlier_one():
    earlier, now = run({(measures.RL, measures.CALL): 80.0}), run({(measures.RL, measures.CALL): 40.0})
    now.entries = [entry for entry in now.entries if entry.size == 64]
    figures = genesis.Figures(genesis.added(now, earlier))
    assert figures.counts == [1, 64]
    assert [round(figures.ratio(measures.RL, count, measures.CALL).value, 2) for count in (1, 64)] == [0.8, 0.4]


def test_a_run_of_other_versions_is_not_added_to():
    other = run({(measures.RL, measures.CALL): 80.0})
    other.about["facts"][measures.PATCHED] = {"versions": {"taichi": "2"}}
    with pytest.raises(SystemExit, match="KEEP=1"):
        genesis.added(run({(measures.RL, measures.CALL): 80.0}), other)


def test_the_document_has_a_place_for_the_tables():
    assert markdown.BEGIN in genesis.DOCUMENT.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "setting, words",
    [("ENVS=1 x", "ENVS is 'x'"), ("ENVS=0", "'0'"), ("ARCH=tpu", "ARCH is"), ("DOCS=2", "DOCS"), ("KEEP=2", "KEEP")],
)
def test_a_wrong_setting_is_told_before_any_work(setting, words):
    done = subprocess.run(
        [str(ROOT / "build.sh"), "bench-genesis", setting], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and words in done.stderr and not done.stdout
