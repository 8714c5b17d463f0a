"""HOW far has a workflow come? Steps, their states and checkpoints."""
