"""The samples in pyperf's own format, for `pyperf stats`, `pyperf hist` and `pyperf compare_to`."""

import pyperf

from bench.results import whole


def suite_of(results):
    """A BenchmarkSuite with one benchmark for each case."""
    shared = {f"machine_{key}": str(value) for key, value in results.about["machine"].items() if value is not None}
    return pyperf.BenchmarkSuite([benchmark_of(entry, shared) for entry in results.entries])


def benchmark_of(entry, shared):
    """One case as a Benchmark of one run."""
    name = f"{entry.worker} {entry.measure} {entry.side} {entry.size}"
    metadata = {"name": name, "unit": "second", "loops": entry.loops, "description": entry.statement, **shared}
    return pyperf.Benchmark([pyperf.Run(entry.values, metadata=metadata, collect_metadata=False)])


def save(results, path):
    """Writes the suite whole or not at all."""
    with whole(path) as unfinished:
        suite_of(results).dump(unfinished, replace=True)
