"""A statement, and one sample of what it costs. Needs the standard library only: it runs in every environment."""

import time
import timeit

# The first runs compile, import and fill caches.
WARM_UP_RUNS = 5
WARM_UP_SECONDS = 0.1
# Another process may hold the processor during some of the tries.
TRIES = 3


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
        self._warm_up()
        loops = 1
        took = self._best_of(TRIES, loops)
        while took < seconds / 2:
            loops = max(2 * loops, min(int(loops * seconds / max(took, 1e-9)), 100 * loops))
            took = self._best_of(TRIES, loops)
        self.loops = max(1, round(loops * seconds / took))

    def _warm_up(self):
        end = time.perf_counter() + WARM_UP_SECONDS
        for _ in range(WARM_UP_RUNS):
            self._timer.timeit(1)
            if time.perf_counter() > end:
                break

    def _best_of(self, tries, loops):
        return min(self._timer.timeit(loops) for _ in range(tries))

    def sample(self):
        """Runs the statement `loops` times and returns the mean time of one run, in seconds.

        Other cases ran before and hold the caches; a tenth of the loops goes before those that count.
        """
        if self.loops > 1:
            self._timer.timeit(max(1, self.loops // 10))
        return self._timer.timeit(self.loops) / self.loops
