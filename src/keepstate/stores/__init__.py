"""WHERE is it kept? Bytes in spaces, on one of five backends, with the same semantics on each.

Invariant: a backend keeps bytes and knows nothing of what they mean. Backends do not import one another.

To add one: subclass `base.StoreBase`, give it a URL scheme in `urls`, and prove it with `keepstate.testing`'s
contract.
"""
