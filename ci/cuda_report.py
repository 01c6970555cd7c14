"""The report of `make test-cuda`: report.json, and the same for humans in report.txt; log.txt is what pytest printed."""

import hashlib
import json
import os
import subprocess
import textwrap
import time
from collections import Counter

import cuda_facts
import cuda_log

FILES = ("report.json", "report.txt", "log.txt")
OUTCOMES = ("passed", "failed", "skipped", "not_run")
LONGEST_OUTPUT = 1 << 20
SLOWEST = 5
RUNNING = "the run is not over, or was killed"
TIME_IS_UP = "the time is up"


def wheel_facts(path):
    """The wheel under test."""
    facts = {"version": cuda_facts.version_of(("taichi",)), "file": None, "sha256": None}
    if path is not None:
        facts.update(file=path.name, sha256=hashlib.sha256(path.read_bytes()).hexdigest())
    return facts


def commit_of(folder):
    """The commit of the tests, or None outside a checkout."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


class Suite:
    """How one job went, read from its log."""

    def __init__(self, job, rehearsal=False):
        self.job, self.may_be_empty = job, rehearsal or job.spec.get("optional", False)
        self.counts, self.skips = Counter({outcome: 0 for outcome in OUTCOMES}), Counter()
        self.failures, self.figures, self.times = [], {}, []
        self._read(cuda_log.read(job.log))

    def _read(self, events):
        collected, ends, faults = [], {}, {}
        for event in events:
            if event["event"] == "collected":
                collected = collected or event["tests"]
            elif event["event"] == "end":
                ends[event["test"]] = event
            elif event["event"] == "lost":
                faults[event["test"]] = event["fault"]
        for test, event in ends.items():
            self._add_end(test, event, faults.get(test))
        for test in self.job.lost:
            if test not in ends:
                self._add_failure(test, self.job.lost[test])
        self.counts["not_run"] = len(set(collected) - set(ends) - set(self.job.lost))

    def _add_end(self, test, event, fault):
        self.times.append((event["seconds"], test))
        if event["figures"]:
            self.figures[test] = event["figures"]
        if fault:
            self._add_failure(test, f"the GPU was left with error {fault}\n{event['message']}".rstrip())
        elif event["outcome"] == "failed":
            self._add_failure(test, event["message"])
        else:
            self.counts[event["outcome"]] += 1
        if event["outcome"] == "skipped":
            self.skips[" ".join(event["message"].split()) or "NO REASON GIVEN"] += 1

    def _add_failure(self, test, message):
        self.counts["failed"] += 1
        self.failures.append({"test": test, "message": message})

    def problem(self):
        """Why the job is no success; empty if it is one."""
        if self.remark():
            return "failed" if self.counts["failed"] else ""
        if self.job.status is None:
            return "did not start" if self.job.starts == 0 else "did not end"
        if self.job.notes:
            return self.job.notes[-1]
        if self.job.status not in (0, 1, 5):
            return f"pytest ended with status {self.job.status}"
        if self.counts["failed"] or self.job.status == 1:
            return "failed"
        if self.counts["not_run"]:
            return "not all tests ran"
        return "" if self.counts["passed"] or self.may_be_empty else "no test passed"

    def remark(self):
        """For what runs only as long as there is time: that there was not enough."""
        if not self.job.spec.get("if_time"):
            return ""
        if self.job.starts == 0:
            return "no time for it"
        return "cut short: no more time" if self.job.stopped == TIME_IS_UP else ""

    def seconds(self):
        """How long it took, so far."""
        return round((self.job.ended or time.time()) - self.job.began, 1) if self.job.began else 0

    def output_tail(self):
        """The end of what pytest printed, for a job of which the tests tell nothing."""
        lines = read_text(self.job.output).splitlines()
        return "\n".join(lines[-30:])

    def as_dict(self):
        """For report.json."""
        result = {
            "name": self.job.name,
            "problem": self.problem(),
            "remark": self.remark(),
            "counts": dict(self.counts),
            "seconds": self.seconds(),
            "failures": self.failures,
            "skips": dict(self.skips),
            "notes": self.job.notes,
            "processes": self.job.starts,
            "slowest": [
                {"test": test, "seconds": seconds} for seconds, test in sorted(self.times)[: -SLOWEST - 1 : -1]
            ],
        }
        if self.problem() and not self.failures:
            result["output_tail"] = self.output_tail()
        return result


def read_text(path):
    """The end of a text file, or nothing."""
    try:
        return path.read_bytes()[-LONGEST_OUTPUT:].decode(errors="replace")
    except FileNotFoundError:
        return ""


class Report:
    """What is known so far. `jobs` and `facts` are filled in as they become known."""

    def __init__(self, folder, began, rehearsal):
        self.folder, self.began, self.rehearsal = folder, began, rehearsal
        self.facts, self.jobs, self.left_out = {}, [], []
        self.incomplete, self.ended = RUNNING, None
        folder.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            (folder / name).unlink(missing_ok=True)

    def suites(self):
        """The jobs, as they stand now."""
        return [Suite(job, self.rehearsal) for job in self.jobs]

    def finish(self, stopped):
        """Writes the last report, and returns it. `stopped`: why the run ended too early, or None."""
        self.incomplete, self.ended = stopped, time.time()
        with open(self.folder / "log.txt", "w", encoding="utf-8") as file:
            for job in self.jobs:
                file.write(f"#### {job.name}\n{read_text(job.output)}\n")
        return self.write()

    def write(self):
        """Writes what is known now, and returns it. A reader never sees half a file."""
        data = self.as_dict()
        for name, text in (("report.json", json.dumps(data, indent=1) + "\n"), ("report.txt", as_text(data))):
            part = self.folder / f".{name}.part"
            part.write_text(text, encoding="utf-8")
            os.replace(part, self.folder / name)
        return data

    def as_dict(self):
        """All of it, as in report.json."""
        suites = self.suites()
        figures = {test: found for suite in suites for test, found in suite.figures.items()}
        totals = sum((suite.counts for suite in suites), Counter())
        complete = self.incomplete is None
        return {
            "what": "rehearsal on the CPU; says nothing about a GPU" if self.rehearsal else "make test-cuda",
            "green": complete and bool(suites) and not any(suite.problem() for suite in suites),
            "complete": complete,
            "incomplete_because": self.incomplete,
            "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.began)),
            "seconds": round((self.ended or time.time()) - self.began, 1),
            **self.facts,
            "absent": absent(self.facts.get("peers", {}), self.facts.get("tools", {})),
            "totals": {outcome: totals[outcome] for outcome in OUTCOMES},
            "suites": [suite.as_dict() for suite in suites],
            "race_hunt": [found["hunt"] for found in figures.values() if "hunt" in found],
            "figures": {
                test: {name: value for name, value in found.items() if name != "hunt"}
                for test, found in figures.items()
                if set(found) != {"hunt"}
            },
            "left_out": self.left_out,
        }


def absent(peers, tools):
    """What is not here, or sees no GPU, and why."""
    lines = [f"{name}: {facts['note']}" for name, facts in peers.items() if not facts["cuda"] and name != "numpy"]
    return lines + [f"{name}: not installed" for name, version in tools.items() if version is None]


# --- for humans -----------------------------------------------------------------------------------


def facts_lines(data):
    """The wheel, the device, the machine and the libraries, a line each."""
    lines = []
    if "wheel" in data:
        wheel = data["wheel"]
        lines.append(f"wheel:   taichi {wheel['version']}" + (f", sha256 {wheel['sha256']}" if wheel["sha256"] else ""))
        lines.append(f"device:  {device_line(data['device'])}")
        lines.append(f"machine: Python {data['host']['python']}, {data['host']['cpus']} CPUs, {data['host']['system']}")
        lines.append("tests:   " + (f"commit {data['commit']}" if data["commit"] else "not from a checkout"))
        names = {**data["peers"], **{name: {"version": version} for name, version in data["tools"].items() if version}}
        present = [f"{name} {facts['version']}{note(facts)}" for name, facts in names.items() if facts["version"]]
        lines.append(f"present: {', '.join(present)}")
        lines += [f"absent:  {line}" for line in data["absent"]]
    return lines


def note(facts):
    """The note in brackets, of a library that sees the GPU."""
    return f" ({facts['note']})" if facts.get("cuda") and facts.get("note") else ""


def device_line(device):
    """One line about the GPU."""
    if device is None:
        return "none: a rehearsal on the CPU"
    return (
        f"{device['name']}, compute capability {device['compute_capability']}, "
        f"{device['memory_bytes'] / 2**30:.1f} GiB, driver {device['driver'] or 'not told'} (CUDA {device['cuda_of_driver']}), "
        f"MIG {device['mig']}, compute mode {device['compute_mode']}, "
        f"memory pools {'yes' if device['memory_pools'] else 'no'}, {device['devices']} device(s)"
    )


def as_text(data):
    """report.txt."""
    parts = [headline(data), facts_lines(data), suite_lines(data), hunt_lines(data), figure_lines(data)]
    parts += [failure_lines(data), skip_lines(data), [f"left out: {line}" for line in data["left_out"]]]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def headline(data):
    """What it was, and how it ended."""
    state = "GREEN" if data["green"] else "NOT GREEN" if data["complete"] else "INCOMPLETE"
    lines = [f"{data['what']}: {state}, {data['seconds']:.0f} s, began {data['began']}"]
    if not data["complete"]:
        lines.append(f"INCOMPLETE: {data['incomplete_because']}. What is below is what is known.")
    return lines


def suite_lines(data):
    """A line for each job, and the sum."""
    if not data["suites"]:
        return []
    width = max(len(suite["name"]) for suite in data["suites"]) + 2
    lines = [f"{'suite':<{width}}{'passed':>8}{'failed':>8}{'skipped':>8}{'not run':>8}{'seconds':>9}"]
    whole = {"name": "all", "counts": data["totals"], "seconds": data["seconds"], "problem": "", "remark": ""}
    for suite in data["suites"] + [whole]:
        counts = "".join(f"{suite['counts'][outcome]:>8}" for outcome in OUTCOMES)
        words = "; ".join(filter(None, (suite["problem"], suite["remark"])))
        lines.append(f"{suite['name']:<{width}}{counts}{suite['seconds']:>9.1f}  {words}".rstrip())
    return lines


def hunt_lines(data):
    """The race hunt: what was handed over, what went wrong, and whether a race would have been seen."""
    lines = []
    for hunt in data["race_hunt"]:
        lines.append(
            f"race hunt, {hunt['direction']}: {hunt['hand_overs']} hand-overs in {hunt['seconds']:.1f} s, "
            f"{hunt['mismatches']} mismatches; without the wait {hunt['control_mismatches']} of "
            f"{hunt['control_hand_overs']} mismatches: {hunt['verdict']}"
        )
    return lines or ["race hunt: no result"]


def figure_lines(data):
    """What else the tests measured."""
    return [
        f"{test.rpartition('::')[2]}: " + ", ".join(f"{name} {value}" for name, value in found.items())
        for test, found in data["figures"].items()
    ]


def failure_lines(data):
    """Each failure with its message, and the output of a job that says nothing else."""
    lines = []
    for suite in data["suites"]:
        for failure in suite["failures"]:
            lines += [f"FAILED {failure['test']}", textwrap.indent(failure["message"].strip(), "    ")]
        lines += [f"NOTE {suite['name']}: {text}" for text in suite["notes"]]
        if suite.get("output_tail"):
            lines += [f"OUTPUT {suite['name']}", textwrap.indent(suite["output_tail"], "    ")]
    return lines


def skip_lines(data):
    """Each reason for a skip, and how often."""
    reasons = sum((Counter(suite["skips"]) for suite in data["suites"]), Counter())
    return [f"skipped {count}: {reason}" for reason, count in reasons.most_common()]
