"""The measured ratios against the wanted ones, and the guard of CI."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.measures import COMPARED, EXCHANGE, GROWTH, KB, OURS, REFERENCE, WHEELS, size_name
from bench.results import Ratio, quartiles, write_whole

LIMITS = Path(__file__).with_name("limits.json")
# A machine that others use can double a ratio of short times; more is not noise.
GUARD_FACTOR = 2


@dataclass(frozen=True)
class Limits:
    """What limits.json says.

    Attributes:
        wanted: A dict from the name of a limit to the ratio that is wanted.
        today: Where that is not reached: a dict from the key of a Verdict to the ratio of the day when it was noted.
    """

    wanted: dict
    today: dict

    def guarded(self, verdict):
        """The ratio that the guard starts from: the wanted one, or today's where that is worse."""
        return max(verdict.wanted, self.today.get(verdict.key, 0))


def read_limits(path=LIMITS):
    """The Limits in a file."""
    with open(path, encoding="utf-8") as file:
        document = json.load(file)
    return Limits(document["wanted"], document["today"]["ratios"])


@dataclass(frozen=True)
class Verdict:
    """One measured ratio.

    Attributes:
        measure: The name of the measure.
        wheel: The environment of side "ours".
        size: Bytes.
        limit: The name of the limit.
        ratio: The Ratio.
        wanted: The ratio that is wanted, at most.
    """

    measure: str
    wheel: str
    size: int
    limit: str
    ratio: Ratio
    wanted: float

    @property
    def key(self):
        """A name for this ratio, in limits.json."""
        return f"{self.wheel} {self.measure} {size_name(self.size)}{' growth' if self.limit == GROWTH else ''}"

    @property
    def met(self):
        """Whether the ratio is what is wanted, at the two digits that the tables show."""
        return round(self.ratio.value, 2) <= self.wanted


def compare(results, limits):
    """The Verdicts on all measures, wheels and sizes that have both sides."""
    for measure in COMPARED:
        for wheel in WHEELS:
            for size in results.sizes(measure.name):
                ratio = results.ratio(
                    results.find(wheel, measure.name, size, OURS), find_reference(results, wheel, measure.name, size)
                )
                if ratio:
                    limit = measure.limit_at(size)
                    yield Verdict(measure.name, wheel, size, limit, ratio, limits.wanted[limit])


def find_reference(results, wheel, measure, size):
    """The other side: from the same process, else from the peer that has it."""
    workers = [wheel] + sorted({entry.worker for entry in results.entries} - set(WHEELS))
    found = (results.find(worker, measure, size, REFERENCE) for worker in workers)
    return next((entry for entry in found if entry), None)


def growth(results, limits):
    """The Verdicts on the cost at the largest size over that at 1 kB, for the measures that must not depend on it."""
    for measure in EXCHANGE:
        for wheel in WHEELS:
            largest = max(results.sizes(measure.name), default=KB)
            ratio = results.ratio(
                results.find(wheel, measure.name, largest, OURS), results.find(wheel, measure.name, KB, OURS)
            )
            if ratio and largest > KB:
                yield Verdict(measure.name, wheel, largest, GROWTH, ratio, limits.wanted[GROWTH])


def guard(results, limits):
    """A line for each ratio beyond twice its limit; none if all is well."""
    for verdict in judge_all(results, limits):
        bound = GUARD_FACTOR * limits.guarded(verdict)
        if verdict.ratio.value > bound:
            yield (
                f"{verdict.key}: got a ratio of {verdict.ratio.value:.2f}, wanted at most {bound:.2f}, which is twice the "
                "figure of bench/limits.json; if that is no noise, profile the change that did it"
            )


def judge_all(results, limits):
    """All Verdicts."""
    return [*compare(results, limits), *growth(results, limits)]


def note_today(results, path=LIMITS):
    """Writes the ratios that miss what is wanted into limits.json, for the guard."""
    with open(path, encoding="utf-8") as file:
        document = json.load(file)
    missed = [verdict for verdict in judge_all(results, read_limits(path)) if not verdict.met]
    about = results.about
    document["today"] = {
        "comment": f"Measured on {about['date']} with {about['command']} on {about['machine'].get('cpu_model_name')}.",
        "ratios": {verdict.key: round(verdict.ratio.value, 2) for verdict in missed},
    }
    write_whole(path, json.dumps(document, indent=2) + "\n")


def summary(results, limits):
    """All ratios, verdicts and medians, as JSON."""
    found = judge_all(results, limits)
    document = {
        **results.about,
        "ratios": [{**asdict(verdict), "met": verdict.met} for verdict in found],
        "medians": [describe(entry) for entry in results.entries],
    }
    return json.dumps(document, indent=1)


def describe(entry):
    """Quartiles in seconds, in place of all samples."""
    low, middle, high = quartiles(entry.values)
    kept = {key: value for key, value in asdict(entry).items() if key != "values"}
    return {**kept, "lower_quartile": low, "median": middle, "upper_quartile": high}
