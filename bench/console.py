"""What the commands of this package share: their arguments, their progress, their last words."""

import contextlib
import datetime
import sys

from bench import machine, markdown, results
from bench.conductor import ROOT

PICTURES = ROOT / "docs" / "img"


def pairs(words):
    """NAME=VALUE as a dict."""
    return dict(word.split("=", 1) for word in words)


def progress_bar(total):
    """Tqdm's bar, or a plain count where tqdm is not installed."""
    try:
        from tqdm import tqdm  # pylint: disable=C0415
    except ImportError:
        return PlainProgress(total)
    return tqdm(total=total, unit="round", dynamic_ncols=True)


def run_rounds(run, plan):
    """Measures all rounds of a prepared Run, with a progress bar."""
    progress = progress_bar(plan.rounds)
    try:
        run.rounds(progress.update)
    finally:
        progress.close()


def describe_run(options, core):
    """What the reader should know of a run before it begins: command, device, date, machine."""
    return {
        "command": options.command,
        "arch": options.arch,
        "date": datetime.date.today().isoformat(),
        "machine": machine.describe(core),
    }


class PlainProgress:
    """What is needed of tqdm's interface."""

    def __init__(self, total):
        self._total, self._done = total, 0

    def update(self):
        """One round more."""
        self._done += 1
        print(f"round {self._done} of {self._total}", file=sys.stderr)

    def close(self):
        """Nothing is left to do."""


def publish(options, title, text, document, draw):
    """Prints the text of a report and writes it with its pictures: for this run, and with --docs for the project.

    Args:
        options: The command line, with `out` and `docs`.
        title, text: Of the run's own file, which has the document's name.
        document (Path): The text goes between its markers, the pictures beside it.
        draw: Called with each folder that gets pictures.
    """
    results.write_whole(options.out / document.name, f"# {title}\n\n{text}\n")
    print(text)
    draw(options.out)
    if options.docs:
        results.write_whole(document, markdown.insert(document.read_text(encoding="utf-8"), text))
        draw(PICTURES)
        print(f"== wrote {document.relative_to(ROOT)} and {PICTURES.relative_to(ROOT)}/")
    print(f"== all results: {options.out}")


def tell_left_out(left_out):
    """Prints a line for each thing that was left out."""
    for one in left_out:
        print(f"left out: {one['worker']}, {one['what']}: {one['why']}")


@contextlib.contextmanager
def interrupted():
    """Ends the program on Ctrl-C, with a line in place of a traceback."""
    try:
        yield
    except KeyboardInterrupt:
        print("\ninterrupted: nothing was written, the results of an earlier run are as they were", file=sys.stderr)
        sys.exit(130)
