"""The task: a Panda arm in many environments at once, each with a target that its hand should reach.

How the state gets from Genesis to torch is a matter of the two classes below; the task is the same.
"""

import genesis as gs
import torch

ARM = list(range(7))  # the degrees of freedom that move; the others are the gripper
HOME = (0.0, -0.3, 0.0, -2.2, 0.0, 2.0, 0.79, 0.04, 0.04)
# The targets, in metres, and how far a joint may turn in one step, in radians.
TARGET_LOW, TARGET_HIGH = (0.3, -0.3, 0.2), (0.6, 0.3, 0.6)
REACH = 0.05
EPISODE = 50
OBSERVATIONS = 9 + 9 + 3 + 3
ACTIONS = len(ARM)


class Reach:
    """The task on copied state: each getter makes a tensor, each control runs a kernel.

    Args:
        n_envs (int): Environments.
        seed (int): Of the targets.
    """

    def __init__(self, n_envs, seed):
        self.scene = gs.Scene(
            show_viewer=False,
            sim_options=gs.options.SimOptions(dt=0.02),
            rigid_options=gs.options.RigidOptions(enable_collision=False),
        )
        self.robot = self.scene.add_entity(gs.morphs.MJCF(file="xml/franka_emika_panda/panda.xml"))
        self.scene.build(n_envs=n_envs)
        self.hand = self.robot.get_link("hand").idx_local
        self._random = torch.Generator(gs.device).manual_seed(seed)
        self._home = torch.tensor(HOME).repeat(n_envs, 1)
        self._low, self._high = torch.tensor(TARGET_LOW), torch.tensor(TARGET_HIGH)
        self._joint_limits = [limit[ARM] for limit in self.robot.get_dofs_limit()]
        self._joints = self._home[:, ARM]
        self.targets = torch.zeros(n_envs, 3)

    def reset(self):
        """Moves all arms home and draws new targets; returns the first observation."""
        self.robot.set_qpos(self._home)
        self._joints = self._home[:, ARM]
        self.targets = self._low + (self._high - self._low) * torch.rand(
            self.targets.shape, generator=self._random, device=gs.device
        )
        return self.observe()

    def step(self, actions):
        """One step of the simulation; returns observations (n_envs, OBSERVATIONS) and rewards (n_envs,)."""
        self._joints = (self._joints + REACH * actions.clamp(-1, 1)).clamp(*self._joint_limits)
        self.robot.control_dofs_position(self._joints, ARM)
        self.scene.step()
        observation = self.observe()
        distance = (self.targets - self.read()[2]).norm(dim=1)
        return observation, torch.exp(-4 * distance)

    def observe(self):
        """All that the policy sees, in a tensor of its own."""
        return torch.cat((*self.read(), self.targets), dim=1)

    def read(self):
        """Positions and velocities of the joints, and the position of the hand."""
        robot = self.robot
        return robot.get_dofs_position(), robot.get_dofs_velocity(), robot.get_links_pos(self.hand)[:, 0]


class SharedReach(Reach):
    """The task on live views, taken once: they show the state after each step without a call."""

    def __init__(self, n_envs, seed):
        super().__init__(n_envs, seed)
        robot = self.robot
        self._views = (
            robot.get_dofs_position(copy=False),
            robot.get_dofs_velocity(copy=False),
            robot.get_links_pos(self.hand, copy=False)[:, 0],
        )

    def read(self):
        return self._views
