"""One run: starts a worker for each environment and asks them in turn for one sample of one case.

All cases take part in each round, in an order that changes, the two sides of a comparison right after each other. So
what slows the machine for a while slows both. While one worker measures, the others wait for a line in a pipe.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import time
from dataclasses import asdict
from pathlib import Path

from bench.measures import SHARING
from bench.results import Entry

ROOT = Path(__file__).resolve().parents[1]
LOG_LINES = 5
PATIENCE = 30


class WorkerError(Exception):
    """A worker that ended, or could not begin."""


class Worker:
    """The process of one environment.

    Args:
        name: The environment.
        python: Its interpreter.
        arch: Taichi's name of the device.
        plan: A Plan.
        core: The processor to run on, or None.
        folder: Where the log goes.
    """

    def __init__(self, name, python, arch, plan, core, folder):
        self.name = name
        self.log = Path(folder) / f"{name}.log"
        with open(self.log, "wb") as log:
            self._process = subprocess.Popen(
                [python, "-m", "bench.worker", name, arch, json.dumps(asdict(plan))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=folder,
                env=worker_environment(),
                preexec_fn=None if core is None else lambda: os.sched_setaffinity(0, {core}),
                start_new_session=True,  # Ctrl-C is for the conductor, which then ends the workers
            )

    def answer(self):
        """Waits for the next answer."""
        line = self._process.stdout.readline()
        if not line:
            raise WorkerError(f"it ended with status {self._process.wait()}; {self._last_words()}")
        answer = json.loads(line)
        if "failed" in answer:
            raise WorkerError(answer["failed"])
        return answer

    def sample(self, number):
        """One sample of a case, in seconds."""
        try:
            self._process.stdin.write(f'{{"case": {number}}}\n'.encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the answer, or the lack of it, tells why
        return self.answer()["seconds"]

    def close(self, patience=0):
        """Ends the process.

        Args:
            patience: For so many seconds it may end by itself, and keep what it compiled for another run.
        """
        with contextlib.suppress(BrokenPipeError):  # it ended before
            self._process.stdin.close()
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._process.stdout.close()

    def _last_words(self):
        lines = self.log.read_text(encoding="utf-8", errors="replace").split("\n")
        words = " / ".join([line.strip() for line in lines if line.strip()][-LOG_LINES:])
        return f"its log ends with: {words or 'nothing'}"


def worker_environment():
    """The variables of the workers' processes."""
    quiet = {"ENABLE_TAICHI_HEADER_PRINT": "0", "TI_SKIP_VERSION_CHECK": "ON", "PYTHONDONTWRITEBYTECODE": "1"}
    return {**os.environ, **quiet, "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1"}


class Run:
    """The workers, the cases, and the samples so far.

    Args:
        pythons: A dict from environment to its interpreter.
        seed: Of the order of the cases.
    """

    def __init__(self, pythons, arch, plan, core, folder, seed=1):
        self.entries = []
        self.left_out = []
        self.facts = {}
        self._random = random.Random(seed)
        self._members = {}  # from group to [(worker, number, entry)]
        self._workers = {}
        self._start = lambda name: Worker(name, pythons[name], arch, plan, core, folder)
        self._pythons = pythons
        self._plan = plan

    def __enter__(self):
        return self

    def __exit__(self, exception, *_):
        for worker in self._workers.values():
            worker.close(patience=0 if exception else PATIENCE)

    def prepare(self, progress):
        """Starts the workers, one after the other: each calibrates its loops on a machine without the others' work."""
        for name in self._pythons:
            progress(name)
            self._workers[name] = self._start(name)
            try:
                self._add(name, self._workers[name].answer())
            except WorkerError as error:
                self._drop(name, str(error))

    def _add(self, name, hello):
        self.facts[name] = hello["facts"]
        self.left_out += [{"worker": name, **left_out} for left_out in hello["left_out"]]
        for number, described in enumerate(hello["entries"]):
            entry = Entry(worker=name, values=[], **described)
            self.entries.append(entry)
            self._members.setdefault((entry.measure, entry.size), []).append((name, number, entry))

    def _drop(self, name, why):
        """Goes on without a worker. What it measured so far has fewer samples than the rest, and is dropped too."""
        self._workers.pop(name).close()
        self.left_out.append({"worker": name, "what": "all", "why": why})
        self.entries = [entry for entry in self.entries if entry.worker != name]
        for group, members in self._members.items():
            self._members[group] = [member for member in members if member[0] != name]

    def rounds(self, tick):
        """Measures, until the plan's rounds or its time are over.

        Args:
            tick: Is called after each round.
        """
        began = time.monotonic()
        for done in range(self._plan.rounds):
            passed = time.monotonic() - began
            if done and passed + passed / done > self._plan.seconds:
                break
            self._one_round()
            tick()

    def _one_round(self):
        short = {measure.name for measure in SHARING}
        groups = [group for group in self._members for _ in range(self._plan.passes if group[0] in short else 1)]
        self._random.shuffle(groups)
        for group in groups:
            members = list(self._members[group])
            self._random.shuffle(members)
            for name, number, entry in members:
                if name in self._workers:
                    self._sample(name, number, entry)

    def _sample(self, name, number, entry):
        try:
            entry.values.append(self._workers[name].sample(number))
        except WorkerError as error:
            self._drop(name, str(error))
