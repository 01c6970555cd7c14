"""The bookkeeping of the race hunt, on streams that are lists."""

import importlib.util
from pathlib import Path

import pytest

_PATH = Path(__file__).resolve().parents[1] / "cuda" / "hunt.py"
_SPEC = importlib.util.spec_from_file_location("hunt", _PATH)
hunt = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(hunt)

LONG = 1e9


class Streams:
    """A producer's and a consumer's stream, and one cell a slot. The producer is slow: it is run as late as may be.

    Args:
        slots (int): Hand-overs in a batch.
        honours_wait (bool): False for a library that forgets to wait.
        races (bool): False for a device that runs everything in order, whatever was asked.
    """

    name = "list to list"

    def __init__(self, slots=4, honours_wait=True, races=True):
        self.slots, self.honours_wait, self.races = slots, honours_wait, races
        self.cells = [0] * slots
        self.seen_wrong = 0
        self.batches = []

    def batch(self, first, wait):
        """Runs a batch: consumers that do not wait come before all producers."""
        self.batches.append((first, wait))
        waits = (wait and self.honours_wait) or not self.races
        writes = [(slot, first + slot) for slot in range(self.slots)]
        for slot, number in writes:
            if waits:
                self.cells[slot] = number
            self.seen_wrong += self.cells[slot] != number
        for slot, number in writes:
            self.cells[slot] = number

    def mismatches(self):
        """The count, which starts over."""
        count, self.seen_wrong = self.seen_wrong, 0
        return count


class Clock:
    """A second passes at each look."""

    def __init__(self):
        self.now = 0

    def __call__(self):
        self.now += 1
        return self.now


def test_right_streams_have_no_race_and_the_control_has():
    found = hunt.hunt(Streams(), 1000, LONG)
    assert found["verdict"] == "no race" and found["mismatches"] == 0
    assert found["hand_overs"] == found["wanted"] == 1000
    assert found["control_mismatches"] == found["control_hand_overs"] == hunt.CONTROL_BATCHES * 4


def test_a_missing_wait_is_found():
    found = hunt.hunt(Streams(honours_wait=False), 1000, LONG)
    assert found["verdict"].startswith("RACE")
    assert found["mismatches"] == 1000 + hunt.WARM_UP_BATCHES * 4


def test_a_device_that_shows_no_race_proves_nothing():
    found = hunt.hunt(Streams(races=False), 1000, LONG)
    assert found["mismatches"] == found["control_mismatches"] == 0
    assert found["verdict"].startswith("proves nothing")


def test_the_time_ends_a_hunt():
    done = hunt.hand_over(Streams(), 1000, 5, clock=Clock())
    assert done.hand_overs == 16 and done.seconds > 5


def test_no_number_is_used_twice():
    streams = Streams(slots=3)
    hunt.hunt(streams, 300, LONG)
    numbers = [first + slot for first, _ in streams.batches for slot in range(3)]
    assert len(set(numbers)) == len(numbers) and numbers[0] == 1


def test_only_the_control_goes_without_the_wait():
    streams = Streams()
    hunt.hunt(streams, 100, LONG)
    assert [wait for _, wait in streams.batches].count(False) == hunt.CONTROL_BATCHES
    assert streams.batches[hunt.WARM_UP_BATCHES][1] is False and streams.batches[-1][1] is True


def test_numbers_stay_within_int32():
    streams = Streams()
    hunt.hand_over(streams, 40, LONG, first=hunt.MOST - 10)
    assert max(first + streams.slots for first, _ in streams.batches) <= hunt.MOST
    assert [first for first, _ in streams.batches][:4] == [hunt.MOST - 10, hunt.MOST - 6, 1, 5]


@pytest.mark.parametrize(
    "mismatches, control, begins", [(0, 1, "no race"), (1, 0, "RACE"), (1, 1, "RACE"), (0, 0, "proves nothing")]
)
def test_verdicts(mismatches, control, begins):
    assert hunt.verdict(mismatches, control).startswith(begins)
