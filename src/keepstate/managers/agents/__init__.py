"""WHAT is an agent, and how does it continue after a crash? Records of agents, checkpoints and recovery."""
