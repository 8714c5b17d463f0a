"""WHAT is an agent, and how does it go on after a crash? Records of agents, checkpoints and recovery."""
