"""Measure and report: `make bench` calls this with the environments that it made.

python -m bench measure --out FOLDER --worker source=PYTHON ...
python -m bench report --out FOLDER [--docs]
python -m bench guard --out FOLDER      # fails beyond twice the limits
python -m bench limits --out FOLDER     # notes what misses its limit today
"""

import argparse
import os
import sys
from pathlib import Path

from bench import machine, markdown, measures, results, verdicts
from bench.conductor import ROOT, Run
from bench.console import describe_run, interrupted, pairs, publish, run_rounds, tell_left_out

DOCUMENT = ROOT / "docs" / "benchmarks.md"
# For the copies of all workers, and one array of the largest size while it is made.
NEEDED_MEMORY = 4 * measures.GB


def parse(arguments):
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__.partition("\n")[0])
    parser.add_argument("verb", choices=("measure", "report", "guard", "limits"))
    parser.add_argument("--out", type=Path, required=True, help="the folder of the results")
    parser.add_argument("--worker", action="append", default=[], help="ENVIRONMENT=PYTHON, for each environment")
    parser.add_argument("--left-out", action="append", default=[], help="ENVIRONMENT=REASON, for the report")
    parser.add_argument("--arch", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--plan", default="full", choices=sorted(measures.PLANS))
    parser.add_argument("--command", default="make bench", help="what the reader types to do this again")
    parser.add_argument("--docs", action="store_true", help="also write docs/benchmarks.md and docs/img")
    return parser.parse_args(arguments)


def choose_plan(name, left_out):
    """The plan, without what this machine has no memory for."""
    plan, available = measures.PLANS[name], machine.available_memory()
    if available is None or available >= NEEDED_MEMORY:
        return plan
    why = f"got {available / 1e9:.1f} GB of free memory, wanted {NEEDED_MEMORY / 1e9:.0f} GB; end other programs"
    left_out.append({"worker": "all", "what": f"over {measures.size_name(100 * measures.MB)}", "why": why})
    return measures.without_sizes_over(plan, 100 * measures.MB)


def measure(options):
    """Measures all and writes results.json."""
    left_out = [{"worker": name, "what": "all", "why": why} for name, why in pairs(options.left_out).items()]
    plan, core = choose_plan(options.plan, left_out), machine.pick_core()
    about = describe_run(options, core)
    with Run(pairs(options.worker), options.arch, plan, core, options.out) as run:
        run.prepare(lambda name: print(f"== starting {name}", flush=True))
        if not any(entry.worker in measures.WHEELS for entry in run.entries):
            tell_left_out(run.left_out)
            sys.exit("error: no wheel can be measured, for the reasons above")
        run_rounds(run, plan)
        about.update(facts=run.facts, left_out=left_out + run.left_out)
    results.Results(run.entries, about).save(options.out / "results.json")
    tell_left_out(about["left_out"])


def report(options):
    """Makes of results.json all that people and other programs read."""
    found, limits = results.load(options.out / "results.json"), verdicts.read_limits()
    text = markdown.tables(found, limits)
    summarise(found, limits, options.out)
    publish(options, "Benchmark", text, DOCUMENT, lambda folder: draw(found, folder))


def summarise(found, limits, folder):
    """Writes summary.json, and pyperf.json where pyperf is installed."""
    results.write_whole(folder / "summary.json", verdicts.summary(found, limits))
    try:
        from bench import pyperf_file  # pylint: disable=C0415
    except ImportError:
        print("left out: pyperf.json, since pyperf is not installed; the samples are in results.json")
        return
    pyperf_file.save(found, str(folder / "pyperf.json"))


def draw(found, folder):
    """Draws the pictures, where matplotlib is installed."""
    try:
        from bench import plots  # pylint: disable=C0415
    except ImportError:
        print("left out: the pictures, since matplotlib is not installed; draw them elsewhere from results.json")
        return
    plots.save(found, folder)


def guard(options):
    """Exits with 1 if a ratio is beyond twice its limit."""
    found = results.load(options.out / "results.json")
    wrong = list(verdicts.guard(found, verdicts.read_limits()))
    for line in wrong:
        print(f"error: {line}", file=sys.stderr)
    if wrong:
        sys.exit(1)
    print(f"== guard: no ratio is beyond {verdicts.GUARD_FACTOR} times its limit")


def note_limits(options):
    """Writes the ratios that miss their limit into bench/limits.json."""
    verdicts.note_today(results.load(options.out / "results.json"))
    print(f"== wrote {verdicts.LIMITS.relative_to(ROOT)}; look at it with: git diff")


def main(arguments=None):
    options = parse(arguments)
    os.makedirs(options.out, exist_ok=True)
    {"measure": measure, "report": report, "guard": guard, "limits": note_limits}[options.verb](options)


if __name__ == "__main__":
    with interrupted():
        main()
