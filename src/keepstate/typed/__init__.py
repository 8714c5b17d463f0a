"""WHICH state does an agent's code declare? Typed keys, their scopes, and how parallel updates merge.

Invariant: what changes a state is a batch of updates, applied to the newest values in one conditional batch
of the store, all or none; nothing computes a value outside and writes it back.

To add one: a ready-made key in `ready`; a kind of value in `forms`; what a thread keeps beside in `records`,
and where it stands in `layout`.
"""
