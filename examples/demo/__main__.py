"""Run the demo: ``python -m demo`` from the folder ``examples``."""

import argparse
import os
import sys
import time
from importlib import metadata

os.environ.setdefault("ENABLE_TAICHI_HEADER_PRINT", "0")  # the versions are printed below

# pylint: disable=wrong-import-position
import taichi as ti
import torch

from . import plot, report
from .exchange import Copies, Sharing
from .training import Training

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PICTURE = os.path.join(ROOT, "build", "demo", "demo.png")


def at_least(smallest):
    """A type for argparse: an integer not below ``smallest``."""

    def integer(text):
        if not text.isdigit() or int(text) < smallest:
            raise argparse.ArgumentTypeError(f"got {text!r}, wanted an integer of {smallest} or more")
        return int(text)

    return integer


def parse(arguments):
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m demo",
        description="A Taichi MLS-MPM scene and a torch network that reads every particle and sets the jets under it, "
        "each step. Trained twice with the same seeds: with copies between the two libraries, and in shared memory.",
    )
    parser.add_argument("--particles", type=at_least(1000), default=10800, help="about how many (default: %(default)s)")
    parser.add_argument("--generations", type=at_least(1), default=10, help="of the training (default: %(default)s)")
    parser.add_argument("--seed", type=at_least(0), default=1, help="of weights and noise (default: %(default)s)")
    parser.add_argument("--threads", type=at_least(1), default=0, help="of Taichi (default: all cores)")
    parser.add_argument("--out", default=PICTURE, help="where the PNG goes (default: build/demo/demo.png)")
    return parser.parse_args(arguments)


def require_sharing():
    """Exit with the next step if this Taichi cannot share memory."""
    version = metadata.version("taichi")
    if not hasattr(ti, "from_dlpack"):
        sys.exit(f"demo: got taichi {version}, wanted one with DLPack (1.7.4+dlpack...)\nnext: make demo")
    return version


def tell_load():
    """Say so if other programs keep the cores busy: the step rates then say less."""
    load, cores = os.getloadavg()[0], os.cpu_count()
    if load > 0.7 * cores:
        print(f"note: this machine is busy (load {load:.1f}, cores {cores}); on an idle one the figures differ")


def train(trainings, generations):
    """Train all, generation by generation in turn, so that a busy machine slows each alike."""
    start = time.perf_counter()
    for generation in range(generations):
        # Who goes first changes, so that neither always follows the other.
        for training in trainings if generation % 2 == 0 else reversed(trainings):
            training.generation()
        mean = sum(trainings[0].losses[-1]) / len(trainings[0].losses[-1])
        seconds = time.perf_counter() - start
        print(f"  generation {generation + 1:2}/{generations}: mean loss {mean:.4f}   {seconds:3.0f} s", flush=True)


def run_both(options):
    """Both runs, in turn; returns the two ``report.Run``."""
    columns = round((3 * options.particles) ** 0.5)
    trainings = [Training(link(columns), options.seed) for link in (Copies, Sharing)]
    print(f"Training a network twice on {trainings[0].link.scene.particles:,} particles, with copies and without:")
    before = [training.show() for training in trainings]  # compiles the kernels, too
    train(trainings, options.generations)
    after = [training.show() for training in trainings]
    return [report.Run(*results) for results in zip(trainings, before, after)]


def main(arguments=None):
    """Run, report, draw; returns the exit status: 0 if memory is shared and both runs agree."""
    options = parse(arguments)
    version = require_sharing()
    print(f"taichi {version}, torch {torch.__version__}, Python {sys.version.split()[0]}")
    tell_load()
    # One thread: torch's pool spins while it waits and would take the cores from Taichi's.
    torch.set_num_threads(1)
    ti.init(arch=ti.cpu, offline_cache=False, log_level=ti.WARN, cpu_max_num_threads=options.threads or os.cpu_count())
    copies, sharing = run_both(options)
    report.tell_rates(copies, sharing)
    report.tell_bytes(copies, sharing)
    report.tell_addresses(sharing)
    report.tell_results(copies, sharing)
    plot.save(options.out, copies, sharing)
    print(f"\nplot: {options.out}")
    if not report.same_memory(sharing) or not report.same_bits(copies, sharing):
        print("demo: the two runs differ, which is a fault; please report it with this output\nnext: make test")
        return 1
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\ndemo: interrupted, no plot was written\nnext: make demo", file=sys.stderr)
        sys.exit(130)
