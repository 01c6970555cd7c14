"""A million hand-overs between Taichi's stream and side streams of torch's; see hunt.py.

TI_HUNT_HAND_OVERS is the number for both directions together, TI_HUNT_SECONDS the time that each may take.
"""

import itertools
import os
import time

import pytest
import taichi as ti

import gpu as gpus
import hunt

HAND_OVERS = int(os.environ.get("TI_HUNT_HAND_OVERS", "1000000"))
SECONDS = float(os.environ.get("TI_HUNT_SECONDS", "55"))
SLOTS = 64
# A kilobyte: small, and more than one block of threads.
COUNT = 256
STREAMS = 4


@ti.kernel
def compare(
    x: ti.types.ndarray(dtype=ti.i32, ndim=1),
    number: ti.i32,
    wrong: ti.types.ndarray(dtype=ti.i32, ndim=1),
    slot: ti.i32,
):
    for i in x:
        if x[i] != number:
            wrong[slot] = 1


@ti.kernel
def count_and_clear(wrong: ti.types.ndarray(dtype=ti.i32, ndim=1), total: ti.types.ndarray(dtype=ti.i32, ndim=1)):
    for slot in wrong:
        total[0] += wrong[slot]
        wrong[slot] = 0


class Direction:
    """What both have in common: some side streams, and a slow kernel as long as the host takes for a batch.

    So the whole batch is enqueued before its first write begins, and a consumer that does not wait is too early.
    """

    slots = SLOTS

    def __init__(self, gpu):
        self.gpu = gpu
        self.streams = itertools.cycle([gpu.side_stream() for _ in range(STREAMS)])
        self.slow_ms = 0

    def calibrate(self):
        """Measures how long the host takes for a batch, the kernels being compiled."""
        times = []
        for _ in range(5):
            began = time.perf_counter()
            self.batch(1, True)
            times.append(time.perf_counter() - began)
        self.slow_ms = 1000 * min(times)
        self.mismatches()

    def batch(self, first, wait):
        """Enqueues a batch on the next side stream. It begins when all of the last one is read."""
        stream = next(self.streams)
        stream.wait_stream(self.gpu.default)
        with self.gpu.torch.cuda.stream(stream):
            self.hand_over(first, wait, stream)
        self.gpu.default.wait_stream(stream)

    def slow(self, stream):
        """The slow kernel."""
        if self.slow_ms:
            self.gpu.sleep(stream, self.slow_ms)


class TaichiToTorch(Direction):
    """Taichi writes; a side stream of torch's copies what it sees, and compares a batch at a time."""

    name = "Taichi to torch"

    def __init__(self, gpu):
        super().__init__(gpu)
        torch = gpu.torch
        self.arrays = [gpus.array(0, COUNT) for _ in range(SLOTS)]
        self.seen = torch.zeros(SLOTS, COUNT, dtype=torch.int32, device="cuda")
        self.rows = list(self.seen.unbind())
        self.steps = torch.arange(SLOTS, dtype=torch.int32, device="cuda").reshape(-1, 1)
        self.total = torch.zeros((), dtype=torch.int64, device="cuda")
        torch.cuda.synchronize()
        self.calibrate()

    def hand_over(self, first, wait, _stream):
        """Called in the side stream, which is the consumer."""
        torch = self.gpu.torch
        self.slow(self.gpu.default)
        for slot, nd in enumerate(self.arrays):
            gpus.put(nd, first + slot)
            view = torch.from_dlpack(nd) if wait else self.gpu.take(nd, stream=-1)
            self.rows[slot].copy_(view)
        self.total += (self.seen != self.steps + first).any(dim=1).sum()

    def mismatches(self):
        """Reads the count, and starts it over."""
        self.gpu.torch.cuda.synchronize()
        count = int(self.total.item())
        self.total.zero_()
        self.gpu.torch.cuda.synchronize()
        return count


class TorchToTaichi(Direction):
    """A side stream of torch's writes; Taichi compares in its kernels."""

    name = "torch to Taichi"

    def __init__(self, gpu):
        super().__init__(gpu)
        self.tensors = [gpu.tensor(0, COUNT) for _ in range(SLOTS)]
        self.wrong, self.total = gpus.array(0, SLOTS), gpus.array(0, 1)
        self.calibrate()

    def hand_over(self, first, wait, stream):
        """Called in the side stream, which is the producer."""
        self.slow(stream)
        for slot, tensor in enumerate(self.tensors):
            tensor.fill_(first + slot)
            offered = tensor if wait else tensor.__dlpack__(stream=-1, max_version=(1, 0))
            compare(ti.from_dlpack(offered), first + slot, self.wrong, slot)
        count_and_clear(self.wrong, self.total)

    def mismatches(self):
        """Reads the count, and starts it over."""
        self.gpu.torch.cuda.synchronize()
        count = self.total[0]
        self.total.fill(0)
        ti.sync()
        return count


@pytest.mark.parametrize("direction", [TaichiToTorch, TorchToTaichi])
def test_no_hand_over_is_seen_too_early(gpu, direction, record_property):
    hands = direction(gpu)
    found = hunt.hunt(hands, HAND_OVERS // 2, SECONDS)
    record_property("hunt", {**found, "slow_kernel_ms": round(hands.slow_ms, 2), "slots": SLOTS, "streams": STREAMS})
    assert found["verdict"] == "no race", found
    assert found["hand_overs"] > 1000, f"too few hand-overs to say anything: {found}"
