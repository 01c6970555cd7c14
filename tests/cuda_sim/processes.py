"""Programs in a process of their own: other devices, an older driver, the end of a process."""

import json
import os
import subprocess
import sys
import tempfile
from textwrap import dedent

HERE = os.path.dirname(os.path.abspath(__file__))

PRELUDE = """
import ctypes, sys
sys.path[:0] = [{here!r}, {interop!r}]
import sim
sim.load(hide={hide!r})
"""


class Finished:
    """How a process ended: code, output, errors, and the driver's report of faults and live allocations."""

    def __init__(self, result, report):
        self.code, self.output, self.errors = result.returncode, result.stdout, result.stderr
        self.report = report

    def check(self):
        """Fails unless it ended with 0, without a fault, and said nothing on stderr."""
        assert self.code == 0, f"exit code {self.code}\n{self.output}\n{self.errors}"
        assert self.errors == "", self.errors
        return self

    def live(self, kind=None):
        """The live allocations at exit, of one kind or all."""
        return [row for row in self.report["live"] if kind in (None, row["kind"])]


def run_python(code, hide=(), timeout=300, **environment):
    """Runs code with the simulated driver in place. Upper-case keywords are environment variables."""
    prelude = PRELUDE.format(here=HERE, interop=os.path.join(os.path.dirname(HERE), "interop"), hide=tuple(hide))
    with tempfile.TemporaryDirectory() as scratch:
        report = os.path.join(scratch, "report.json")
        result = subprocess.run(
            [sys.executable, "-c", prelude + dedent(code)],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            env={**os.environ, "CUDA_SIM_REPORT": report, **environment},
        )
        if not os.path.exists(report):
            return Finished(result, None)
        with open(report, encoding="utf-8") as file:
            return Finished(result, json.load(file))
