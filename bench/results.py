"""The samples of a run, in one file, and what follows from them."""

import json
import os
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from statistics import median, quantiles

FORMAT = 1


@dataclass
class Entry:
    """The samples of one case.

    Attributes:
        worker: The environment.
        measure, size, side: Which case it is.
        statement: What was timed.
        loops: How many times the statement ran in a sample.
        values: Seconds for one run of the statement, one value a sample.
    """

    worker: str
    measure: str
    size: int
    side: str
    statement: str
    loops: int
    values: list


def quartiles(values):
    """The three quartiles of one value or more."""
    return tuple(quantiles(values, n=4, method="inclusive")) if len(values) > 1 else tuple(values) * 3


@dataclass(frozen=True)
class Ratio:
    """How many times as long one case takes as another.

    Samples at one position were taken right after each other, so that both were slow where the machine was.

    Attributes:
        value, low, high: Median, lower and upper quartile of the ratios of such pairs.
        of_medians: The ratio of the two medians, which a machine with two speeds blurs.
    """

    value: float
    low: float
    high: float
    of_medians: float


def ratio_of(values, reference):
    """The Ratio of two lists of samples."""
    low, middle, high = quartiles([value / other for value, other in zip(values, reference)])
    return Ratio(middle, low, high, median(values) / median(reference))


class Results:
    """A run.

    Attributes:
        entries: A list of Entry.
        about: What else the reader should know: machine, versions, command, what was left out.
    """

    def __init__(self, entries, about):
        self.entries = entries
        self.about = about
        self._by_key = {(entry.worker, entry.measure, entry.size, entry.side): entry for entry in entries}

    def find(self, worker, measure, size, side):
        """The Entry, or None."""
        return self._by_key.get((worker, measure, size, side))

    def sizes(self, measure):
        """All sizes of a measure, in ascending order."""
        return sorted({entry.size for entry in self.entries if entry.measure == measure})

    def ratio(self, entry, reference):
        """The Ratio of two entries, None where one is missing."""
        return None if entry is None or reference is None else ratio_of(entry.values, reference.values)

    def save(self, path):
        """Writes all of it as JSON."""
        document = {"format": FORMAT, **self.about, "entries": [asdict(entry) for entry in self.entries]}
        write_whole(path, json.dumps(document, indent=1))


def load(path):
    """The Results in a file that `save` wrote."""
    with open(path, encoding="utf-8") as file:
        document = json.load(file)
    found = document.pop("format", None)
    if found != FORMAT:
        raise ValueError(f"{path} has format {found}, wanted {FORMAT}; measure again with: make bench")
    entries = [Entry(**entry) for entry in document.pop("entries")]
    return Results(entries, document)


def write_whole(path, text):
    """Writes a file whole or not at all."""
    with whole(path) as unfinished, open(unfinished, "w", encoding="utf-8") as file:
        file.write(text)


@contextmanager
def whole(path):
    """Gives the name of a file to write; it becomes `path` when all went well, else it is removed."""
    unfinished = f"{path}.part"
    try:
        yield unfinished
        os.replace(unfinished, path)
    except BaseException:
        if os.path.exists(unfinished):
            os.remove(unfinished)
        raise
