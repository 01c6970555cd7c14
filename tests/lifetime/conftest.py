"""The lifetime suite finds its wheel and its backend as tests/interop does; at its end it prints what it ran."""

import importlib.util
import sys
from pathlib import Path

import orders

_INTEROP = Path(__file__).resolve().parents[1] / "interop"


def _load_interop():
    """The conftest of tests/interop, under a name of its own: two of the name conftest cannot be imported."""
    sys.path.insert(0, str(_INTEROP))
    spec = importlib.util.spec_from_file_location("interop_conftest", _INTEROP / "conftest.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


interop = _load_interop()

# Hooks and fixtures that are the same here.
pytest_configure = interop.pytest_configure
pytest_unconfigure = interop.pytest_unconfigure
pytest_report_header = interop.pytest_report_header
pytest_runtest_setup = interop.pytest_runtest_setup
arch = interop.arch


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
