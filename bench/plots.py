"""The pictures of docs/benchmarks.md."""

import os
from statistics import median

import matplotlib

matplotlib.use("Agg")  # a file, not a window

# pylint: disable=wrong-import-position
from matplotlib import pyplot as plt
from matplotlib.ticker import FuncFormatter, NullLocator

from bench import markdown
from bench.measures import COPIES, EXCHANGE, OURS, REFERENCE, RL, RL_ANEW, RL_COPYING, RL_SHARING, WHEELS, size_name
from bench.results import quartiles, whole

COLOURS = {"source": "#0b6e8a", "fast": "#e08a1e", "reference": "#8c8c8c", "peer": "#8f6bb0"}
STYLE = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "grid.color": "#e4e4e4",
    "legend.frameon": False,
    "figure.dpi": 110,
}


def time_name(seconds, _=None):
    """A time, for people."""
    if seconds <= 0:
        return "0"
    for unit, name in ((1, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= unit * 0.9995:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds * 1e9:.3g} ns"


def curve(axes, entries, **style):
    """Medians over sizes, with the quartiles as a band."""
    entries = sorted((entry for entry in entries if entry), key=lambda entry: entry.size)
    if not entries:
        return
    low, middle, high = zip(*(quartiles(entry.values) for entry in entries))
    sizes = [entry.size for entry in entries]
    axes.plot(sizes, middle, marker="o", markersize=4, **style)
    axes.fill_between(sizes, low, high, color=style["color"], alpha=0.18, linewidth=0)


def label_axes(axes, sizes, name):
    """Logarithmic, in units that people read."""
    axes.set(xscale="log", yscale="log")
    axes.set_xticks(sizes, [name(size) for size in sizes])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(time_name))


def draw_measure(axes, results, measure):
    """The cost of one measure against the size."""
    sizes = results.sizes(measure.name)
    wheels = markdown.wheels_of(results)
    for wheel in wheels:
        entries = [results.find(wheel, measure.name, size, OURS) for size in sizes]
        curve(axes, entries, color=COLOURS[wheel], label=f"{wheel} wheel")
    entries = [results.find(wheels[0], measure.name, size, REFERENCE) for size in sizes]
    curve(axes, entries, color=COLOURS["reference"], linestyle="--", label="reference")
    label_axes(axes, sizes, size_name)
    axes.text(0, 1.015, f"reference: {measure.reference}", transform=axes.transAxes, fontsize=8, color="#666666")
    axes.set_title(measure.ours.replace("\\", ""), pad=18)


def draw_sizes(results):
    """Cost against size: what shares is flat, what copies is not."""
    measures = EXCHANGE + (COPIES[0], COPIES[1], COPIES[3])
    figure, grid = plt.subplots(3, 3, figsize=(12, 10), layout="constrained")
    for axes, measure in zip(grid.flat, measures):
        draw_measure(axes, results, measure)
    # One scale for all that shares.
    shared = grid.flat[: len(EXCHANGE)]
    low = min(axes.get_ylim()[0] for axes in shared)
    high = max(axes.get_ylim()[1] for axes in shared)
    for axes in shared:
        axes.set_ylim(low, high)
    figure.suptitle("Cost against size: what shares memory is flat, what copies grows", fontweight="bold")
    figure.legend(*grid.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def draw_latency(results):
    """A bar for each exchange of 1 kB; long ones below."""
    rows = {}
    for entry in markdown.latency_entries(results):
        rows.setdefault(entry.side, {})[bar_kind(entry)] = entry
    labels = sorted(rows, key=lambda label: min(median(entry.values) for entry in rows[label].values()))
    figure, axes = plt.subplots(figsize=(10, 0.46 * len(labels) + 1.4), layout="constrained")
    for position, label in enumerate(labels):
        draw_bars(axes, position, rows[label])
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set(xscale="log")
    axes.xaxis.set_major_formatter(FuncFormatter(time_name))
    axes.grid(axis="y", visible=False)
    axes.margins(x=0.12, y=0.01)
    axes.set_title("One exchange of 1 kB, median (logarithmic)")
    kinds = [kind for kind in COLOURS if any(kind in found for found in rows.values())]
    names = {"source": "source wheel", "fast": "fast wheel", "reference": "without Taichi", "peer": "other Taichis"}
    handles = [plt.Rectangle((0, 0), 1, 1, color=COLOURS[kind]) for kind in kinds]
    axes.legend(handles, [names[kind] for kind in kinds], loc="upper right")
    return figure


def bar_kind(entry):
    """The colour of a bar."""
    if entry.worker not in WHEELS:
        return "peer"
    return entry.worker if markdown.concerns_us(entry) else "reference"


def draw_bars(axes, position, found):
    """The bars of one label, side by side."""
    height = 0.76 / len(found)
    for number, (kind, entry) in enumerate(sorted(found.items(), key=lambda item: list(COLOURS).index(item[0]))):
        low, middle, high = quartiles(entry.values)
        place = position + (number - (len(found) - 1) / 2) * height
        axes.barh(place, middle, height=height * 0.92, color=COLOURS[kind])
        axes.plot([low, high], [place, place], color="#222222", linewidth=1)
        axes.annotate(
            time_name(middle), (max(middle, high), place), (4, 0), textcoords="offset points", va="center", fontsize=8
        )


def draw_reinforcement(results):
    """Steps per second against the number of environments, and the gain."""
    wheel = markdown.wheels_of(results)[0]
    counts = results.sizes(RL)
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.4), layout="constrained")
    sides = ((RL_COPYING, "#c44e52"), (RL_SHARING, "#0b6e8a"), (RL_ANEW, "#5aa9b8"))
    for side, colour in sides:
        curve(left, [results.find(wheel, RL, count, side) for count in counts], color=colour, label=side)
    left.set(xscale="log", xlabel="environments", ylim=(0, None))
    left.set_xticks(counts, counts)
    left.xaxis.set_minor_locator(NullLocator())
    left.yaxis.set_major_formatter(FuncFormatter(time_name))
    left.set_title(f"One step: simulation, observations, policy, actions ({wheel} wheel)")
    left.legend()
    for wheel in markdown.wheels_of(results):
        pairs = [[results.find(wheel, RL, count, side) for side in (RL_COPYING, RL_SHARING)] for count in counts]
        gains = [results.ratio(*pair) for pair in pairs]
        right.plot(counts, [gain.value for gain in gains], marker="o", color=COLOURS[wheel], label=f"{wheel} wheel")
        right.fill_between(
            counts, [g.low for g in gains], [g.high for g in gains], color=COLOURS[wheel], alpha=0.18, linewidth=0
        )
    right.axhline(1, color="#8c8c8c", linewidth=1)
    right.set(xscale="log", xlabel="environments", ylim=(0, None))
    right.set_xticks(counts, counts)
    right.xaxis.set_minor_locator(NullLocator())
    right.set_title("Time of a step when copying, over that when shared once")
    right.legend()
    return figure


PICTURES = {"cost-against-size": draw_sizes, "latency-by-peer": draw_latency, "rl-loop": draw_reinforcement}


def save(results, folder):
    """Draws all pictures into a folder, each whole or not at all; returns their paths."""
    os.makedirs(folder, exist_ok=True)
    paths = []
    with plt.rc_context(STYLE):
        for name, draw in PICTURES.items():
            path = os.path.join(folder, f"{name}.png")
            figure = draw(results)
            with whole(path) as unfinished:
                figure.savefig(unfinished, format="png")
            plt.close(figure)
            paths.append(path)
    return paths
