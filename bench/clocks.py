"""Clocks for samples, by device."""

import time

import torch


def device_clock():
    """The time at which the GPU has done all that it was given."""
    torch.cuda.synchronize()
    return time.perf_counter()


def clock_of(device):
    """The clock for statements that start work on the device."""
    return time.perf_counter if device == "cpu" else device_clock
