"""HOW far is a workflow? Steps, their states and checkpoints."""
