"""A Taichi kernel as a differentiable function of PyTorch, without a copy.

    python examples/autograd.py [--throws N] [--steps N] [--generations N] [--seed N]

Balls fly through the air with drag; Taichi computes their flight and, with the gradients of the same kernels, how
the place where they end depends on how they were thrown. A network learns to hit targets through that.

Forward and backward, Taichi works in PyTorch's own tensors: `ti.from_dlpack` lends them. The same function with
copies, as Taichi's users write it today, must give the same gradients, bit for bit.
"""

import argparse
import os
import sys
import time

os.environ.setdefault("ENABLE_TAICHI_HEADER_PRINT", "0")

# pylint: disable=wrong-import-position
import taichi as ti
import torch
from torch.autograd.function import once_differentiable

TIME_STEP = 0.01  # s
GRAVITY = -9.81  # m/s^2
DRAG = 0.1  # 1/m
# Keeps the derivative of the speed finite for a ball at rest. m^2/s^2
SPEED_SQUARED_MIN = 1e-12


# --- the simulation: every state is written once, so that Taichi can differentiate it ---------------


@ti.kernel
def start(throw: ti.types.ndarray(), position: ti.types.ndarray(), velocity: ti.types.ndarray()):
    for i in throw:
        position[0, i] = ti.zero(throw[i])
        velocity[0, i] = throw[i]


@ti.kernel
def advance(step: ti.i32, position: ti.types.ndarray(), velocity: ti.types.ndarray()):
    for i in range(position.shape[1]):
        v = velocity[step, i]
        speed = ti.sqrt(v.dot(v) + SPEED_SQUARED_MIN)
        v += TIME_STEP * (ti.Vector([0.0, GRAVITY]) - DRAG * speed * v)
        velocity[step + 1, i] = v
        position[step + 1, i] = position[step, i] + TIME_STEP * v


@ti.kernel
def finish(position: ti.types.ndarray(), end: ti.types.ndarray()):
    for i in end:
        # Added to, not assigned: Taichi clears the gradient of what a kernel assigns to, and this one, `end.grad`, is
        # lent by PyTorch, which forbids to write the gradients that it hands to `backward`.
        end[i] += position[position.shape[0] - 1, i]


def fly(throw, position, velocity, end):
    """Runs the kernels. Ndarrays of 2-vectors: throw and end (n), position and velocity (steps + 1, n); end as zeros."""
    start(throw, position, velocity)
    for step in range(position.shape[0] - 1):
        advance(step, position, velocity)
    finish(position, end)


def fly_back(throw, position, velocity, end):
    """Runs them backwards, from `end.grad` to `throw.grad`. The other gradients must start as zeros."""
    finish.grad(position, end)
    for step in reversed(range(position.shape[0] - 1)):
        advance.grad(step, position, velocity)
    start.grad(throw, position, velocity)


def vec2(tensor):
    """The type of 2-vectors with the element type of a tensor."""
    return ti.types.vector(2, {torch.float32: ti.f32, torch.float64: ti.f64}[tensor.dtype])


# --- two bridges between it and PyTorch -------------------------------------------------------------


class SharedFlight(torch.autograd.Function):
    """Where balls end, (n, 2), from how they are thrown, (n, 2): no value is copied.

    Taichi works on the legacy default stream, which is PyTorch's too unless a `torch.cuda.stream` is entered.
    """

    @staticmethod
    def forward(ctx, throw, steps):  # pylint: disable=W0221
        def lend(tensor):
            return ti.from_dlpack(tensor.detach(), dtype=vec2(throw))

        states = throw.new_empty((2, steps + 1, *throw.shape))
        end = torch.zeros_like(throw)
        ctx.arrays = [lend(throw), lend(states[0]), lend(states[1]), lend(end)]
        ctx.save_for_backward(throw)  # so that PyTorch notices when it is written in between
        fly(*ctx.arrays)
        return end

    @staticmethod
    @once_differentiable
    def backward(ctx, end_grad):  # pylint: disable=W0221
        (throw,) = ctx.saved_tensors
        position = ctx.arrays[1]
        throw_grad = torch.zeros_like(throw)
        states_grad = throw.new_zeros((2, *position.shape, 2))
        # A gradient that PyTorch broadcast has no memory of its own for each element.
        gradients = [throw_grad, states_grad[0], states_grad[1], end_grad.contiguous()]
        for array, gradient in zip(ctx.arrays, gradients):
            array.grad = ti.from_dlpack(gradient, dtype=vec2(throw))
        fly_back(*ctx.arrays)
        return throw_grad, None


class CopiedFlight(torch.autograd.Function):
    """The same with Taichi's own ndarrays, and a copy at each crossing."""

    @staticmethod
    def forward(ctx, throw, steps):  # pylint: disable=W0221
        dtype, count = vec2(throw), len(throw)
        shapes = [(count,), (steps + 1, count), (steps + 1, count), (count,)]
        ctx.arrays = [ti.ndarray(dtype, shape, needs_grad=True) for shape in shapes]
        ctx.arrays[0].from_numpy(throw.detach().cpu().numpy())
        fly(*ctx.arrays)
        return torch.from_numpy(ctx.arrays[3].to_numpy()).to(throw.device)

    @staticmethod
    @once_differentiable
    def backward(ctx, end_grad):  # pylint: disable=W0221
        throw, position, velocity, end = ctx.arrays
        for array in (throw, position, velocity):
            array.grad.fill(0)  # `backward` may be called again
        end.grad.from_numpy(end_grad.contiguous().cpu().numpy())
        fly_back(*ctx.arrays)
        return torch.from_numpy(throw.grad.to_numpy()).to(end_grad.device), None


# --- learning to throw ------------------------------------------------------------------------------


def network(seed):
    """From a target, 2 numbers, to a throw, 2 numbers."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2))


def learn(flight, options):
    """Trains a network through one of the bridges.

    Returns:
        Tuple[List[float], List[torch.Tensor], float]: The mean squared miss of each generation in m^2, the last
            gradients of the network, and the seconds that it took.
    """
    thrower = network(options.seed)
    optimizer = torch.optim.Adam(thrower.parameters(), lr=0.02)
    targets = torch.rand(options.throws, 2) * torch.tensor([4.0, 2.0]) + torch.tensor([1.0, -1.0])
    flight.apply(thrower(targets), options.steps).sum().backward()  # compiles the kernels
    misses, began = [], time.perf_counter()
    for _ in range(options.generations):
        optimizer.zero_grad()
        end = flight.apply(thrower(targets), options.steps)
        miss = (end - targets).square().sum(1).mean()
        miss.backward()
        optimizer.step()
        misses.append(miss.item())
    return misses, [parameter.grad for parameter in thrower.parameters()], time.perf_counter() - began


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--throws", type=int, default=4096, help="balls in a generation (%(default)s)")
    parser.add_argument("--steps", type=int, default=50, help="time steps of a flight (%(default)s)")
    parser.add_argument("--generations", type=int, default=100, help="updates of the network (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the network and the targets (%(default)s)")
    options = parser.parse_args(arguments)
    for name in ("throws", "steps", "generations"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} is {getattr(options, name)}, wanted at least 1")
    return options


def main(arguments=None):
    options = parse(arguments)
    if not hasattr(ti, "from_dlpack"):
        sys.exit(
            f"got Taichi {'.'.join(map(str, ti.__version__))}, wanted one with DLPack; make it with: make wheel-fast"
        )
    ti.init(arch=ti.cpu, log_level=ti.ERROR)
    copied, copied_gradients, copied_seconds = learn(CopiedFlight, options)
    shared, shared_gradients, shared_seconds = learn(SharedFlight, options)

    print(f"mean squared miss: {shared[0]:.4f} m^2 before, {shared[-1]:.4f} m^2 after {len(shared)} generations")
    print(f"time, copying / sharing: {copied_seconds / shared_seconds:.2f}")
    # Bit for bit: NaN would be no proof of anything.
    equal = copied == shared and all(torch.equal(a, b) for a, b in zip(copied_gradients, shared_gradients))
    print("gradients of copying and sharing: " + ("the same, bit for bit" if equal else "DIFFERENT"))
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
