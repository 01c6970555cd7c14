"""Hooks and fixtures of these tests."""

from suite import (  # noqa: F401  pylint: disable=W0611
    arch,
    fresh_runtime,
    peer,
    pytest_configure,
    pytest_report_header,
    pytest_runtest_setup,
    pytest_terminal_summary,
    pytest_unconfigure,
    runtime,
    torch,
    wheel,
)
