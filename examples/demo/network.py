"""The controller: a torch network that looks at every particle and sets every jet."""

import torch

from .simulation import GRAVITY, JETS

FEATURES = 8
STRENGTH = 6.0 * GRAVITY  # the largest acceleration of a jet


class Controller(torch.nn.Module):
    """Features of each particle, their mean over all particles, and from it the jets.

    A mean does not care for the order or the number of the particles.
    """

    def __init__(self):
        super().__init__()
        self.features = torch.nn.Linear(4, FEATURES)
        self.jets = torch.nn.Linear(FEATURES, 2 * JETS)
        torch.nn.init.zeros_(self.jets.weight)
        torch.nn.init.zeros_(self.jets.bias)

    def forward(self, x, v):
        """Accelerations of shape (JETS, 2), from positions and velocities of shape (particles, 2)."""
        state = torch.cat((4.0 * (x - 0.5), v), dim=1)
        summary = torch.tanh(self.features(state)).mean(dim=0)
        return STRENGTH * torch.tanh(self.jets(summary)).view(JETS, 2)
