"""WHAT did a tool do? Executions, their effects, results and retries."""
