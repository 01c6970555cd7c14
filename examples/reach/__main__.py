"""Run the example, from the folder ``examples``, in an environment of ``make genesis``.

python -m reach
torchrun --standalone --nproc-per-node 2 -m reach
"""

import argparse
import os
import sys
import time
from dataclasses import dataclass, field
from statistics import median

from .processes import Processes, choose_device

choose_device()

# pylint: disable=wrong-import-position
import genesis as gs
import torch

from .agent import RATE, ActorCritic, improve, play
from .scene import EPISODE, Reach, SharedReach

WAYS = {"copying": Reach, "sharing": SharedReach}


def parse(arguments):
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m reach",
        description="A Panda arm learns by PPO to reach for targets. Trained twice with the same seeds: once Genesis "
        "copies its state, as released, and once torch sees it in place. Rewards and weights must be the same bits. "
        "Under torchrun each process has its own environments, and the gradients are averaged.",
    )
    parser.add_argument("--environments", type=int, default=64, help="of each process (default: %(default)s)")
    parser.add_argument("--iterations", type=int, default=40, help="episodes and updates (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of weights, noise and targets (default: %(default)s)")
    parser.add_argument("--backend", choices=("cpu", "cuda"), default="cpu", help="(default: %(default)s)")
    options = parser.parse_args(arguments)
    for name, smallest in (("environments", 1), ("iterations", 1), ("seed", 0)):
        if getattr(options, name) < smallest:
            parser.error(f"argument --{name}: got {getattr(options, name)}, wanted {smallest} or more")
    return options


@dataclass
class Outcome:
    """What one training came to.

    Attributes:
        rewards (list of float): The mean reward of a step, over all processes, one for each iteration.
        all_rewards (list of torch.Tensor): Each reward of this process.
        weights (torch.Tensor): Of the trained network.
        seconds (list of float): For each iteration the time of a step while playing, in this process.
    """

    rewards: list = field(default_factory=list)
    all_rewards: list = field(default_factory=list)
    weights: torch.Tensor = None
    seconds: list = field(default_factory=list)


def train(way, options, processes):
    """Trains a network from the beginning; returns its Outcome. The scene is gone when it returns."""
    os.environ["GS_ENABLE_ZEROCOPY"] = "0" if way == "copying" else "1"
    seed = options.seed + 1000 * processes.rank
    gs.init(backend=getattr(gs, options.backend), seed=seed, logging_level="error")
    try:
        task = WAYS[way](options.environments, seed)
        torch.manual_seed(options.seed)
        network = processes.share(ActorCritic())
        optimiser = torch.optim.Adam(network.parameters(), lr=RATE)
        random, outcome = torch.Generator(gs.device).manual_seed(seed), Outcome()
        for iteration in range(options.iterations):
            start = time.perf_counter()
            rollout = play(task, network, random)
            outcome.seconds.append((time.perf_counter() - start) / EPISODE)
            improve(network, optimiser, rollout, random)
            outcome.all_rewards.append(rollout.rewards)
            outcome.rewards.append(processes.mean(rollout.rewards.mean()))
            tell(processes, way, iteration, options.iterations, outcome.rewards[-1])
        outcome.weights = torch.nn.utils.parameters_to_vector(network.parameters()).detach()
        return outcome
    finally:
        gs.destroy()


def tell(processes, way, iteration, iterations, reward):
    """A line now and then."""
    if processes.rank == 0 and ((iteration + 1) % 5 == 0 or iteration + 1 == iterations):
        print(f"  {way}  iteration {iteration + 1:3}/{iterations}: mean reward {reward:.4f}", flush=True)


def compare(copying, sharing, processes):
    """Whether both trainings came to the same bits, and all processes to the same weights; says so."""
    same = copying.weights.equal(sharing.weights) and all(
        a.equal(b) for a, b in zip(copying.all_rewards, sharing.all_rewards)
    )
    same = processes.all_true(same, sharing.weights.device)
    together = processes.all_true(processes.agree(sharing.weights), sharing.weights.device)
    if processes.rank == 0:
        first, last = sharing.rewards[0], sharing.rewards[-1]
        slow, fast = median(copying.seconds), median(sharing.seconds)
        print(f"mean reward of a step: {first:.4f} before, {last:.4f} at the end (1 is on target)")
        print(f"a step while playing: {1e6 * slow:.0f} us copying, {1e6 * fast:.0f} us sharing, {slow / fast:.2f} : 1")
        print(f"rewards and weights of the two trainings: {'the same bits' if same else 'NOT the same'}")
        if processes.count > 1:
            print(f"weights of the {processes.count} processes: {'the same bits' if together else 'NOT the same'}")
    return same and together


def main(arguments=None):
    """Trains both ways; returns the exit status: 0 if they agree."""
    options = parse(arguments)
    torch.set_num_threads(1)  # the networks are small, and waiting threads would take the cores from Taichi
    processes = Processes(options.backend)
    try:
        if processes.rank == 0:
            print(f"{processes.count} processes with {options.environments} environments each; kernels compile first")
        outcomes = [train(way, options, processes) for way in WAYS]
        return 0 if compare(*outcomes, processes) else 1
    finally:
        processes.close()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\nreach: interrupted", file=sys.stderr)
        sys.exit(130)
