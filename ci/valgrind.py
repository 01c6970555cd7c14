"""Runs orders of the lifetime suite under valgrind's memcheck: valgrind.py ORDERS LOGS

Prints a line for each type of element: orders, errors, errors that ci/valgrind.supp names, seconds. The first orders
have a fault each, made on purpose: where valgrind does not find it, the others say nothing.
"""

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIFETIME = ROOT / "tests" / "lifetime"
sys.path.insert(0, str(LIFETIME))

import orders  # noqa: E402

ELEMENTS = ("scalar", "vector")
# NumPy alone: under valgrind torch takes minutes to import.
CONSUMERS = ("numpy",)
FAULTS = ("read_after_deleter", "unmap_under_view")
ERROR_CODE = 99
# An order takes half a second, and some thirty times that under valgrind.
SECONDS_AN_ORDER = 300

VALGRIND = (
    "valgrind",
    "--tool=memcheck",
    # Code that LLVM made lies outside files, and other code may come to lie there.
    "--smc-check=all-non-file",
    f"--error-exitcode={ERROR_CODE}",
    # What is left at exit is CPython's and LLVM's; `make soak` looks at growth.
    "--leak-check=no",
    "--num-callers=25",
    f"--suppressions={ROOT / 'ci' / 'valgrind.supp'}",
)
SUMMARY = re.compile(r"ERROR SUMMARY: (\d+) errors .*\(suppressed: (\d+) ")


def faulty_orders():
    """Orders that must go wrong."""
    return [["export:numpy", fault, "exit"] for fault in FAULTS]


def run(element, chosen, logs):
    """Runs orders in one process that forks, each child with a log of its own. Returns the wrong ones."""
    logs.mkdir(parents=True)
    environment = {
        **os.environ,
        # Python's own allocator would hide its objects from valgrind.
        "PYTHONMALLOC": "malloc",
        "TI_LIFETIME_SECONDS": str(SECONDS_AN_ORDER),
    }
    command = [*VALGRIND, f"--log-file={logs}/%p.log", sys.executable, LIFETIME / "run_orders.py", element]
    result = subprocess.run(
        command, input=json.dumps(chosen), stdout=subprocess.PIPE, text=True, env=environment, check=False
    )
    rows = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    if not rows or rows[-1].get("ran") != len(chosen):
        sys.exit(f"error: {LIFETIME / 'run_orders.py'} ended with {result.returncode}\n{read(logs)}")
    return rows[:-1]


def read(logs):
    """The logs that tell of an error."""
    texts = (path.read_text(encoding="utf-8", errors="replace") for path in sorted(logs.iterdir()))
    return "\n".join(text for text in texts if "ERROR SUMMARY: 0 errors" not in text)


def counts(logs):
    """Processes, errors and suppressed errors of a folder of logs."""
    found = [SUMMARY.search(path.read_text(encoding="utf-8", errors="replace")) for path in logs.iterdir()]
    numbers = [(int(match[1]), int(match[2])) for match in found if match]
    return len(numbers), sum(errors for errors, _ in numbers), sum(suppressed for _, suppressed in numbers)


def check_faults(logs):
    """Ends the program unless valgrind reports every fault that is made on purpose."""
    wrong = run(ELEMENTS[0], faulty_orders(), logs)
    missed = {",".join(order) for order in faulty_orders()} - {one["order"] for one in wrong}
    reported = read(logs).count("Invalid read")
    if missed or reported < len(FAULTS):
        sys.exit(f"error: valgrind found {reported} of {len(FAULTS)} faults made on purpose; passed: {sorted(missed)}")
    print(f"{len(FAULTS)} faults made on purpose: found", flush=True)


def judge(element, chosen, logs):
    """Runs the right orders and prints a line. Returns what went wrong."""
    start = time.monotonic()
    wrong = run(element, chosen, logs)
    processes, errors, suppressed = counts(logs)
    seconds = time.monotonic() - start
    print(f"{element:>8} {len(chosen):7d} {processes:10d} {errors:7d} {suppressed:11d} {seconds:8.0f}", flush=True)
    problems = [f"{one['order']}: exit code {one['exit_code']}\n{one['stderr']}" for one in wrong]
    if problems or errors:
        problems.append(read(logs))
    if processes != len(chosen) + 1:
        problems.append(f"{processes} processes left a log, wanted {len(chosen) + 1}")
    return problems


def main():
    count, logs = int(sys.argv[1]), Path(sys.argv[2])
    version = importlib.metadata.version("taichi")
    print(f"taichi {version}, Python {sys.version.split()[0]}, seed {orders.seed()}")
    check_faults(logs / "faults")
    print(" element  orders  processes  errors  suppressed  seconds")
    problems = []
    for element in ELEMENTS:
        chosen = [list(order) for order in orders.sample(list(orders.all_orders(CONSUMERS)), count)]
        problems += judge(element, chosen, logs / element)
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
