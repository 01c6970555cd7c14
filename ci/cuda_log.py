"""A pytest plugin of `make test-cuda`: one line of JSON for each event, so that a crash loses nothing.

A fault of the GPU spoils the process that met it, and an abort ends it. Then the same command is started again: tests
that the log names already do not run a second time. CUDA_TEST_LOG names the file.
"""

import ctypes
import json
import os
import time

import pytest

# The GPU's faults that no later call of the process can recover from: cuda.h, CUresult.
LOST = {214, 220, *range(700, 703), *range(713, 720), 721}
EXIT_LOST = 70
LONGEST_MESSAGE = 4000

_reports = {}


def _write(event, **fields):
    line = json.dumps({"event": event, "time": time.time(), **fields}, default=str)
    with open(os.environ["CUDA_TEST_LOG"], "a", encoding="utf-8") as file:
        file.write(line + "\n")


def read(path):
    """The events of a log. The last line may be cut off."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        return []
    events = []
    for line in lines:
        try:
            events.append(json.loads(line))
        except ValueError:
            continue
    return events


@pytest.hookimpl(trylast=True)  # after -k and the like
def pytest_collection_modifyitems(config, items):
    """Leaves out what the log has seen."""
    started = {event["test"] for event in read(os.environ["CUDA_TEST_LOG"]) if event["event"] == "start"}
    _write("collected", tests=[item.nodeid for item in items])
    seen = [item for item in items if item.nodeid in started]
    if seen:
        config.hook.pytest_deselected(items=seen)
        items[:] = [item for item in items if item.nodeid not in started]


def pytest_collectreport(report):
    """A file that cannot be imported is a failure of its own."""
    if report.failed:
        _write("start", test=report.nodeid)
        _write(
            "end", test=report.nodeid, outcome="failed", message=_shorten(report.longreprtext), seconds=0, figures={}
        )


def pytest_runtest_logstart(nodeid):
    _reports[nodeid] = []
    _write("start", test=nodeid)


def pytest_runtest_logreport(report):
    """Keeps the reports of setup, call and teardown; the end of a test is made of all three."""
    _reports[report.nodeid].append(report)


def pytest_runtest_logfinish(nodeid):
    reports = _reports.pop(nodeid)
    if not reports:
        return
    outcome, message = _outcome(reports)
    figures = dict(reports[-1].user_properties)
    seconds = round(sum(report.duration for report in reports), 3)
    _write("end", test=nodeid, outcome=outcome, message=message, seconds=seconds, figures=figures)
    fault = _fault()
    if fault:
        _write("lost", test=nodeid, fault=fault)
        os._exit(EXIT_LOST)


def _outcome(reports):
    """(outcome, message) of a test."""
    for report in reports:
        if report.failed:
            return "failed", _shorten(report.longreprtext)
    for report in reports:
        if report.skipped:
            if hasattr(report, "wasxfail"):
                return "skipped", f"expected to fail: {report.wasxfail}"
            text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            return "skipped", text[len("Skipped: ") :] if text.startswith("Skipped: ") else text
    return "passed", ""


def _shorten(text):
    """The end of a long message: that is where the error is."""
    return text if len(text) <= LONGEST_MESSAGE else "...\n" + text[-LONGEST_MESSAGE:]


def _fault():
    """The error that the GPU is left with, or 0: the work of a test is waited for, so that its fault is its own."""
    if os.environ.get("TI_TEST_ARCH") != "cuda":
        return 0
    try:
        code = ctypes.CDLL("libcuda.so.1").cuCtxSynchronize()
    except (OSError, AttributeError):
        return 0
    return code if code in LOST else 0
