"""What the demo measured: in words, and whether the two runs agree."""

from dataclasses import dataclass
from statistics import median

import numpy as np

from .training import PAIRS, STEPS


@dataclass
class Run:
    """One of the two runs: its ``Training``, and (loss, final positions) before and after it."""

    training: object
    before: tuple
    after: tuple

    @property
    def link(self):
        """The run's ``Copies`` or ``Sharing``."""
        return self.training.link

    def rate(self):
        """Steps per second: the median over the blocks (generations)."""
        return median(clock.rate() for clock in self.training.clocks)

    def microseconds(self, part):
        """Microseconds a step that ``part`` of ``Clock`` takes: the median over the blocks."""
        return median(1e6 * getattr(clock, part) / clock.steps for clock in self.training.clocks)

    def share(self):
        """The part of a step that the exchange takes: the median over the blocks."""
        return median(clock.exchange / clock.seconds() for clock in self.training.clocks)

    def steps(self):
        """Steps of the training and of the episodes before and after it."""
        return sum(clock.steps for clock in self.training.clocks) + 2 * STEPS


def same_bits(a, b):
    """Whether two runs agree in every loss, every weight and every particle's final position."""
    return (
        a.training.losses == b.training.losses
        and a.training.weights.equal(b.training.weights)
        and all(x[0] == y[0] and np.array_equal(x[1], y[1]) for x, y in ((a.before, b.before), (a.after, b.after)))
    )


def same_memory(run):
    """Whether every shared array has one address in both libraries, the one it began with."""
    addresses = run.link.addresses()
    return addresses == run.link.first_addresses and all(taichi == torch for _, taichi, torch in addresses)


def tell_rates(copies, sharing):
    """Print the step rates, their ratio, and where a step's time goes."""
    blocks = len(copies.training.clocks)
    ratios = [s.rate() / c.rate() for s, c in zip(sharing.training.clocks, copies.training.clocks)]
    print(f"\nStep rate (median of {blocks} blocks of {2 * PAIRS * STEPS} steps, the two runs in turn):")
    for run in (copies, sharing):
        parts = ", ".join(f"{part} {run.microseconds(part):.0f}" for part in ("simulation", "network", "exchange"))
        print(f"  {run.link.name:15} {run.rate():6.0f} steps/s   us a step: {parts} ({100 * run.share():.1f} %)")
    print(f"  ratio           {sharing.rate() / copies.rate():6.2f}           block by block: ", end="")
    print(f"{min(ratios):.2f} to {max(ratios):.2f}")


def tell_bytes(copies, sharing):
    """Print the bytes that sharing spares."""
    spared = copies.link.bytes_per_step() - sharing.link.bytes_per_step()
    print(f"\nNo longer copied: {spared:,} bytes a step, {spared * sharing.steps():,} in all {sharing.steps():,} steps")
    print(f"  still written:  {sharing.link.bytes_per_step()} bytes a step, the controls, straight into shared memory")


def tell_addresses(sharing):
    """Print each shared array's address as Taichi and as torch see it."""
    print("\nOne memory, two libraries:")
    for name, taichi, torch in sharing.link.addresses():
        verdict = "equal" if taichi == torch else "DIFFERENT"
        print(f"  {name:9} taichi {taichi:#x}   torch {torch:#x}   {verdict}")
    moved = "the same" if sharing.link.addresses() == sharing.link.first_addresses else "DIFFERENT"
    print(f"  before the first step and after the last: {moved}")


def tell_results(copies, sharing):
    """Print what was learned and whether both runs gave the same bits."""
    print("\nMean squared distance to the target, same seeds in both runs:")
    for run in (copies, sharing):
        print(f"  {run.link.name:15} untrained {run.before[0]:.6f}   trained {run.after[0]:.6f}")
    same = "the same bits" if same_bits(copies, sharing) else "DIFFERENT BITS"
    print(f"  losses, weights and final positions of the two runs: {same}")
