"""The lifetime suite finds its wheel and its backend as tests/interop does; at its end it prints what it ran."""

import sys
from pathlib import Path

import orders

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "interop"))

from suite import (  # noqa: E402, F401  pylint: disable=C0413, W0611
    arch,
    pytest_configure,
    pytest_report_header,
    pytest_runtest_setup,
    pytest_unconfigure,
)


def pytest_terminal_summary(terminalreporter):
    """How many orders there are, and how many ran."""
    counts = getattr(terminalreporter.config, "lifetime_counts", {})
    if not counts:
        return
    terminalreporter.section("lifetime summary")
    for line in pytest_report_header():
        terminalreporter.write_line(line)
    for case, (generated, ran) in counts.items():
        terminalreporter.write_line(f"orders:  {case}: {generated} generated, {ran} run")
    if orders.is_full():
        terminalreporter.write_line("all orders ran")
    else:
        terminalreporter.write_line(f"a sample, seed {orders.seed()}; all of them: TI_LIFETIME_FULL=1")
