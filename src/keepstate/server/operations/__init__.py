"""WHAT can a client do? The rows of the table of operations, by the part of a space that they concern.

Invariant: an operation is a few lines over the public calls of a space; whatever it needs and a space lacks
is a lack of the space.
"""
