"""Runs the jobs of `make test-cuda` and writes the report: cuda_run.py REPORT [options] [-- pytest arguments]

The report is written after each job, so that one is there whatever happens to this process. A job whose process is
lost, by a crash, by a fault of the GPU or by a hang, is started again for the tests that are left.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import cuda_facts
import cuda_log
import cuda_plan
import cuda_report

ROOT = Path(__file__).resolve().parents[1]
# How often a job may lose its process.
MOST_STARTS = 15
# What pytest ends with when it ended by itself: all passed, some failed, usage and internal errors, no test.
PYTEST_STATUSES = range(6)
GRACE_SECONDS = 5


class Job:
    """One run of pytest, over as many processes as it takes."""

    def __init__(self, spec, folder, environment):
        self.name, self.stage, self.spec = spec["name"], spec["stage"], spec
        self.log = folder / f"{self.name}.jsonl"
        self.output = folder / f"{self.name}.txt"
        self.environment = {**environment, "CUDA_TEST_LOG": str(self.log)}
        self.process = self.began = self.ended = None
        self.notes, self.lost, self.status, self.starts, self.stopped = [], {}, None, 0, None

    def start(self):
        """Starts pytest, in a process group of its own so that its children can be stopped with it."""
        self.starts += 1
        self.began = self.began or time.time()
        plugins = [word for name in ["cuda_log"] + self.spec.get("plugins", []) for word in ("-p", name)]
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-ra", *plugins]
        command += ["--continue-on-collection-errors", *self.spec["arguments"]]
        with open(self.output, "ab") as output:
            self.process = subprocess.Popen(
                command,
                cwd=self.spec.get("folder", ROOT),
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.sign = time.time()

    def is_over(self):
        """Looks after the process; True once the job has ended."""
        status = self.process.poll()
        if status is None and time.time() - self._last_sign() < self.spec["silence"]:
            return False
        if status is None:
            self._lose(f"no sign for {self.spec['silence']} s")
            status = self._end_hang()
        elif status not in PYTEST_STATUSES:
            self._lose(f"the process {describe(status)}")
        self.status = status
        if status not in PYTEST_STATUSES and self._tests_are_left():
            self.start()
            return False
        self.ended = time.time()
        return True

    def _lose(self, text):
        """Notes that the process is lost, and with it the test in progress."""
        where, test = self._place()
        self.notes.append(f"{where} {test}: {text}".replace(" None", ""))
        if where == "in":
            self.lost[test] = text

    def _last_sign(self):
        """When a test last started or ended."""
        if self.log.exists():
            self.sign = max(self.sign, self.log.stat().st_mtime)
        return self.sign

    def _end_hang(self):
        """Stops a process that hangs; SIGABRT makes Python's fault handler print where."""
        self._signal(signal.SIGABRT)
        self._wait(GRACE_SECONDS)
        self._signal(signal.SIGKILL)
        return self.process.wait()

    def _tests_are_left(self):
        """Whether another process may get further than the one that was lost."""
        events = cuda_log.read(self.log)
        collected = [event["tests"] for event in events if event["event"] == "collected"]
        started = {event["test"] for event in events if event["event"] == "start"}
        # A process that is lost before it has a list of tests would be lost again.
        return self.starts < MOST_STARTS and len(collected) == self.starts and bool(set(collected[-1]) - started)

    def _place(self):
        """Where the process is, by the log: ("in" or "after", test), or before the first test."""
        place = "before the first test", None
        for event in cuda_log.read(self.log):
            if event["event"] in ("start", "end"):
                place = "in" if event["event"] == "start" else "after", event["test"]
        return place

    def stop(self, reason):
        """Ends the job before its time: as Ctrl-C does, then by force."""
        self.stopped = reason
        self.notes.append(f"stopped: {reason}")
        self._signal(signal.SIGINT)
        self._wait(GRACE_SECONDS)
        self._signal(signal.SIGKILL)
        self.status = self.process.wait()
        self.ended = time.time()

    def _signal(self, number):
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            pass

    def _wait(self, seconds):
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            pass


def describe(status):
    """How a process ended."""
    if status == cuda_log.EXIT_LOST:
        return "was given up after a fault of the GPU"
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return f"ended with status {status}"


class Stop:
    """Why the run has to end too early; None as long as it need not."""

    def __init__(self, deadline):
        self.reason, self.deadline = None, deadline
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._interrupt)

    def _interrupt(self, number, _frame):
        self.reason = self.reason or f"interrupted by {signal.Signals(number).name}"

    def is_due(self):
        """Looks at the clock too."""
        if time.time() > self.deadline:
            self.reason = self.reason or cuda_report.TIME_IS_UP
        return self.reason is not None


class Run:
    """All jobs, one stage after the other, until they are done or the run has to stop."""

    def __init__(self, jobs, workers, stop, on_progress):
        self.jobs, self.workers, self.stop, self.on_progress = jobs, workers, stop, on_progress
        self.running = []

    def go(self):
        """Runs everything."""
        for stage in sorted({job.stage for job in self.jobs}):
            self._run_stage([job for job in self.jobs if job.stage == stage])

    def why_incomplete(self):
        """Why the run ended before all that must run has run, or None."""
        cut = [job for job in self.jobs if job.ended is None or job.stopped]
        if self.stop.reason == cuda_report.TIME_IS_UP and all(job.spec.get("if_time") for job in cut):
            return None
        return self.stop.reason

    def _run_stage(self, waiting):
        while (waiting or self.running) and not self.stop.is_due():
            while waiting and len(self.running) < self.workers:
                job = waiting.pop(0)
                print(f"== {job.name}", flush=True)
                job.start()
                self.running.append(job)
            time.sleep(0.1)
            self._look_after()
        for job in self.running:
            job.stop(self.stop.reason)
        self.running = []

    def _look_after(self):
        for job in [job for job in self.running if job.is_over()]:
            self.running.remove(job)
            self.on_progress()


def environment_for(arch, version, scratch):
    """What the tests find in their environment, for a backend and a version of the wheel."""
    more = {
        "TI_TEST_ARCH": arch,
        "TI_WANTED_ARCHS": arch,
        "TI_TEST_WHEEL": "fast" if (version or "").endswith(".fast") else "source",
        # Kernels are cached under Taichi's version alone: another wheel's must not be found.
        "TI_OFFLINE_CACHE_FILE_PATH": str(scratch / "taichi"),
        # The driver's cache, which all processes of the run share.
        "CUDA_CACHE_PATH": str(scratch / "driver"),
        # JAX takes three quarters of the memory otherwise.
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        **cuda_facts.WITHOUT_COMPILING,
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONFAULTHANDLER": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT / "ci"), os.environ.get("PYTHONPATH")])),
    }
    return {**os.environ, **more}


def workers_for(device):
    """How many processes share the GPU: half of the CPUs, and each may take 2 GiB of its memory."""
    memory = device.get("memory_bytes") or 16 << 30
    return max(1, min((os.cpu_count() or 1) // 2, memory // (2 << 30), 8))


def parse(words):
    """The command line. What comes after -- is for pytest."""
    end = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(description="Runs the tests on a GPU and writes a report.")
    parser.add_argument("report", type=Path, help="the folder for report.json, report.txt and log.txt")
    parser.add_argument("--rehearse", action="store_true", help="the same on the CPU: proves nothing about a GPU")
    parser.add_argument("--plan", type=Path, help="a JSON file with the jobs to run instead")
    parser.add_argument("--upstream", nargs="+", default=[], metavar="FOLDER FILE", help="upstream's own tests as well")
    parser.add_argument("--minutes", type=float, default=7.5, help="the run is stopped after so many")
    parser.add_argument("--workers", type=int, help="processes side by side")
    parser.add_argument("--began", type=float, default=time.time(), help="when the run began, in seconds of the epoch")
    parser.add_argument("--wheel", type=Path, help="the file that was installed, for the report")
    options = parser.parse_args(words[:end])
    options.tests = words[end + 1 :]
    return options


def plan_for(options, tools):
    """The jobs to run, and what is left out."""
    if options.plan:
        return json.loads(options.plan.read_text(encoding="utf-8")), []
    if options.tests:
        return cuda_plan.chosen(options.tests)
    jobs, left_out = cuda_plan.whole(ROOT, tools["hypothesis"] is not None)
    if options.upstream:
        jobs += cuda_plan.upstream(options.upstream[0], options.upstream[1:])
    else:
        left_out.append("upstream's own tests: they take longer than this run may; ./build.sh test-cuda --upstream")
    return jobs, left_out


def find_facts(options):
    """What the run is about."""
    return {
        "device": None if options.rehearse else cuda_facts.device(),
        "wheel": cuda_report.wheel_facts(options.wheel),
        "commit": cuda_report.commit_of(ROOT),
        "host": {**cuda_facts.host(), "cpus": os.cpu_count()},
        "tools": cuda_facts.tools(),
        "peers": cuda_facts.peers(),
    }


def run(options, report, scratch):
    """Says what is here, then runs the jobs; returns why that ended too early, or None."""
    stop = Stop(options.began + 60 * options.minutes)
    report.write()
    report.facts = find_facts(options)
    print("\n".join(cuda_report.facts_lines(report.as_dict())), flush=True)

    specs, report.left_out = plan_for(options, report.facts["tools"])
    arch = "cpu" if options.rehearse else "cuda"
    environment = environment_for(arch, report.facts["wheel"]["version"], scratch)
    report.jobs = [Job(spec, scratch, environment) for spec in specs]
    report.write()
    workers = options.workers or workers_for(report.facts["device"] or {})
    whole = Run(report.jobs, workers, stop, report.write)
    whole.go()
    return whole.why_incomplete()


def main():
    """The exit status is 0 only if all ran, and all was right."""
    options = parse(sys.argv[1:])
    report = cuda_report.Report(options.report, options.began, options.rehearse)
    scratch = Path(tempfile.mkdtemp(prefix="test-cuda-"))
    reason = "the runner failed; its error is in the output"
    try:
        reason = run(options, report, scratch)
    finally:
        data = report.finish(reason)
        shutil.rmtree(scratch, ignore_errors=True)
    print("\n" + cuda_report.as_text(data), flush=True)
    return 0 if data["green"] else 1


if __name__ == "__main__":
    sys.exit(main())
