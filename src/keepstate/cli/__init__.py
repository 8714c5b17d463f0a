"""WHAT stands in a store, at a terminal? The `keepstate` command.

Invariant: results go to stdout, everything said about them to stderr; the exit code says how it ended. It is
the only reader of the environment. Stored values are shown in builtin form: no class of the application is
needed.

To add a command: write an async function in the file of its subject, and name it in `commands`.
"""
