"""Hooks and fixtures of these tests."""

from suite import *  # noqa: F403  pylint: disable=W0401, W0614
