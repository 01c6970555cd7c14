"""A loop of reinforcement learning: Taichi moves pendulums, a torch network looks at them and pushes.

One step is: the network reads what each pendulum shows, its actions go back, the simulation takes a step.
"""

import torch

import taichi as ti

from bench.measures import RL_ANEW, RL_COPYING, RL_SHARING
from bench.sampling import Case

GRAVITY, LENGTH, STRONGEST, DT = 10.0, 1.0, 2.0, 0.05
HIDDEN = 64
CHECKED_STEPS = 100


@ti.data_oriented
class Pendulums:
    """Pendulums on motors, side by side in fields."""

    def __init__(self, count):
        self.angle = ti.field(ti.f32, count)
        self.speed = ti.field(ti.f32, count)
        self.action = ti.field(ti.f32, count)
        self.observation = ti.Vector.field(3, ti.f32, count)
        self.reset()

    @ti.kernel
    def reset(self):
        """Gives each pendulum an angle of its own."""
        for i in self.angle:
            self.angle[i] = 0.1 + 0.37 * i
            self.speed[i] = 0.0
            self.observation[i] = ti.Vector([ti.cos(self.angle[i]), ti.sin(self.angle[i]), 0.0])

    @ti.kernel
    def step(self):
        """Semi-implicit Euler under the present actions."""
        for i in self.angle:
            push = ti.math.clamp(self.action[i], -STRONGEST, STRONGEST)
            self.speed[i] += DT * (1.5 * GRAVITY / LENGTH * ti.sin(self.angle[i]) + 3.0 / LENGTH**2 * push)
            self.angle[i] += DT * self.speed[i]
            self.observation[i] = ti.Vector([ti.cos(self.angle[i]), ti.sin(self.angle[i]), self.speed[i]])


def policy(device):
    """A network with fixed random weights."""
    generator = torch.Generator().manual_seed(1)
    network = torch.nn.Sequential(torch.nn.Linear(3, HIDDEN), torch.nn.Tanh(), torch.nn.Linear(HIDDEN, 1))
    with torch.no_grad():
        for weights in network.parameters():
            weights.copy_(torch.randn(weights.shape, generator=generator) / weights.shape[-1] ** 0.5)
    return network.requires_grad_(False).to(device)


class Copying:
    """Every array is copied at every step, as with Taichi 1.7.4."""

    def __init__(self, count, device):
        self.simulation = Pendulums(count)
        self.policy = policy(device)
        self.device = device

    def observe(self):
        """What the network sees, of shape (count, 3)."""
        return self.simulation.observation.to_torch(self.device)

    def act(self, actions):
        """Hands actions of shape (count,) to the simulation."""
        self.simulation.action.from_torch(actions)

    def step(self):
        """One step of the loop."""
        self.act(self.policy(self.observe()).squeeze(1))
        self.simulation.step()


class SharingAnew(Copying):
    """The arrays are shared, through an exchange at every step."""

    def observe(self):
        return torch.from_dlpack(self.simulation.observation)

    def act(self, actions):
        torch.from_dlpack(self.simulation.action).copy_(actions)


class Sharing(Copying):
    """The arrays were shared once, before the first step."""

    def __init__(self, count, device):
        super().__init__(count, device)
        self._observation = torch.from_dlpack(self.simulation.observation)
        self._action = torch.from_dlpack(self.simulation.action)

    def observe(self):
        return self._observation

    def act(self, actions):
        self._action.copy_(actions)


LOOPS = {RL_COPYING: Copying, RL_SHARING: Sharing, RL_ANEW: SharingAnew}


def check_same(loops):
    """Runs all loops from the same start; raises unless each step gives the same bits everywhere."""
    for step in range(CHECKED_STEPS):
        seen = {}
        for name, loop in loops.items():
            loop.step()
            seen[name] = loop.simulation.observation.to_torch(), loop.simulation.action.to_torch()
        first = seen[RL_COPYING]
        for name, values in seen.items():
            if not all(torch.equal(got.view(torch.int32), want.view(torch.int32)) for got, want in zip(values, first)):
                raise AssertionError(f"'{name}' and '{RL_COPYING}' differ at step {step}, wanted the same bits")


def cases(count, device, clock):
    """One case for each way of exchange, all with the same results."""
    loops = {name: loop(count, device) for name, loop in LOOPS.items()}
    check_same(loops)
    return {name: Case("step()", clock, step=loop.step) for name, loop in loops.items()}
