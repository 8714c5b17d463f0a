"""WHERE is it kept? Bytes in spaces, on one of five backends, with the same semantics on each.

Invariant: a backend stores bytes and does not interpret them. Backends do not import one another.

To add a backend, subclass `base.StoreBase`, give it a URL scheme in `urls`, and run the contract of
`keepstate.testing` on it. API boundary: `protocol` for callers, and `base` for authors of backends.
"""
