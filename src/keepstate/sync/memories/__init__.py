"""Blocking twins of `keepstate.memories`."""
