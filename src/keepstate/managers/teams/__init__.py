"""WHO works on which task? Teams of agents with a shared list of tasks."""
