"""The race hunt: very many small hand-overs between streams, with a slow kernel in front of each batch.

Every hand-over has a number of its own. The producer writes it into all of a small array, the consumer compares; a
consumer that did not wait sees the number of an earlier batch. All comparing is done on the device, and the host waits
for nothing but the end, so that many hand-overs are under way at a time.

This file knows neither Taichi nor torch. A direction has:

    name, slots                      who hands over to whom; hand-overs in a batch
    batch(first, wait)               enqueues a slow kernel, then hand-overs numbered from `first` on; with `wait` false
                                     the consumer does not wait for the producer
    mismatches()                     waits for all; hand-overs since the last call at which the consumer saw another number
"""

import time
from collections import namedtuple

Figures = namedtuple("Figures", "hand_overs seconds mismatches")

CONTROL_BATCHES = 20
WARM_UP_BATCHES = 5
# Numbers are int32. They start over, far from where they were.
MOST = 2**31 - 1


def hand_over(direction, wanted, seconds, first=1, wait=True, clock=time.monotonic):
    """Hands over until there were enough, or the time is up.

    Args:
        direction: What hands over; see above.
        wanted (int): How many hand-overs; whole batches, so a few more.
        seconds (float): After so much time no batch is begun.
        first (int): The first number.
        wait (bool): False takes the wait out.
        clock (Callable): Tells the time, in seconds.

    Returns:
        Figures: What was done.
    """
    began, done, number = clock(), 0, first
    while done < wanted and clock() - began < seconds:
        if number > MOST - direction.slots:
            number = 1
        direction.batch(number, wait)
        number += direction.slots
        done += direction.slots
    mismatches = direction.mismatches()
    return Figures(done, clock() - began, mismatches)


def hunt(direction, wanted, seconds, clock=time.monotonic):
    """A warm-up, the control without the wait, then the hunt.

    Returns:
        dict: What the report shows. `verdict` is "no race" if there was none and one would have been seen.
    """
    enough = 1 << 60
    warm_up = hand_over(direction, WARM_UP_BATCHES * direction.slots, enough, 1, True, clock)
    first = 1 + warm_up.hand_overs
    control = hand_over(direction, CONTROL_BATCHES * direction.slots, enough, first, False, clock)
    found = hand_over(direction, wanted, seconds, first + control.hand_overs, True, clock)
    mismatches = warm_up.mismatches + found.mismatches
    return {
        "direction": direction.name,
        "hand_overs": found.hand_overs,
        "wanted": wanted,
        "seconds": round(found.seconds, 2),
        "mismatches": mismatches,
        "control_hand_overs": control.hand_overs,
        "control_mismatches": control.mismatches,
        "verdict": verdict(mismatches, control.mismatches),
    }


def verdict(mismatches, control_mismatches):
    """What the numbers mean."""
    if mismatches:
        return "RACE: a consumer did not wait"
    if not control_mismatches:
        return "proves nothing: no race was seen even without the wait"
    return "no race"
