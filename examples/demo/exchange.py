"""The two ways in which the network and the simulation meet: by copies, or in shared memory.

Both have the same interface: ``read()`` gives the particles' positions and velocities as torch
tensors, ``write(tensor)`` makes a tensor the controls of the next step.
"""

import taichi as ti
import torch

from .simulation import JETS, Scene, vec2


class Copies:
    """What a user of Taichi does today: every array is copied, every step."""

    name = "with copies"

    def __init__(self, columns):
        self.scene = Scene(columns, ti.Vector.ndarray(2, ti.f32, JETS))

    def read(self):
        """Positions and velocities, each of shape (particles, 2), copied out of Taichi."""
        return torch.from_numpy(self.scene.x.to_numpy()), torch.from_numpy(self.scene.v.to_numpy())

    def write(self, controls):
        """Copy controls of shape (JETS, 2) into Taichi."""
        self.scene.controls.from_numpy(controls.numpy())

    def bytes_per_step(self):
        """How much one ``read`` and one ``write`` copy between the two libraries."""
        return 4 * 2 * (2 * self.scene.particles + JETS)


class Sharing:
    """Each array is shared once; from then on both libraries use the same memory.

    The state is Taichi's and torch sees it; the controls are torch's and Taichi sees them.
    """

    name = "sharing memory"

    def __init__(self, columns):
        self._controls = torch.zeros(JETS, 2)
        self.scene = Scene(columns, ti.from_dlpack(self._controls, dtype=vec2))
        self._state = torch.from_dlpack(self.scene.x), torch.from_dlpack(self.scene.v)
        self.first_addresses = self.addresses()

    def read(self):
        """Positions and velocities, each of shape (particles, 2): Taichi's own memory."""
        return self._state

    def write(self, controls):
        """Write controls of shape (JETS, 2) where Taichi's next step reads them."""
        self._controls.copy_(controls)

    def bytes_per_step(self):
        """What ``write`` puts in place: the controls, once."""
        return 4 * 2 * JETS

    def addresses(self):
        """Rows of (array, address in Taichi, address in torch)."""
        pairs = ("x", self.scene.x, self._state[0]), ("v", self.scene.v, self._state[1])
        pairs += (("controls", self.scene.controls, self._controls),)
        return [(name, nd.__array_interface__["data"][0], t.data_ptr()) for name, nd, t in pairs]
