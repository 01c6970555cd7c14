"""Training: an evolution strategy that learns to hold the slab in the middle of the box.

Each generation tries pairs of opposite changes of the network's weights, plays an episode with
each, and moves the weights towards the better half of every pair.
"""

import time

import torch

from .network import Controller

STEPS = 300  # of an episode
PAIRS = 3  # of episodes in a generation
NOISE = 0.25
RATE = 0.9
TARGET = (0.5, 0.5)


class Clock:
    """Seconds spent in each part of a step, summed over ``steps`` steps."""

    def __init__(self):
        self.exchange = self.network = self.simulation = 0.0
        self.steps = 0

    def seconds(self):
        """Seconds of all parts."""
        return self.exchange + self.network + self.simulation

    def rate(self):
        """Steps per second."""
        return self.steps / self.seconds()


@torch.no_grad()
def play(link, controller, clock):
    """Play one episode, add its times to ``clock``; returns the mean squared distance to the target."""
    now = time.perf_counter
    loss, target = torch.zeros(()), torch.tensor(TARGET)
    link.scene.reset()
    for _ in range(STEPS):
        start = now()
        x, v = link.read()
        read = now()
        controls = controller(x, v)
        loss += (x.mean(dim=0) - target).square().sum()
        thought = now()
        link.write(controls)
        written = now()
        link.scene.step()
        end = now()
        clock.exchange += read - start + written - thought
        clock.network += thought - read
        clock.simulation += end - written
    clock.steps += STEPS
    return float(loss) / STEPS


class Training:
    """A controller that learns in the scene behind ``link``; all chance comes from ``seed``."""

    def __init__(self, link, seed):
        self.link = link
        torch.manual_seed(seed)
        self._controller = Controller()
        self.weights = torch.nn.utils.parameters_to_vector(self._controller.parameters()).detach()
        self._noise = torch.Generator().manual_seed(seed)
        self.losses = []  # a list for each generation: the loss of each episode
        self.clocks = []  # one for each generation

    def show(self):
        """Play an episode with the present weights; returns (loss, final positions as a NumPy array)."""
        loss = self._try(self.weights, Clock())
        return loss, self.link.scene.x.to_numpy()

    def generation(self):
        """Play ``PAIRS`` pairs of episodes and move the weights."""
        step, losses, clock = torch.zeros_like(self.weights), [], Clock()
        for _ in range(PAIRS):
            change = torch.randn(self.weights.shape, generator=self._noise)
            plus, minus = (self._try(self.weights + sign * NOISE * change, clock) for sign in (1.0, -1.0))
            step += change * (minus - plus) / (minus + plus)
            losses += [plus, minus]
        self.weights = self.weights + RATE / PAIRS * step
        self.losses.append(losses)
        self.clocks.append(clock)

    def _try(self, weights, clock):
        torch.nn.utils.vector_to_parameters(weights, self._controller.parameters())
        return play(self.link, self._controller, clock)
