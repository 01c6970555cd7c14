"""make bench without its libraries: statistics, verdicts, guard, tables, and the conductor with made-up workers."""

import itertools
import json
import os
import re
import stat
import sys
import textwrap
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

# pylint: disable=wrong-import-position
from bench import markdown, measures, results, sampling, verdicts
from bench.conductor import Run
from bench.measures import GB, IN_PLACE, KB, MB, OURS, REFERENCE

LIMITS = verdicts.Limits({**verdicts.read_limits().wanted, "export_torch": 2.0, "growth": 1.1}, {})
ABOUT = {
    "command": "make lamps",
    "date": "2026-01-01",
    "machine": dict(cpu_count=2, memory_gb=8, platform="Lamp", python="3.11", load_before=0, pinned_core=1),
    "facts": {"source": {"versions": {"taichi": "1"}, "c_exchange_api": False}},
    "left_out": [{"worker": "gstaichi", "what": "all", "why": "no index"}],
}


def entry(worker, measure, size, side, *values):
    """An entry with these samples."""
    return results.Entry(worker, measure, size, side, "lamp()", 10, list(values))


def export_run(*ratios, worker="source", measure="export_torch", sizes=(KB, GB)):
    """A run in which ours costs a ratio of the reference, at one size each."""
    entries = []
    for size, ratio in zip(sizes, ratios):
        entries.append(entry(worker, measure, size, OURS, *(ratio * second for second in (1.0, 2.0, 3.0))))
        entries.append(entry(worker, measure, size, REFERENCE, 1.0, 2.0, 3.0))
    return results.Results(entries, ABOUT)


# --- statistics -----------------------------------------------------------------------------------


def test_quartiles_of_few_values():
    assert results.quartiles([7.0]) == (7.0, 7.0, 7.0)
    assert results.quartiles([1, 2, 3, 4, 5]) == (2, 3, 4)


def test_ratio_is_the_median_of_the_pairs():
    # The machine was slow during two of the three samples of one case, and during one of the other.
    ratio = results.ratio_of([2.0, 40.0, 40.0], [1.0, 1.0, 20.0])
    assert (ratio.value, ratio.of_medians) == (2.0, 40.0)
    assert (ratio.low, ratio.high) == (2.0, 21.0)


def test_results_survive_the_file(tmp_path):
    run = export_run(1.5, 1.5)
    run.save(tmp_path / "results.json")
    again = results.load(tmp_path / "results.json")
    assert (again.entries, again.about) == (run.entries, run.about)
    assert os.listdir(tmp_path) == ["results.json"]


def test_results_of_another_format_are_refused(tmp_path):
    (tmp_path / "results.json").write_text('{"format": 0, "entries": []}')
    with pytest.raises(ValueError, match="format 0, wanted 1; measure again"):
        results.load(tmp_path / "results.json")


def test_interrupted_write_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "lamp.txt"
    results.write_whole(path, "old")
    with pytest.raises(KeyboardInterrupt), results.whole(path) as unfinished:
        Path(unfinished).write_text("ne")
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["lamp.txt"]


# --- verdicts and guard ---------------------------------------------------------------------------


@pytest.mark.parametrize("ratio, met", [(1.9, True), (2.0, True), (2.004, True), (2.01, False)])
def test_met_is_judged_at_the_digits_that_are_shown(ratio, met):
    assert [verdict.met for verdict in verdicts.compare(export_run(ratio), LIMITS)] == [met]


def test_growth_compares_the_largest_size_with_1_kb():
    run = export_run(1.0, 1.25, 1.5, sizes=(KB, MB, GB))
    (verdict,) = verdicts.growth(run, LIMITS)
    assert (verdict.size, verdict.ratio.value, verdict.wanted, verdict.met) == (GB, 1.5, 1.1, False)
    assert not list(verdicts.growth(export_run(1.0), LIMITS))


def test_reference_of_a_peer_serves_each_wheel():
    measure = measures.FIELD_QUADRANTS.name
    run = results.Results(
        [
            entry("source", measure, KB, OURS, 1.0),
            entry("fast", measure, KB, OURS, 2.0),
            entry("quadrants", measure, KB, REFERENCE, 4.0),
        ],
        ABOUT,
    )
    assert [(v.wheel, v.ratio.value) for v in verdicts.compare(run, LIMITS)] == [("source", 0.25), ("fast", 0.5)]


def test_copy_of_1_kb_has_a_limit_of_its_own():
    run = export_run(15.0, 15.0, measure="nd_to_numpy", sizes=(KB, MB))
    assert [(v.limit, v.met) for v in verdicts.compare(run, LIMITS)] == [("copy_at_1_kb", True), ("copy", False)]


@pytest.mark.parametrize("ratio, wrong", [(2.1, 0), (4.0, 0), (4.1, 1)])
def test_guard_fails_beyond_twice_the_limit_only(ratio, wrong):
    lines = list(verdicts.guard(export_run(ratio), LIMITS))
    assert len(lines) == wrong
    assert not wrong or "source export_torch 1 kB: got a ratio of 4.10, wanted at most 4.00" in lines[0]


def test_guard_starts_from_what_was_measured_where_that_is_worse():
    today = verdicts.Limits(LIMITS.wanted, {"source export_torch 1 kB": 5.0, "source export_torch 1 GB": 0.1})
    lines = list(verdicts.guard(export_run(9.0, 9.0), today))
    assert [line.split(":")[0] for line in lines] == ["source export_torch 1 GB"]


def test_guard_watches_growth():
    lines = list(verdicts.guard(export_run(1.0, 2.3), verdicts.Limits({**LIMITS.wanted, "export_torch": 9}, {})))
    assert [line.split(":")[0] for line in lines] == ["source export_torch 1 GB growth"]


def test_limits_of_today_hold_what_misses(tmp_path):
    path = tmp_path / "limits.json"
    path.write_text(json.dumps({"comment": "lamps", "wanted": LIMITS.wanted, "today": {"comment": "", "ratios": {}}}))
    run = export_run(1.0, 3.0)
    verdicts.note_today(run, path)
    limits = verdicts.read_limits(path)
    assert limits.today == {"source export_torch 1 GB": 3.0, "source export_torch 1 GB growth": 3.0}
    assert limits.wanted == LIMITS.wanted
    assert not list(verdicts.guard(run, limits))


def test_every_measure_has_a_limit():
    wanted = verdicts.read_limits().wanted
    used = {m.limit_at(size) for m in measures.COMPARED for size in (KB, MB)} | {measures.GROWTH}
    assert used == set(wanted)


def test_summary_holds_ratios_and_medians():
    document = json.loads(verdicts.summary(export_run(3.0), LIMITS))
    assert document["ratios"][0]["ratio"]["value"] == 3.0
    assert document["ratios"][0]["met"] is False
    assert document["medians"][0]["median"] == 6.0
    assert "values" not in document["medians"][0]


# --- tables ---------------------------------------------------------------------------------------


def lines_of(text, word):
    """The cells of a table's lines that have a word in the first cell."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.split("\n")]
    return [line for line in lines if word in line[0]]


def test_exchange_table_shows_ratio_figure_and_verdict():
    (line,) = lines_of(markdown.exchange(export_run(1.5, 3.0), LIMITS), "torch.from_dlpack(nd) /")
    assert line[1:] == [
        "source",
        "2.0",
        "1.50 (1.50 to 1.50)",
        "3.00 (3.00 to 3.00)",
        "**not met** at 1 GB",
        "2.00 (2.00 to 2.00) **not met**",
    ]


def test_exchange_table_has_a_dash_for_what_was_not_measured():
    (line,) = lines_of(markdown.exchange(export_run(1.5, 1.5), LIMITS), "kernel(")
    assert line[3:] == ["-", "-", "-", "-"]


def test_tables_are_rectangles():
    run = export_run(1.0, 1.0)
    for measure in measures.COPIES:
        run.entries.append(entry("source", measure.name, KB, OURS, 3.0))
        run.entries.append(entry("source", measure.name, KB, REFERENCE, 1.0))
        run.entries.append(entry("source", measure.name, KB, IN_PLACE, 1.0))
    run = results.Results(run.entries, ABOUT)
    for text in (markdown.exchange(run, LIMITS), markdown.copies(run, LIMITS)):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in text.split("\n")}) == 1


def test_copies_are_judged_against_new_memory_only():
    run = results.Results(
        [
            entry("source", "nd_to_torch", MB, OURS, 1.2),
            entry("source", "nd_to_torch", MB, REFERENCE, 1.0),
            entry("source", "nd_to_torch", MB, IN_PLACE, 0.5),
            entry("source", "nd_to_numpy", MB, OURS, 1.0),
        ],
        ABOUT,
    )
    new, there = lines_of(markdown.copies(run, LIMITS), "nd.to_torch()")
    assert (new[2:], there[2:]) == (["1.20 (1.20 to 1.20)", "met"], ["2.40 (2.40 to 2.40)", ""])


def test_latency_is_sorted_by_its_ratio_and_peers_take_the_floor_of_a_wheel():
    latency = measures.LATENCY
    run = results.Results(
        [
            entry("source", latency, KB, "ndarray to torch", 6.0),
            entry("source", latency, KB, measures.LATENCY_FLOOR, 2.0),
            entry("fast", latency, KB, measures.LATENCY_FLOOR, 1.0),
            entry("fast", latency, KB, "ndarray to torch", 5.0),
            entry("quadrants", latency, KB, "Quadrants: ndarray to torch", 3.0),
        ],
        ABOUT,
    )
    lines = markdown.latency(run).split("\n")[2:]
    assert [[cell.strip() for cell in line.split("|")[1:4]] for line in lines] == [
        ["NumPy to torch", "-", "1.00 (1.00 to 1.00)"],
        ["Quadrants: ndarray to torch", "-", "1.50 (1.50 to 1.50)"],
        ["ndarray to torch", "source", "3.00 (3.00 to 3.00)"],
        ["ndarray to torch", "fast", "5.00 (5.00 to 5.00)"],
    ]


def test_what_was_left_out_is_told_with_its_reason():
    assert "Left out: gstaichi, all: no index" in markdown.about(export_run(1.0))


def test_prose_around_the_tables_stays():
    document = f"before\n{markdown.BEGIN}\nold\n{markdown.END}\nafter\n"
    assert markdown.insert(document, "new") == f"before\n{markdown.BEGIN}\n\nnew\n\n{markdown.END}\nafter\n"
    assert markdown.insert(markdown.insert(document, "newer"), "new") == markdown.insert(document, "new")


@pytest.mark.parametrize("document", ["", markdown.BEGIN, f"{markdown.END}\n{markdown.BEGIN}"])
def test_document_without_the_markers_is_refused(document):
    with pytest.raises(ValueError, match="restore them"):
        markdown.insert(document, "new")


def test_the_document_has_the_markers():
    markdown.insert((ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8"), "new")


# --- samples --------------------------------------------------------------------------------------


def test_case_runs_its_statement_as_often_as_it_says():
    seen = []
    case = sampling.Case("seen.append(lamp)", seen=seen, lamp=1)
    case.calibrate(0.001)
    assert case.loops > 100
    seen.clear()
    assert 0 < case.sample() < 0.0001
    assert len(seen) == case.loops + case.loops // 10


def test_first_runs_do_not_count():
    durations = itertools.chain([0.02] * 3, itertools.repeat(0.0002))
    case = sampling.Case("sleep(next(durations))", sleep=time.sleep, next=next, durations=durations)
    case.calibrate(0.002)
    assert 1 < case.loops < 20


def test_slow_case_runs_once():
    seen = []
    case = sampling.Case("seen.append(sleep(0.003))", sleep=time.sleep, seen=seen)
    case.calibrate(0.001)
    assert case.loops == 1
    seen.clear()
    case.sample()
    assert len(seen) == 1


def test_large_sizes_can_be_left_out():
    plan = measures.without_sizes_over(measures.FULL, 10 * MB)
    assert (max(plan.exchange_sizes), max(plan.copy_sizes)) == (MB, 10 * MB)
    assert plan.environments == measures.FULL.environments


# --- the conductor, with workers that make up their times -----------------------------------------

FAKE = """\
    #!{python}
    import json, sys
    sides = ["ours", "reference"]
    entries = [dict(measure=m, size=1, side=s, statement="lamp()", loops=1) for m in ["a", "b", "launch"] for s in sides]
    print(json.dumps(dict(entries=entries, left_out=[], facts=dict(versions={{}}))), flush=True)
    for count, line in enumerate(sys.stdin):
        number = json.loads(line)["case"]
        with open({log!r}, "a") as log:
            log.write(f"{name} {{number}}\\n")
        {action}
        print(json.dumps(dict(seconds=number + 1)), flush=True)
"""
PLAN = measures.Plan((KB,), (KB,), (), 0.001, 4, 1, 60)


class Fakes:
    """Interpreters that are no Python, but answer as a worker does."""

    def __init__(self, folder):
        self.folder, self.log = folder, folder / "order.txt"

    def make(self, name, action="pass"):
        """The path of an interpreter that does `action` before each answer."""
        path = self.folder / name
        text = textwrap.dedent(FAKE).format(python=sys.executable, log=str(self.log), name=name, action=action)
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return str(path)

    def measure(self, plan=PLAN, **pythons):
        """A whole run; returns it and the number of rounds."""
        ticks = []
        with Run(pythons, "cpu", plan, None, self.folder) as run:
            run.prepare(lambda name: None)
            run.rounds(lambda: ticks.append(1))
        return run, len(ticks)

    def order(self):
        """The (worker, case) pairs in the order in which they were asked."""
        return [tuple(line.split()) for line in self.log.read_text().split("\n") if line]


@pytest.fixture
def fakes(tmp_path):
    return Fakes(tmp_path)


def test_each_round_has_one_sample_of_each_case_and_comparisons_stay_together(fakes):
    run, rounds = fakes.measure(one=fakes.make("one"), two=fakes.make("two"))
    assert rounds == PLAN.rounds
    assert [len(found.values) for found in run.entries] == [PLAN.rounds] * 12
    order = fakes.order()
    orders, members = set(), set()
    for start in range(0, len(order), 12):
        in_round = order[start : start + 12]
        assert len(set(in_round)) == 12
        groups = [int(number) // 2 for _, number in in_round]
        order_of_groups = tuple(group for group, _ in itertools.groupby(groups))
        assert sorted(order_of_groups) == [0, 1, 2]
        orders.add(order_of_groups)
        members.add(tuple(sorted(in_round, key=lambda pair: int(pair[1]) // 2)))
    assert len(orders) > 1 and len(members) > 1


def test_what_is_short_gets_more_samples(fakes):
    run, rounds = fakes.measure(measures.Plan((), (), (), 0.001, 2, 3, 60), one=fakes.make("one"))
    counts = {found.measure: len(found.values) for found in run.entries}
    assert (rounds, counts) == (2, {"a": 2, "b": 2, "launch": 6})


def test_worker_that_dies_is_left_out_and_the_others_go_on(fakes):
    dying = fakes.make("dying", "if count == 8: sys.exit('the lamp broke')")
    run, rounds = fakes.measure(sound=fakes.make("sound"), dying=dying)
    assert rounds == PLAN.rounds
    assert {found.worker for found in run.entries} == {"sound"}
    assert [len(found.values) for found in run.entries] == [PLAN.rounds] * 6
    (left_out,) = run.left_out
    assert left_out["worker"] == "dying" and "status 1" in left_out["why"] and "the lamp broke" in left_out["why"]


def test_worker_that_cannot_begin_is_left_out_with_its_reason(fakes):
    path = Path(fakes.make("broken"))
    path.write_text(f'#!{sys.executable}\nprint(\'{{"failed": "ImportError: no lamp"}}\')\n')
    run, _ = fakes.measure(sound=fakes.make("sound"), broken=str(path))
    assert run.left_out == [{"worker": "broken", "what": "all", "why": "ImportError: no lamp"}]


def test_time_that_is_up_ends_the_run_after_a_whole_round(fakes):
    slow = fakes.make("slow", "import time; time.sleep(0.02)")
    run, rounds = fakes.measure(measures.Plan((), (), (), 0.001, 100, 1, 0.3), slow=slow)
    assert 1 <= rounds <= 3
    assert {len(found.values) for found in run.entries} == {rounds}
