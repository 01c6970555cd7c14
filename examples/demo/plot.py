"""The picture of a run of the demo."""

import os

import matplotlib
import numpy as np

matplotlib.use("Agg")  # a file, not a window

# pylint: disable=wrong-import-position
from matplotlib import pyplot as plt

from .simulation import DX, JETS, WALL
from .training import TARGET

PARTS = (("simulation", "#4c72b0"), ("network", "#8da0cb"), ("exchange", "#dd5143"))


def draw_rates(axes, copies, sharing):
    """A bar for each step rate."""
    runs = (copies, sharing)
    rates = [run.rate() for run in runs]
    bars = axes.bar([run.link.name for run in runs], rates, color=["#dd5143", "#2a9d6f"], width=0.6)
    axes.bar_label(bars, [f"{rate:.0f}" for rate in rates], padding=2)
    axes.set(title=f"Steps per second: {rates[1] / rates[0]:.2f} times as many", ylim=(0, 1.15 * max(rates)))


def draw_times(axes, copies, sharing):
    """A stacked bar for the parts of each run's step."""
    runs = (copies, sharing)
    left = np.zeros(2)
    for part, colour in PARTS:
        times = np.array([run.microseconds(part) for run in runs])
        axes.barh([run.link.name for run in runs], times, left=left, color=colour, label=part, height=0.55)
        left += times
    axes.invert_yaxis()
    axes.set(title="One step in microseconds", xlim=(0, 1.05 * left.max()))
    axes.legend(fontsize=8, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.12), frameon=False)


def draw_scene(axes, run):
    """The particles at the end of the last episode, and where the untrained network leaves them."""
    before, after = run.before[1], run.after[1]
    columns = np.arange(len(after)) % run.link.scene.columns
    axes.scatter(*before.T, s=1, color="#d5d5d5", linewidths=0)
    axes.scatter(*after.T, s=1.5, c=columns, cmap="viridis", linewidths=0)
    axes.plot(*TARGET, "+", color="white", markersize=14, markeredgewidth=2.5)
    floor = WALL * DX
    axes.axhspan(0, floor, color="#5f5f5f")
    for jet in range(JETS):
        axes.plot([(jet + 0.15) / JETS, (jet + 0.85) / JETS], [floor, floor], color="#dd5143", linewidth=3)
    axes.annotate("jets", (0.5, 0.5 * floor), ha="center", va="center", color="white", fontsize=8)
    axes.annotate("untrained", before.mean(axis=0), ha="center", va="center", color="#707070")
    axes.set(title=f"{len(after):,} particles, trained", xlim=(0, 1), ylim=(0, 1), xticks=[], yticks=[], aspect="equal")


def draw_learning(axes, copies, sharing):
    """The mean loss of each generation, of both runs, with every episode as a dot."""
    losses = np.array(copies.training.losses)
    generations = np.arange(1, len(losses) + 1)
    axes.plot(np.repeat(generations, losses.shape[1]), losses.ravel(), ".", color="#bbbbbb", label="an episode")
    for run, colour, style, width in ((copies, "#dd5143", "-", 4), (sharing, "#1b1b1b", "--", 1.5)):
        mean = np.mean(run.training.losses, axis=1)
        axes.plot(generations, mean, style, color=colour, linewidth=width, label=f"mean, {run.link.name}")
    axes.set(title="Learning", xlabel="generation", ylabel="mean squared distance to target", ylim=(0, None))
    axes.legend(fontsize=8)


def save(path, copies, sharing):
    """Draw everything and write a PNG to ``path``, whole or not at all."""
    figure = plt.figure(figsize=(13, 4.6), layout="constrained")
    left, middle, right = figure.subfigures(1, 3, width_ratios=(1.05, 1.0, 1.05))
    rates, times = left.subplots(2, 1, height_ratios=(1.5, 1.0))
    draw_rates(rates, copies, sharing)
    draw_times(times, copies, sharing)
    draw_scene(middle.subplots(), sharing)
    draw_learning(right.subplots(), copies, sharing)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    unfinished = f"{path}.part"
    figure.savefig(unfinished, dpi=110, format="png")
    os.replace(unfinished, path)
    plt.close(figure)
