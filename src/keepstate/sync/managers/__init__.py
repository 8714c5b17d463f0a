"""HOW are managers used without `await`? The blocking twin of each, by the same name.

They are made by the same arguments. Invariant: as for all twins, see `keepstate.sync`.

To add one: a row in `tools/twins.py`, and its name in `keepstate.sync`.
"""
