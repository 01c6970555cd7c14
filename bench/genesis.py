"""Genesis as released against the patched one: `make bench-genesis` calls this with the environments that it made.

python -m bench.genesis measure --out FOLDER --worker stock=PYTHON --worker patched=PYTHON
python -m bench.genesis report --out FOLDER [--docs]
"""

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path

from bench import genesis_measures as measures
from bench import markdown, results
from bench.conductor import ROOT, Run
from bench.console import describe_run, interrupted, pairs, publish, run_rounds, tell_left_out
from bench.results import quartiles

DOCUMENT = ROOT / "docs" / "genesis.md"


def parse(arguments):
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.genesis", description=__doc__.partition("\n")[0])
    parser.add_argument("verb", choices=("measure", "report"))
    parser.add_argument("--out", type=Path, required=True, help="the folder of the results")
    parser.add_argument("--worker", action="append", default=[], help="ENVIRONMENT=PYTHON: stock or off, and patched")
    parser.add_argument("--arch", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--environments", type=int, nargs="+", help="in the scene (default: 1 64 1024 4096; GPU: 4096)")
    parser.add_argument("--command", default="make bench-genesis", help="what the reader types to do this again")
    parser.add_argument("--keep", action="store_true", help="add to an earlier run of the same versions")
    parser.add_argument("--docs", action="store_true", help="also write docs/genesis.md and docs/img")
    return parser.parse_args(arguments)


def measure(options):
    """Measures all and writes results.json. Each number of environments has processes of its own."""
    plan = measures.PLANS[options.arch]
    about = {**describe_run(options, core=None), "left_out": [], "facts": {}}
    entries = []
    for count in options.environments or plan.environments:
        found = measure_one(options, replace(plan, environments=(count,)))
        entries += found.entries
        about["facts"].update(found.facts)
        about["left_out"] += found.left_out
    path, found = options.out / "results.json", results.Results(entries, about)
    if options.keep and path.exists():
        found = added(found, results.load(path))
    found.save(path)
    tell_left_out(about["left_out"])


def added(found, earlier):
    """A run with what an earlier one of the same versions measured at other numbers of environments."""
    for key in ("arch", "facts"):
        if found.about[key] != earlier.about[key]:
            sys.exit(
                f"error: got an earlier run of {earlier.about[key]}, wanted one of {found.about[key]}; leave KEEP=1 out"
            )
    counts = {entry.size for entry in found.entries}
    kept = [entry for entry in earlier.entries if entry.size not in counts]
    commands = f"{earlier.about['command']}; {found.about['command']}"
    left_out = earlier.about["left_out"] + found.about["left_out"]
    return results.Results(kept + found.entries, {**earlier.about, "command": commands, "left_out": left_out})


def measure_one(options, plan):
    """One number of environments; returns the Run."""
    (count,) = plan.environments
    with Run(pairs(options.worker), options.arch, plan, None, options.out) as run:
        run.prepare(lambda name: print(f"== {name}, {count} environments: the kernels compile", flush=True))
        run_rounds(run, plan)
    if {entry.worker for entry in run.entries} != pairs(options.worker).keys():
        tell_left_out(run.left_out)
        sys.exit("error: an environment cannot be measured, for the reason above")
    return run


class Figures:
    """What the tables and the picture show of a run.

    Args:
        found (Results): The run.
    """

    def __init__(self, found):
        self._results = found
        self.counts = found.sizes(measures.RL)
        self.reference = measures.STOCK if measures.STOCK in found.about["facts"] else measures.OFF

    @property
    def shown(self):
        """The number of environments whose times are shown: 64, which most figures are wanted of, else the largest."""
        return 64 if 64 in self.counts else self.counts[-1]

    def rows(self):
        """All (measure, side) that were measured."""
        for name in (*measures.LOOP, measures.CONTACTS, measures.SOME_OF_A_GETTER, *measures.GETTERS):
            for side in (measures.CALL, measures.VIEW):
                if self.entry(measures.PATCHED, name, self.counts[0], side):
                    yield name, side

    def entry(self, worker, name, count, side):
        """The Entry, or None."""
        return self._results.find(worker, name, count, side)

    def seconds(self, worker, name, count, side):
        """The median, or None."""
        found = self.entry(worker, name, count, side)
        return quartiles(found.values)[1] if found else None

    def ratio(self, name, count, side):
        """The patched over the released one, which knows no views."""
        return self._results.ratio(
            self.entry(measures.PATCHED, name, count, side), self.entry(self.reference, name, count, measures.CALL)
        )


def wanted_table(figures):
    """The figures that are wanted, and whether they are reached."""
    rows = []
    for (name, side, count), (microseconds, ratio) in measures.WANTED.items():
        seconds, found = figures.seconds(measures.PATCHED, name, count, side), figures.ratio(name, count, side)
        if found is None:
            continue
        if microseconds:
            got, most, met = f"{1e6 * seconds:.1f} µs", f"{microseconds:.0f} µs", 1e6 * seconds <= microseconds
        else:
            got, most, met = markdown.show(found), f"{ratio:.2f}", found.value <= ratio
        rows.append([f"{name}, {measures.SIDES[side]}", count, most, got, "met" if met else "**not met**"])
    return markdown.table(["", "environments", "at most", "got", ""], rows)


def ratio_table(figures):
    """Each measure over the released Genesis, at each number of environments."""
    shown = figures.shown
    head = ["", "", *figures.counts, f"{shown} environments, released", "this"]
    rows = []
    for name, side in figures.rows():
        ratios = [markdown.show(figures.ratio(name, count, side)) for count in figures.counts]
        times = (figures.seconds(figures.reference, name, shown, measures.CALL),)
        times += (figures.seconds(measures.PATCHED, name, shown, side),)
        rows.append([name, measures.SIDES[side], *ratios, *(f"{1e6 * seconds:.1f} µs" for seconds in times)])
    return markdown.table(head, rows)


def tables(found):
    """All of the document's part that is written by the machine."""
    figures = Figures(found)
    return "\n\n".join([markdown.about(found), wanted_table(figures), ratio_table(figures)])


def draw(found, folder):
    """Draws the picture, where matplotlib is installed."""
    try:
        from bench import genesis_plot  # pylint: disable=C0415
    except ImportError:
        print("left out: the picture, since matplotlib is not installed; draw it elsewhere from results.json")
        return
    genesis_plot.save(Figures(found), folder)


def report(options):
    """Makes of results.json what people read."""
    found = results.load(options.out / "results.json")
    publish(options, "Genesis", tables(found), DOCUMENT, lambda folder: draw(found, folder))


def main(arguments=None):
    options = parse(arguments)
    os.makedirs(options.out, exist_ok=True)
    {"measure": measure, "report": report}[options.verb](options)


if __name__ == "__main__":
    with interrupted():
        main()
