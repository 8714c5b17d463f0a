"""Blocking twins of `keepstate.sessions`."""
