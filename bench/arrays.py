"""One array of each kind, of one size, each made when it is first asked for.

They take no memory until somebody writes to them: the exchange does not depend on what is in them.
"""

from functools import cached_property

import numpy as np
import torch

import taichi as ti

from bench.measures import ITEM_SIZE
from bench.pages import give_back


class Arrays:
    """Arrays of elements of type f32.

    Args:
        size: Bytes.
        device: Torch's name of Taichi's device.
    """

    def __init__(self, size, device):
        self.count = size // ITEM_SIZE
        self.device = device

    @cached_property
    def nd(self):
        """Taichi's."""
        nd = ti.ndarray(ti.f32, self.count)
        return self._without_pages(nd)

    @cached_property
    def field(self):
        """A dense field, in a tree of its own."""
        field = ti.field(ti.f32, self.count)
        return self._without_pages(field)

    @cached_property
    def numpy(self):
        """NumPy's, always on the host."""
        return np.empty(self.count, np.float32)

    @cached_property
    def tensor(self):
        """Torch's."""
        return torch.empty(self.count, dtype=torch.float32, device=self.device)

    @cached_property
    def there(self):
        """Memory for a copy on the host."""
        return np.ones(self.count, np.float32)

    @cached_property
    def imported(self):
        """An ndarray on the memory of the tensor."""
        return ti.from_dlpack(self.tensor)

    def _without_pages(self, array):
        if self.device == "cpu":
            give_back(torch.from_dlpack(array))
        return array

    def fill(self):
        """Writes to all, so that a copy reads memory and not the one empty page that stands for what is unwritten."""
        self.nd.fill(1.0)
        self.field.fill(1.0)
        self.numpy.fill(1.0)
        self.tensor.fill_(1.0)
        return self
