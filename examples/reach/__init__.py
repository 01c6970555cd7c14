"""PPO on a Genesis robot: a Panda arm learns to reach for targets, with copied and with shared state."""
