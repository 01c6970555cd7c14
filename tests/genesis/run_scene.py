"""Runs one scene and notes what every getter returns, before and after every setter.

The same file runs against the released Genesis and the patched one; the notes must be equal. A value is noted as its
type, shape, strides and a digest of its bytes, an exception as its type and first line.

    python run_scene.py go2 64 100 contacts notes.json
    python run_scene.py go2 64 20 falling notes.json    without contacts, whose kernels compile for minutes
"""

import hashlib
import json
import os
import sys
import warnings
from pathlib import Path

import genesis as gs
import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
import calls  # pylint: disable=wrong-import-position

ROBOTS = {
    "go2": lambda: gs.morphs.URDF(file="urdf/go2/urdf/go2.urdf", pos=(0, 0, 0.42)),
    "franka": lambda: gs.morphs.MJCF(file="xml/franka_emika_panda/panda.xml"),
}
LOOK_EVERY = 10


def note_of(value):
    """A value as JSON, so that two runs can be compared."""
    if isinstance(value, dict):
        return {key: note_of(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [note_of(item) for item in value]
    if isinstance(value, torch.Tensor):
        data = value.detach().cpu().contiguous()
        strides = [stride for stride, size in zip(value.stride(), value.shape) if size > 1]
        kind = [str(value.dtype), list(value.shape), strides, value.requires_grad, type(value).__name__]
        return [*kind, hashlib.sha256(data.numpy().tobytes()).hexdigest(), data.flatten()[:4].tolist()]
    if isinstance(value, np.ndarray):
        return [str(value.dtype), list(value.shape), hashlib.sha256(value.tobytes()).hexdigest()]
    return repr(value)


def require_sharing():
    """Whether state is shared has to be as GENESIS_SHARES says, lest the released Genesis be compared with itself."""
    try:
        from genesis.utils import zero_copy  # pylint: disable=import-outside-toplevel

        shares = zero_copy.is_active()
    except ImportError:
        shares = None
    wanted = os.environ.get("GENESIS_SHARES")
    assert str(shares) == wanted, f"got a Genesis that shares: {shares}, wanted {wanted}"


def attempt(method, *args, **kwargs):
    """What a call returns, or raises, as a note."""
    try:
        return note_of(method(*args, **kwargs))
    except Exception as error:  # pylint: disable=broad-except
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


class Run:
    """One scene, and its notes.

    Args:
        robot (str): A key of ROBOTS.
        n_envs (int): As given to `scene.build`.
        contacts (bool): Whether contacts are detected.
    """

    def __init__(self, robot, n_envs, contacts):
        gs.init(backend=gs.cpu, seed=3, logging_level="error")
        require_sharing()
        self.notes = {}
        self.scene = gs.Scene(
            show_viewer=False,
            sim_options=gs.options.SimOptions(dt=0.02),
            rigid_options=gs.options.RigidOptions(enable_collision=contacts),
        )
        self.scene.add_entity(gs.morphs.URDF(file="urdf/plane/plane.urdf", fixed=True))
        self.robot = self.scene.add_entity(ROBOTS[robot]())
        self.scene.build(n_envs=n_envs)
        self.solver = self.scene.rigid_solver
        self.owners = {"RigidEntity": self.robot, "RigidSolver": self.solver}
        self.values = calls.Values(n_envs)
        self.n_envs = n_envs

    def look(self, label, thorough=False):
        """Notes what the getters return, without arguments or with all forms of them."""
        for kind, owner in self.owners.items():
            for name, how in calls.GETTERS[kind].items():
                for call, args, kwargs in calls.getter_calls(how if thorough else "none"):
                    self.notes[f"{label}: {kind}.{name} {call}"] = attempt(getattr(owner, name), *args, **kwargs)

    def step(self, steps):
        """Steps with new targets each time, and looks now and then."""
        n_dofs = self.robot.n_dofs
        some = [n_dofs - 1, 0, 2]
        self.robot.set_dofs_kp(torch.full((n_dofs,), 20.0))
        self.robot.set_dofs_kv(torch.full((n_dofs,), 0.5))
        for step in range(steps):
            self.robot.control_dofs_position(self.values.batched(n_dofs))
            self.robot.control_dofs_velocity(self.values.batched(3), some)
            self.robot.control_dofs_force(self.values.batched(2), dofs_idx_local=[1, 3])
            self.scene.step()
            if step % LOOK_EVERY == 0:
                self.look(f"step {step}")

    def fields(self):
        """A digest of all state and parameters, read by Taichi itself."""
        total = hashlib.sha256()
        for holder in ("dofs_state", "dofs_info", "links_state", "links_info", "geoms_state", "geoms_info"):
            for name, field in sorted(vars(getattr(self.solver, holder)).items()):
                if hasattr(field, "to_numpy"):
                    total.update(name.encode() + field.to_numpy().tobytes())
        total.update(self.solver.qpos.to_numpy().tobytes())
        return total.hexdigest()

    def set_all(self):
        """Calls every setter in every form, and notes what became of the fields."""
        for kind, owner in self.owners.items():
            specs = calls.setter_calls(
                owner.n_dofs,
                owner.n_qs,
                owner.n_links,
                owner.n_geoms,
            )[kind]
            for name, spec in specs.items():
                for form, args, kwargs in self.setter_forms(spec):
                    done = attempt(getattr(owner, name), *args, **kwargs)
                    self.notes[f"set: {kind}.{name} {form}"] = [done, self.fields()]

    def setter_forms(self, spec):
        """Yields (name, args, kwargs) of the calls that a setter is tried with."""
        made = calls.setter_arguments(self.values, spec)
        yield "all", made, {}
        if not isinstance(spec[0], tuple):
            return
        yield "arrays", [value.numpy() for value in made], {}
        yield "doubles", [value.double() for value in made], {}
        yield "gradients", [value.clone().requires_grad_() for value in made], {}
        yield "one too many", calls.setter_arguments(self.values, spec, count=99), {}
        batched = spec[0][1]
        items = [] if spec[0][0] in ((3,), (4,)) else [[1, 0], torch.tensor([0, 2], dtype=torch.int32)]
        for number, item in enumerate(items):
            some = calls.setter_arguments(self.values, spec, count=2)
            yield f"some {number}", [*some, item], {}
            yield f"some out of range {number}", [*some, [10**4, 0]], {}
        if batched and self.n_envs > 1:
            yield "environments", calls.setter_arguments(self.values, spec, n_envs=2), {"envs_idx": [1, 0]}


def main():
    """Runs the scene, and writes the notes."""
    robot, n_envs, steps, out = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[5])
    warnings.simplefilter("ignore")
    run = Run(robot, n_envs, contacts={"contacts": True, "falling": False}[sys.argv[4]])
    run.look("built")
    run.step(steps)
    run.look("stepped", thorough=True)
    run.set_all()
    run.scene.step()
    run.look("set")
    run.scene.reset()
    run.look("reset")
    out.write_text(json.dumps(run.notes))


if __name__ == "__main__":
    main()
