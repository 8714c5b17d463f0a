"""HOW is typed state used without `await`? The blocking twin of each class that waits, by the same name.

Invariant: as for `keepstate.sync`; tools, hooks and changes are plain functions here.

To add one: name the class in `tools/generate_sync.py`, run that, and name the twin in `keepstate.sync`.
"""
