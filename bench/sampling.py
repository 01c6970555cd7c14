"""A statement, and one sample of what it costs. Needs the standard library only: it runs in every environment."""

import time
import timeit

# The first run may compile and import, and another process may hold the processor during one try.
TRIES = 2


class Case:
    """A statement and the objects that it names.

    The statement is timed by `timeit`: in a loop without a call around it, with the collector of cycles off.

    Args:
        statement: One Python statement.
        clock: Gives the time. On a GPU it waits first, so that a sample holds the work that it started.
        names: What the statement names. They are local variables of the loop, as they would be in a function.
    """

    def __init__(self, statement, clock=time.perf_counter, **names):
        self.statement = statement
        self.loops = 0
        setup = "\n".join(f"{name} = _{name}" for name in names)
        self._timer = timeit.Timer(
            statement, setup or "pass", timer=clock, globals={f"_{name}": value for name, value in names.items()}
        )

    def calibrate(self, seconds):
        """Sets how many times the statement runs in one sample; also warms it up.

        Args:
            seconds: What one sample should take. A single run may take longer.
        """
        loops = 1
        took = self._best_of(TRIES, loops)
        while took < seconds / 2:
            loops = max(2 * loops, min(int(loops * seconds / max(took, 1e-9)), 100 * loops))
            took = self._best_of(TRIES, loops)
        self.loops = max(1, round(loops * seconds / took))

    def _best_of(self, tries, loops):
        return min(self._timer.timeit(loops) for _ in range(tries))

    def sample(self):
        """Runs the statement `loops` times and returns the mean time of one run, in seconds."""
        return self._timer.timeit(self.loops) / self.loops
