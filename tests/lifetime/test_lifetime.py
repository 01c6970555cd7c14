"""No order of events makes a view dangle, a memory leak, or an exit fail.

TI_LIFETIME_FULL=1 runs all orders; without it a sample that TI_LIFETIME_SEED picks.
"""

import concurrent.futures
import importlib.util
import itertools
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import orders

RUNNER = Path(__file__).with_name("run_orders.py")
WORKERS = min(os.cpu_count() or 1, 4)
# An order takes half a second of one CPU; a machine may be ten times slower, and be busy.
SECONDS_AN_ORDER = 10

# Elements of the ndarray, the libraries that take views, the length up to which all orders are
# generated, and how many of them a short run takes.
CASES = [
    ("scalar", ("numpy",), orders.MAX_LENGTH, 46),
    ("vector", ("numpy",), orders.MAX_LENGTH, 22),
    ("scalar", ("torch",), orders.MAX_LENGTH, 12),
    ("vector", ("numpy", "torch"), orders.MAX_LENGTH - 1, 12),
]


def run(element, chosen):
    """Runs orders in one process that forks; returns the wrong ones and the count."""
    result = subprocess.run(
        [sys.executable, str(RUNNER), element],
        input=json.dumps(chosen),
        capture_output=True,
        text=True,
        timeout=60 + SECONDS_AN_ORDER * len(chosen),
        check=False,
    )
    assert result.returncode == 0 and not result.stderr, f"{RUNNER.name} failed\n{result.stdout}\n{result.stderr}"
    *wrong, last = [json.loads(line) for line in result.stdout.splitlines()]
    return wrong, last["ran"]


def run_in_parallel(element, chosen):
    """The same on a few processes."""
    shares = [chosen[start::WORKERS] for start in range(WORKERS)]
    with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
        results = list(pool.map(lambda share: run(element, share), shares))
    return [one for wrong, _ in results for one in wrong], sum(ran for _, ran in results)


def describe(wrong):
    """The first wrong orders, the shortest first, each with the command that runs it again."""
    wrong = sorted(wrong, key=lambda one: one["order"].count(","))
    lines = [f"{len(wrong)} orders went wrong:"]
    for one in wrong[:5]:
        again = shlex.join([sys.executable, str(RUNNER), one["element"], one["order"]])
        lines += [f"\nexit code {one['exit_code']} (negative: a signal); again with: {again}", one["stderr"].rstrip()]
    return "\n".join(lines)


def need(consumers, arch):
    """Skips where a library is missing, or cannot see the memory of the backend."""
    for name in consumers:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed: pip install {name}")
    if arch == "cuda" and "numpy" in consumers:
        pytest.skip("backend cuda: NumPy reads host memory only")


@pytest.mark.parametrize(
    "element, consumers, max_length, count", CASES, ids=[f"{case[0]}-{'-'.join(case[1])}" for case in CASES]
)
def test_every_order_is_right(element, consumers, max_length, count, arch, request):
    need(consumers, arch)
    generated = list(orders.all_orders(consumers, max_length))
    chosen = generated if orders.is_full() else orders.sample(generated, count)
    wrong, ran = run_in_parallel(element, chosen)
    assert ran == len(chosen)
    counts = request.config.__dict__.setdefault("lifetime_counts", {})
    counts[f"{element}, {' and '.join(consumers)}"] = len(generated), ran
    assert not wrong, describe(wrong)


def test_a_wrong_order_is_reported():
    wrong, ran = run("scalar", [["drop_view:numpy", "exit"], ["reset", "exit"]])
    assert ran == 2 and [one["order"] for one in wrong] == ["drop_view:numpy,exit"]
    assert wrong[0]["exit_code"] == 1 and "KeyError" in wrong[0]["stderr"]


def test_orders_begin_with_an_export_or_lead_to_one():
    for order in orders.all_orders(("numpy",)):
        exports = [place for place, step in enumerate(order) if step == "export:numpy"]
        ends = [
            place for place, step in enumerate(order) if step in ("drop_owner", "reset", "init_again", "init_other")
        ]
        uses = [place for place, step in enumerate(order) if step in ("read", "write", "drop_view:numpy")]
        assert exports and all(place < ends[0] for place in exports if ends)
        assert all(place > exports[0] for place in uses)
        assert order.count("exit") == 1 and order[-1] == "exit" and len(order) <= orders.MAX_LENGTH


def test_orders_are_complete_and_unique():
    generated = list(orders.all_orders(("numpy",)))
    assert len(set(generated)) == len(generated)
    # Once a view is held and its owner lives, the steps that end something go in any order.
    for middle in itertools.permutations(("drop_owner", "reset", "init_other", "drop_view:numpy")):
        assert ("export:numpy", *middle, "exit") in generated
    # What a walk over the states, written apart, counted.
    assert len(generated) == 1801


def test_sample_is_the_same_each_time_and_starts_with_the_shortest():
    generated = list(orders.all_orders(("numpy",)))
    chosen = orders.sample(generated, 60)
    assert chosen == orders.sample(generated, 60) and len(set(chosen)) == 60
    assert chosen[:20] == generated[:20]
