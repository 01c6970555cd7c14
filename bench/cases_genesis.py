"""The cases of Genesis: a Go2 that stands on a plane, as released ("stock"), patched, or patched and switched off."""

import hashlib
import importlib.metadata
import os

import genesis as gs
import torch
from taichi._lib.core import taichi_python as core

from bench import genesis_measures as measures
from bench.clocks import clock_of
from bench.sampling import Case

HIDDEN = 64
# The legs, in the order of the joints, and how they stand.
STANCE = (0.0, 0.0, 0.0, 0.0, 0.8, 0.8, 1.0, 1.0, -1.5, -1.5, -1.5, -1.5)
LEGS = list(range(6, 18))
SWING = 0.05  # how far the policy moves a joint, in radians
SETTLE_STEPS = 50


def build(n_envs):
    """A scene with robots that have come to rest; returns (scene, robot)."""
    scene = gs.Scene(show_viewer=False, sim_options=gs.options.SimOptions(dt=0.02))
    scene.add_entity(gs.morphs.URDF(file="urdf/plane/plane.urdf", fixed=True))
    robot = scene.add_entity(gs.morphs.URDF(file="urdf/go2/urdf/go2.urdf", pos=(0.0, 0.0, 0.42)))
    scene.build(n_envs=n_envs)
    robot.set_dofs_kp(torch.full((len(LEGS),), 20.0), LEGS)
    robot.set_dofs_kv(torch.full((len(LEGS),), 0.5), LEGS)
    stance = torch.tensor(STANCE).repeat(n_envs, 1)
    robot.set_dofs_position(stance, LEGS)
    for _ in range(SETTLE_STEPS):
        robot.control_dofs_position(stance, LEGS)
        scene.step()
    return scene, robot


class Loop:
    """Observe, ask the policy, act, step: what a program does that was written for the released Genesis."""

    def __init__(self, scene, robot):
        self.scene, self.robot = scene, robot
        self._stance = torch.tensor(STANCE)
        self._policy = policy(sum(part.flatten(1).shape[1] for part in Loop.read(self)))

    def observe(self):
        """Seven observations, as one tensor."""
        return torch.cat([part.flatten(1) for part in self.read()], 1)

    def read(self):
        """The seven, one call each."""
        robot = self.robot
        return (
            robot.get_pos(),
            robot.get_quat(),
            robot.get_vel(),
            robot.get_ang(),
            robot.get_dofs_position(),
            robot.get_dofs_velocity(),
            robot.get_links_net_contact_force(),
        )

    def step(self):
        """One step of the loop."""
        with torch.no_grad():
            actions = self._policy(self.observe())
        self.robot.control_dofs_position(self._stance + SWING * actions, LEGS)
        self.scene.step()


class LoopOnViews(Loop):
    """The same with live views, taken once. `get_vel` has none: its values are computed."""

    def __init__(self, scene, robot):
        super().__init__(scene, robot)
        self._before = robot.get_pos(copy=False), robot.get_quat(copy=False)
        self._after = (
            robot.get_ang(copy=False),
            robot.get_dofs_position(copy=False),
            robot.get_dofs_velocity(copy=False),
            robot.get_links_net_contact_force(copy=False),
        )

    def read(self):
        return (*self._before, self.robot.get_vel(), *self._after)


def policy(inputs):
    """A network with fixed random weights."""
    torch.manual_seed(1)
    hidden, output = torch.nn.Linear(inputs, HIDDEN), torch.nn.Linear(HIDDEN, len(LEGS))
    return torch.nn.Sequential(hidden, torch.nn.Tanh(), output, torch.nn.Tanh()).requires_grad_(False)


def core_digest():
    """Of Taichi's compiled core. Kernels are cached under its version, which does not tell two wheels apart."""
    with open(core.__file__, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()[:12]


def make_calls(calls, clock):
    """Cases from calls: a dict from side to (function, args, kwargs)."""
    return {
        side: Case("call(*args, **kwargs)", clock, call=call, args=args, kwargs=kwargs)
        for side, (call, args, kwargs) in calls.items()
    }


def getter_calls(robot, views):
    """Yields (measure, calls) for each getter."""
    for name in measures.GETTERS:
        getter, has_view = getattr(robot, name), views and name not in measures.COMPUTED
        yield name, {
            measures.CALL: (getter, (), {}),
            **({measures.VIEW: (getter, (), {"copy": False})} if has_view else {}),
        }
    yield measures.SOME_OF_A_GETTER, {measures.CALL: (robot.get_dofs_position, (LEGS,), {})}
    yield measures.CONTACTS, {measures.CALL: (robot.get_contacts, (), {})}


def other_calls(scene, robot, n_envs, views):
    """Yields (measure, calls) for what a loop does, and for the loop."""
    targets = torch.tensor(STANCE).repeat(n_envs, 1)
    yield measures.CONTROL, {measures.CALL: (robot.control_dofs_position, (targets, LEGS), {})}
    loops = {measures.CALL: Loop(scene, robot), **({measures.VIEW: LoopOnViews(scene, robot)} if views else {})}
    check_same([loop.observe() for loop in loops.values()])
    yield measures.SEVEN, {side: (loop.read, (), {}) for side, loop in loops.items()}
    yield measures.RL, {side: (loop.step, (), {}) for side, loop in loops.items()}


def check_same(observations):
    """Raises unless all observations have the same bits."""
    if not all(observations[0].equal(other) for other in observations):
        raise AssertionError("snapshots and views differ, wanted the same bits; run: make test-genesis")


def prepare(cases, arch):
    """Adds all cases to `cases`; returns what the reader should know of the environment."""
    os.environ["GS_ENABLE_ZEROCOPY"] = "0" if cases.environment == measures.OFF else "1"
    os.environ["TI_OFFLINE_CACHE_FILE_PATH"] = os.path.join(os.environ["TI_OFFLINE_CACHE_FILE_PATH"], core_digest())
    torch.set_num_threads(1)
    gs.init(backend=getattr(gs, arch), seed=1, logging_level="error")
    (n_envs,) = cases.plan.environments
    scene, robot = build(n_envs)
    views = cases.environment == measures.PATCHED
    for found in (getter_calls(robot, views), other_calls(scene, robot, n_envs, views)):
        for measure, calls in found:
            cases.add(measure, n_envs, lambda calls=calls: make_calls(calls, clock_of(arch)))
    return {"versions": {name: importlib.metadata.version(name) for name in ("genesis-world", "taichi", "torch")}}
