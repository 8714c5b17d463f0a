"""WHAT does a store contain, at a terminal? The `keepstate` command.

Not an API boundary: the commands and their output are, and `docs/reference/commands.md` lists them. Programs
use the spaces of `keepstate.open` instead.

Invariant: results go to stdout and messages to stderr, and the exit code says how the command ended. Only
this folder reads the environment. Stored values are printed in builtin form, so no class of the application
is needed. To add a command, write an async function in the file of its subject and list it in `app.commands`.
"""
