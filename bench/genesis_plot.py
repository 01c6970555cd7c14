"""The picture of docs/genesis.md."""

import os

from matplotlib import pyplot as plt
from matplotlib.ticker import FuncFormatter, NullLocator

from bench import genesis_measures as measures
from bench.plots import STYLE, time_name
from bench.results import whole

GREY, BLUE, ORANGE = "#8c8c8c", "#0b6e8a", "#e08a1e"
LINES = (
    (measures.RL, measures.CALL, BLUE, "-"),
    (measures.RL, measures.VIEW, ORANGE, "-"),
    (measures.SEVEN, measures.CALL, BLUE, "--"),
    (measures.SEVEN, measures.VIEW, ORANGE, "--"),
    (measures.CONTROL, measures.CALL, BLUE, ":"),
)


def draw_ratios(axes, figures):
    """The parts of a step over the released Genesis, against the number of environments."""
    for name, side, colour, style in LINES:
        ratios = [figures.ratio(name, count, side) for count in figures.counts]
        label = f"{name.partition('(')[0]}, {measures.SIDES[side]}"
        axes.plot(figures.counts, [r.value for r in ratios], style, color=colour, marker="o", markersize=4, label=label)
        axes.fill_between(
            figures.counts, [r.low for r in ratios], [r.high for r in ratios], color=colour, alpha=0.15, lw=0
        )
    axes.axhline(1, color=GREY, linewidth=1)
    axes.set(xscale="log", xlabel="environments", ylim=(0, None))
    axes.set_xticks(figures.counts, figures.counts)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_title("Time over that of the released Genesis")
    axes.legend(fontsize=8)


def draw_getters(axes, figures):
    """Each getter at one number of environments: released, snapshot, view."""
    count = figures.shown
    worker_of = {"released": figures.reference, measures.CALL: measures.PATCHED, measures.VIEW: measures.PATCHED}
    colours = {"released": GREY, measures.CALL: BLUE, measures.VIEW: ORANGE}
    for kind, worker in worker_of.items():
        side = measures.VIEW if kind == measures.VIEW else measures.CALL
        found = [(figures.seconds(worker, name, count, side), place) for place, name in enumerate(measures.GETTERS)]
        found = [point for point in found if point[0] is not None]
        label = "released" if kind == "released" else measures.SIDES[side]
        axes.scatter(*zip(*found), color=colours[kind], s=18, label=label, zorder=3)
    axes.set_yticks(range(len(measures.GETTERS)), measures.GETTERS, fontsize=7)
    axes.invert_yaxis()
    axes.set(xscale="log")
    axes.xaxis.set_major_formatter(FuncFormatter(time_name))
    axes.set_title(f"Getters, {count} environments")
    axes.legend(fontsize=8)


def save(figures, folder):
    """Draws genesis.png into a folder, whole or not at all."""
    os.makedirs(folder, exist_ok=True)
    with plt.rc_context(STYLE), whole(os.path.join(folder, "genesis.png")) as unfinished:
        picture, (left, right) = plt.subplots(1, 2, figsize=(12, 6), layout="constrained")
        draw_ratios(left, figures)
        draw_getters(right, figures)
        picture.savefig(unfinished, format="png")
        plt.close(picture)
