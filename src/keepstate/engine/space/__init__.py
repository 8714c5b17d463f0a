"""WHAT can change together? The handle on a store, its spaces, and transactions over all parts of a space.

The roof of the engine: it puts the rooms below together. API boundary: `Keepstate`, `Space`, `Transaction`
and `Projection` are public; `joint_work` is for the rooms above the engine.
"""
