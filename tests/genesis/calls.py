"""The getters and setters of the rigid solver, and the arguments that they are tried with.

Every public `get_*`, `set_*` and `control_*` has a row; `test_no_method_is_forgotten` compares the tables with the
classes. A row of a getter names how it is indexed, a row of a setter the values that it takes.
"""

import numpy as np
import torch

# Methods that are not called, with the reason.
LEFT_OUT = {
    "RigidEntity": {
        "get_joint": "looks up an object",
        "get_link": "looks up an object",
        "get_jacobian": "needs an entity made for it, and reads no field through torch",
    },
    "RigidSolver": {
        "get_state": "allocates a state object, and calls no getter",
        "set_state": "takes a state object of get_state",
        "set_drone_rpm": "no drone in the scene",
    },
}

# Getters: "both" takes (items, environments), "envs" environments only, "items" items only, "none" nothing.
_BOTH = """
    links_pos links_quat links_vel links_ang links_acc links_acc_ang links_inertial_mass links_invweight qpos
    dofs_control_force dofs_force dofs_velocity dofs_position dofs_kp dofs_kv dofs_force_range dofs_limit
    dofs_stiffness dofs_invweight dofs_armature dofs_damping
""".split()
GETTERS = {
    "RigidEntity": {
        **{f"get_{name}": "both" for name in _BOTH},
        **{f"get_{name}": "envs" for name in ("pos", "quat", "vel", "ang", "mass_mat", "links_net_contact_force")},
        **{f"get_{name}": "none" for name in ("verts", "AABB", "mass", "contacts")},
    },
    "RigidSolver": {
        **{f"get_{name}": "both" for name in _BOTH},
        **{
            f"get_{name}": "both"
            for name in (
                "links_root_COM links_mass_shift links_COM_shift geoms_friction_ratio geoms_pos mass_mat sol_params"
            ).split()
        },
        "get_geoms_friction": "items",
        "get_gravity": "envs",
        "get_weld_constraints": "none",
        "get_equality_constraints": "none",
    },
}


def index_forms():
    """Every way in which items or environments can be named, right and wrong."""
    return {
        "int": 1,
        "last": -1,
        "numpy int": np.int64(0),
        "slice": slice(0, 2),
        "tail": slice(1, None),
        "steps": slice(None, None, 2),
        "empty": slice(0, 0),
        "range": range(0, 2),
        "list": [0, 1],
        "tuple": (1, 0),
        "array": np.array([1, 0]),
        "tensor": torch.tensor([0, 1], dtype=torch.int32),
        "long": torch.tensor([1, 0, 1]),
        "single": torch.tensor(1, dtype=torch.int32),
        "mask": torch.tensor([True, False]),
        "too large": [10**4],
        "tensor too large": torch.tensor([10**4], dtype=torch.int32),
        "negative": [-1],
        "table": torch.zeros((2, 2), dtype=torch.int32),
    }


def getter_calls(kind):
    """Yields (name, args, kwargs) of the calls that a getter of this kind is tried with."""
    forms = index_forms()
    yield "default", (), {}
    if kind == "none":
        return
    yield "unsafe", (), {"unsafe": True}
    for name, form in forms.items():
        yield f"first {name}", (form,), {}
        if kind == "both":
            yield f"envs {name}", (None, form), {}
    if kind == "both":
        for first, second in (("tensor", "tensor"), ("list", "int"), ("slice", "slice"), ("int", "int")):
            yield f"{first} and {second}", (forms[first], forms[second]), {}
            yield f"{first} and {second}, by name", (forms[first],), {"envs_idx": forms[second]}
        yield "long and steps", (forms["long"], forms["steps"]), {}


class Values:
    """Makes arguments for setters, the same in each run.

    Args:
        n_envs (int): As given to `scene.build`.
    """

    def __init__(self, n_envs):
        self.n_envs = n_envs
        self.random = torch.Generator(device="cpu").manual_seed(7)

    def plain(self, *shape, low=0.1, high=0.9):
        """Without environments."""
        return torch.rand(*shape, generator=self.random, device="cpu") * (high - low) + low

    def batched(self, *shape, n_envs=None, **more):
        """One for each environment."""
        n_envs = self.n_envs if n_envs is None else n_envs
        return self.plain(*((n_envs,) if n_envs else ()), *shape, **more)


def setter_calls(n_dofs, n_qs, n_links, n_geoms):
    """Maps the name of each setter to its values without environments: (shape, batched, range) each."""
    dofs, links = (n_dofs,), (n_links,)
    control = {f"control_dofs_{kind}": [(dofs, True)] for kind in ("force", "velocity", "position")}
    of_dofs = {
        f"set_dofs_{name}": [(dofs, False)] for name in ("kp", "kv", "stiffness", "invweight", "armature", "damping")
    }
    shared = {
        **control,
        **of_dofs,
        "set_dofs_force_range": [(dofs, False), (dofs, False)],
        "set_dofs_velocity": [(dofs, True)],
        "set_dofs_position": [(dofs, True)],
        "set_qpos": [((n_qs,), True)],
        "set_links_inertial_mass": [(links, False)],
        "set_links_invweight": [((n_links, 2), False)],
    }
    return {
        "RigidEntity": {
            **shared,
            "set_pos": [((3,), True)],
            "set_quat": [((4,), True)],
            "set_friction_ratio": [(links, True)],
            "set_friction": [0.7],
            "set_mass": [3.0],
            "set_mass_shift": [(links, True)],
            "set_COM_shift": [((n_links, 3), True)],
        },
        "RigidSolver": {
            **shared,
            "set_dofs_limit": [(dofs, False), (dofs, False)],
            "set_links_pos": [((n_links, 3), True)],
            "set_links_quat": [((n_links, 4), True)],
            "set_base_links_pos": [((1, 3), True)],
            "set_base_links_quat": [((1, 4), True)],
            "set_links_mass_shift": [(links, True)],
            "set_links_COM_shift": [((n_links, 3), True)],
            "set_geoms_friction_ratio": [((n_geoms,), True)],
            "set_global_sol_params": [((7,), False)],
            "set_sol_params": [((n_geoms, 7), False)],
            "set_geom_friction": [0.6, 0],
            "set_geoms_friction": [((n_geoms,), False)],
            "set_gravity": [((3,), True)],
        },
    }


def setter_arguments(values, spec, count=None, n_envs=None):
    """The values of one call.

    Args:
        values (Values): Makes them.
        spec (list): From `setter_calls`.
        count (int, optional): How many items to set, in place of all.
        n_envs (int, optional): How many environments, in place of all.
    """
    made = []
    for entry in spec:
        if not isinstance(entry, tuple):
            made.append(entry)
            continue
        shape, batched = entry
        shape = (count, *shape[1:]) if count else shape
        made.append(values.batched(*shape, n_envs=n_envs) if batched else values.plain(*shape))
    return made
