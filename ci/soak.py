"""Does sharing memory grow anything? Exports, imports and short-lived ndarrays in one process: soak.py [CYCLES]

Prints the resident memory (RSS), the number of Python objects that the collector tracks and, on the source wheel, the
highest slot that the device gave to an allocation. Fails when the RSS grows by 1 MB or more after a warm-up, or when
one of the others grows.

The released core of the fast wheel keeps something for each ndarray ever made, shared or not. So there only one cycle
in a thousand makes one, and slots are not looked at.
"""

import ctypes
import gc
import importlib.metadata
import os
import sys
import time

os.environ.setdefault("TI_SKIP_VERSION_CHECK", "ON")
os.environ.setdefault("ENABLE_TAICHI_HEADER_PRINT", "0")

import numpy as np  # noqa: E402

import taichi as ti  # noqa: E402

CYCLES = 1_000_000
WARM_UP = 10_000
LIMIT = 1_000_000
REPORTS = 10
# What one more report line and the like may leave.
SPARE_OBJECTS = 20


def resident():
    """Resident bytes of this process; garbage is collected and free memory given back first."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def slot_of(nd):
    """The id that the device gave to an ndarray's memory: the word after the device in a DeviceAllocation."""
    return ctypes.c_uint64.from_address(nd.arr.device_allocation_ptr() + ctypes.sizeof(ctypes.c_void_p)).value


class Soak:
    """Repeats one cycle of everything that could leave something behind."""

    def __init__(self, has_slots):
        self.has_slots = has_slots
        self.ndarray_every = 1 if has_slots else 1000
        self.made = 0
        self.top_slot = 0
        self.nd = ti.ndarray(ti.f32, 16)
        self.source = np.arange(16, dtype=np.float32)

    def cycle(self, number):
        """Exports an ndarray; imports an array; makes a short-lived ndarray. Exports of both outlive them."""
        np.from_dlpack(self.nd)
        self.nd.__dlpack__()
        borrowed = ti.from_dlpack(self.source)
        self._note(borrowed)
        view = np.from_dlpack(borrowed)
        del borrowed
        assert view[15] == 15
        if number % self.ndarray_every == 0:
            self._make_and_drop()

    def _make_and_drop(self):
        """A scalar ndarray and a vector ndarray in turn."""
        self.made += 1
        short = ti.ndarray(ti.i32, 16) if self.made % 2 else ti.Vector.ndarray(3, ti.f32, 16)
        self._note(short)
        view = np.from_dlpack(short)
        del short
        assert not view.any()

    def _note(self, nd):
        if self.has_slots:
            self.top_slot = max(self.top_slot, slot_of(nd))

    def run(self, start, count):
        """Runs some cycles, numbered from `start`."""
        for number in range(start, start + count):
            self.cycle(number)


class Figures:
    """What may not grow, at one moment."""

    def __init__(self, soak):
        self.rss = resident()
        self.objects = len(gc.get_objects())
        self.top_slot = soak.top_slot

    def show(self, done, began, seconds, has_slots):
        """Prints one line."""
        slot = self.top_slot if has_slots else "-"
        growth = (self.rss - began.rss) / 1e6
        print(f"{done:9d} {self.rss / 1e6:9.2f} {growth:+8.3f} {self.objects:9d} {slot:>9} {seconds:8.1f}", flush=True)

    def problems(self, began):
        """What grew."""
        growth = self.rss - began.rss
        if growth >= LIMIT:
            yield f"the RSS grew by {growth / 1e6:.3f} MB after the warm-up, wanted under {LIMIT / 1e6:.0f} MB"
        if self.objects > began.objects + SPARE_OBJECTS:
            yield f"Python's objects went from {began.objects} to {self.objects}, wanted no growth"
        if self.top_slot > began.top_slot:
            yield f"the highest slot went from {began.top_slot} to {self.top_slot}, wanted no growth"


def cycles_asked(words):
    """The number of cycles, from the command line."""
    text = words[0] if words else str(CYCLES)
    if not text.isdecimal() or int(text) < 1:
        sys.exit(f"error: CYCLES is {text!r}, wanted a whole number of 1 or more, as in CYCLES=50000")
    return int(text)


def main():
    cycles = cycles_asked(sys.argv[1:])
    if not hasattr(ti, "from_dlpack"):
        sys.exit(
            "error: this Taichi has no ti.from_dlpack; install a wheel that `make wheel-fast` or `make wheel` built"
        )
    version = importlib.metadata.version("taichi")
    ti.init(arch=ti.cpu, log_level=ti.ERROR)
    soak = Soak(has_slots=not version.endswith(".fast"))
    print(f"taichi {version}: {WARM_UP} cycles to warm up, then {cycles}; an ndarray made in 1 of {soak.ndarray_every}")
    soak.run(0, WARM_UP)
    began, clock = Figures(soak), time.monotonic()
    print("   cycles    RSS MB   growth   objects  top slot  seconds")
    began.show(0, began, 0, soak.has_slots)
    done, now = 0, began
    for part in range(1, REPORTS + 1):
        count = cycles * part // REPORTS - done
        soak.run(WARM_UP + done, count)
        done, now = done + count, Figures(soak)
        now.show(done, began, time.monotonic() - clock, soak.has_slots)
    wrong = list(now.problems(began))
    for line in wrong:
        print(f"error: {line}", file=sys.stderr)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
