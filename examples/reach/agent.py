"""Proximal policy optimisation (Schulman et al. 2017), with generalised advantage estimation."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.distributions import Normal

from .scene import ACTIONS, EPISODE, OBSERVATIONS

HIDDEN = 64
DISCOUNT, TRACE = 0.97, 0.95
CLIP = 0.2
EPOCHS, MINIBATCHES = 5, 4
RATE = 1e-3
MAX_GRADIENT = 1.0


def _layers(outputs):
    return nn.Sequential(
        nn.Linear(OBSERVATIONS, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, outputs)
    )


class ActorCritic(nn.Module):
    """A policy with a Gaussian for each action, and an estimate of what it will earn."""

    def __init__(self):
        super().__init__()
        self.actor, self.critic = _layers(ACTIONS), _layers(1)
        self.log_deviation = nn.Parameter(torch.full((ACTIONS,), -0.5))

    def forward(self, observations):
        """The distribution's mean and deviation, and the value."""
        return self.actor(observations), self.log_deviation.exp(), self.critic(observations).squeeze(-1)


@dataclass
class Rollout:
    """One episode in all environments; each tensor is (EPISODE, n_envs, ...)."""

    observations: torch.Tensor
    actions: torch.Tensor
    log_probabilities: torch.Tensor
    values: torch.Tensor
    rewards: torch.Tensor
    last_value: torch.Tensor

    def advantages(self):
        """How much better each action was than expected. An episode ends by the clock, so its last value counts."""
        advantages, following = torch.zeros_like(self.rewards), torch.zeros_like(self.last_value)
        next_value = self.last_value
        for step in reversed(range(EPISODE)):
            error = self.rewards[step] + DISCOUNT * next_value - self.values[step]
            following = error + DISCOUNT * TRACE * following
            advantages[step], next_value = following, self.values[step]
        return advantages


@torch.no_grad()
def play(task, network, random):
    """Plays one episode; returns a Rollout."""
    columns = {name: [] for name in ("observations", "actions", "log_probabilities", "values", "rewards")}
    observation = task.reset()
    for _ in range(EPISODE):
        mean, deviation, value = network(observation)
        action = mean + deviation * torch.randn(mean.shape, generator=random, device=mean.device)
        row = observation, action, Normal(mean, deviation).log_prob(action).sum(1), value
        observation, reward = task.step(action)
        for column, entry in zip(columns.values(), (*row, reward)):
            column.append(entry)
    _, _, last_value = network(observation)
    return Rollout(**{name: torch.stack(column) for name, column in columns.items()}, last_value=last_value)


def improve(network, optimiser, rollout, random):
    """Some epochs of gradient steps on the clipped objective."""
    advantages = rollout.advantages()
    data = [rollout.observations, rollout.actions, rollout.log_probabilities, advantages, advantages + rollout.values]
    data = [entry.flatten(0, 1) for entry in data]
    for _ in range(EPOCHS):
        order = torch.randperm(len(data[0]), generator=random, device=data[0].device)
        for chosen in order.chunk(MINIBATCHES):
            loss = _loss(network, *(entry[chosen] for entry in data))
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), MAX_GRADIENT)
            optimiser.step()


def _loss(network, observations, actions, log_probabilities, advantages, returns):
    mean, deviation, values = network(observations)
    distribution = Normal(mean, deviation)
    ratio = (distribution.log_prob(actions).sum(1) - log_probabilities).exp()
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    gain = torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages).mean()
    return (values - returns).square().mean() - gain
