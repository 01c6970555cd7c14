"""The tables of docs/benchmarks.md, from a run's results, and the place of tables in a page."""

from bench import verdicts
from bench.measures import CLONE, COPIES, EXCHANGE, IN_PLACE, KB, LATENCY, OURS, SHARING, WHEELS, size_name
from bench.measures import LATENCY_FLOOR as FLOOR
from bench.measures import RL, RL_ANEW, RL_COPYING, RL_SHARING

BEGIN = "<!-- tables: written by a benchmark -->"
END = "<!-- end of tables -->"


def table(head, rows):
    """A Markdown table; the first column is text, the others are figures."""
    lines = [head, ["---"] + ["--:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def show(ratio):
    """A ratio with its spread. A missing one is a dash."""
    return "-" if ratio is None else f"{digits(ratio.value)} ({digits(ratio.low)} to {digits(ratio.high)})"


def digits(value):
    """Two digits after the point, none for large values."""
    return f"{value:.2f}" if value < 20 else f"{value:.0f}"


def judge(found):
    """The last cell of a line: met, or which sizes miss."""
    missed = [verdict for verdict in found if not verdict.met]
    if not found:
        return "-"
    if not missed:
        return "met"
    if len(missed) == len(found):
        return "**not met**"
    return "**not met** at " + ", ".join(size_name(verdict.size) for verdict in missed)


def wheels_of(results):
    """The wheels that were measured."""
    return [wheel for wheel in WHEELS if any(entry.worker == wheel for entry in results.entries)]


def by_line(found):
    """Verdicts in a dict from measure and wheel to one from size to Verdict."""
    lines = {}
    for verdict in found:
        lines.setdefault((verdict.measure, verdict.wheel), {})[verdict.size] = verdict
    return lines


def exchange(results, limits):
    """Sizes in columns, a line for each measure and wheel."""
    found = by_line(verdicts.compare(results, limits))
    grown = {(verdict.measure, verdict.wheel): verdict for verdict in verdicts.growth(results, limits)}
    sizes = results.sizes(EXCHANGE[0].name)
    head = ["", "wheel", "at most", *map(size_name, sizes), ""]
    head += [f"{size_name(max(sizes))} over {size_name(KB)}, at most {limits.wanted['growth']}"]
    rows = []
    for measure in SHARING:
        for wheel in wheels_of(results):
            line = found.get((measure.name, wheel), {})
            cells = [show(line[size].ratio if size in line else None) for size in sizes]
            last = grown.get((measure.name, wheel))
            rows.append([title(measure), wheel, limits.wanted[measure.limit], *cells, judge(list(line.values()))])
            rows[-1].append("-" if last is None else f"{show(last.ratio)} {judge([last])}")
    return table(head, rows)


def title(measure):
    """What is divided by what."""
    return f"{measure.ours} / {measure.reference}"


def copies(results, limits):
    """As `exchange`, for what copies; a line more for the reference without new memory, which nothing is held to."""
    found = by_line(verdicts.compare(results, limits))
    sizes = results.sizes(COPIES[0].name)
    wanted = [limits.wanted[COPIES[0].limit_at(size)] for size in sizes]
    head = ["", "wheel", *(f"{size_name(size)}, at most {most}" for size, most in zip(sizes, wanted)), ""]
    rows = []
    for measure in COPIES:
        for wheel in wheels_of(results):
            line = found.get((measure.name, wheel), {})
            cells = [show(line[size].ratio if size in line else None) for size in sizes]
            rows.append([f"{measure.ours} / copy into new memory", wheel, *cells, judge(list(line.values()))])
            rows += list(unjudged_copies(results, measure, wheel, sizes))
    return table(head, rows)


def unjudged_copies(results, measure, wheel, sizes):
    """The lines of a copy against those that it is not held to."""
    for side, name in ((IN_PLACE, "copy into memory that is there"), (CLONE, "tensor.clone()")):
        pairs = [[results.find(wheel, measure.name, size, side) for side in (OURS, side)] for size in sizes]
        if any(other for _, other in pairs):
            yield [f"{measure.ours} / {name}", wheel, *(show(results.ratio(*pair)) for pair in pairs), ""]


def latency(results):
    """Each exchange of 1 kB, as a multiple of what NumPy's own costs torch."""
    ratios = [(results.ratio(entry, latency_floor(results, entry.worker)), entry) for entry in latency_entries(results)]
    rows = []
    for ratio, entry in sorted(ratios, key=lambda pair: pair[0].value):
        rows.append([entry.side, entry.worker if concerns_us(entry) else "-", show(ratio)])
    return table(["from, to", "wheel", f"cost over that of {FLOOR}"], rows)


def concerns_us(entry):
    """Whether a wheel of ours takes part in this exchange, and not only its environment."""
    return entry.worker in WHEELS and ("ndarray" in entry.side or "field" in entry.side)


def latency_entries(results):
    """All entries of the latency by peer; between others, those of one environment are enough."""
    first = wheels_of(results)[0]
    for entry in results.entries:
        if entry.measure == LATENCY and (concerns_us(entry) or entry.worker == first or entry.worker not in WHEELS):
            yield entry


def latency_floor(results, worker):
    """NumPy to torch, in this worker's process, else in that of the first wheel."""
    return results.find(worker, LATENCY, KB, FLOOR) or results.find(wheels_of(results)[0], LATENCY, KB, FLOOR)


def reinforcement(results):
    """A line for each number of environments and wheel."""
    rows = []
    for count in results.sizes(RL):
        for wheel in wheels_of(results):
            copying = results.find(wheel, RL, count, RL_COPYING)
            ratios = [results.ratio(copying, results.find(wheel, RL, count, side)) for side in (RL_SHARING, RL_ANEW)]
            rows.append([count, wheel, *map(show, ratios)])
    return table(["environments", "wheel", f"{RL_COPYING} / {RL_SHARING}", f"{RL_COPYING} / {RL_ANEW}"], rows)


def about(results):
    """Machine, versions, command, and what is missing."""
    machine = results.about["machine"]
    lines = [f"* Command: `{results.about['command']}`, on {results.about['date']}."]
    lines.append(
        f"* Machine: {machine.get('cpu_model_name', 'unknown processor')}, {machine['cpu_count']} cores, "
        f"{machine['memory_gb']} GB; {machine['platform']}; Python {machine['python']}; "
        f"load {machine['load_before']} before the run."
    )
    counts = sorted({len(entry.values) for entry in results.entries})
    samples = f"{counts[0]}" + (f" to {counts[-1]}" if len(counts) > 1 else "")
    pinned = "one core, for all workers" if machine["pinned_core"] is not None else "no core in particular"
    lines.append(f"* Samples of each case: {samples}, in turn with all others; on {pinned}.")
    for worker, facts in results.about["facts"].items():
        versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
        device = f"; {facts['gpu']}" if "gpu" in facts else ""
        api = {True: "; exports through the C exchange API", False: "; exports through Python alone"}
        lines.append(f"* Environment `{worker}`: {versions}{device}{api.get(facts.get('c_exchange_api'), '')}.")
    lines += [f"* Left out: {one['worker']}, {one['what']}: {one['why']}" for one in results.about["left_out"]]
    return "\n".join(lines)


SECTIONS = (
    ("The run", lambda results, _: about(results)),
    ("Exchange", exchange),
    ("Copies", copies),
    ("By peer, 1 kB", lambda results, _: latency(results)),
    ("A loop of reinforcement learning", lambda results, _: reinforcement(results)),
)


def tables(results, limits):
    """All sections as one text."""
    return "\n\n".join(f"### {name}\n\n{make(results, limits)}" for name, make in SECTIONS)


def insert(document, text):
    """The document with `text` between its two marker comments, in place of what was there."""
    head, begin, rest = document.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the document has no line '{BEGIN}' with '{END}' after it; restore them")
    return f"{head}{BEGIN}\n\n{text}\n\n{END}{tail}"
