"""What `make bench-genesis` measures. No library is imported here.

Each measure is taken in two environments: the released Genesis, or the patched one with sharing switched off, and the
patched one. Sizes are numbers of environments in the scene.
"""

from bench.measures import Plan

# Environments. OFF stands in for STOCK on a machine that has the patched Genesis only.
ENVIRONMENTS = STOCK, OFF, PATCHED = "stock", "off", "patched"

# What the program calls: as it was written for the released Genesis, or for live views.
CALL, VIEW = "call", "view"
SIDES = {CALL: "snapshots", VIEW: "live views"}

# Getters without arguments. The computed ones have no view.
COMPUTED = ("get_vel", "get_links_vel", "get_links_acc", "get_dofs_control_force")
GETTERS = (
    "get_dofs_position",
    "get_dofs_velocity",
    "get_dofs_force",
    "get_dofs_kp",
    "get_dofs_kv",
    "get_dofs_force_range",
    "get_dofs_limit",
    "get_dofs_stiffness",
    "get_dofs_invweight",
    "get_dofs_armature",
    "get_dofs_damping",
    "get_qpos",
    "get_pos",
    "get_quat",
    "get_ang",
    "get_links_pos",
    "get_links_quat",
    "get_links_ang",
    "get_links_acc_ang",
    "get_links_inertial_mass",
    "get_links_invweight",
    "get_links_net_contact_force",
    "get_mass_mat",
    *COMPUTED,
)
SOME_OF_A_GETTER = "get_dofs_position(legs)"
CONTACTS = "get_contacts"
LOOP = SEVEN, CONTROL, RL = "seven observations", "control_dofs_position(targets, legs)", "RL loop"

# On a GPU the kernels of one scene compile for a minute or two, twice; the run must end within five.
CPU_COUNTS, CUDA_COUNTS = (1, 64, 1024, 4096), (4096,)
PLANS = {
    "cpu": Plan((), (), CPU_COUNTS, 0.01, 30, 1, 240),
    "cuda": Plan((), (), CUDA_COUNTS, 0.005, 30, 1, 30),
}

# What is wanted: (measure, side, environments) to (microseconds at most, ratio to the released Genesis at most).
WANTED = {
    ("get_dofs_position", VIEW, 64): (5.0, None),
    ("get_dofs_position", CALL, 64): (10.0, None),
    (SEVEN, CALL, 64): (None, 1 / 3),
    (RL, CALL, 1): (None, 0.75),
    (RL, CALL, 64): (None, 0.82),
}
