"""WHAT ELSE happens on the way? Stores around a store, with the same protocol.

Invariant: a wrapper does not change results, so it can be left out without changing a program's meaning.

`encrypted` seals values, and `sealing` does it for one value. `tiered` reads from the nearest of three tiers,
which are a store, `hot_tier` in memory and `warm_tier` in a shared cache. `measured` reports every operation.

To add one: take a `Store`, forward every method of the protocol, and run the contract suite on it. Not an API
boundary: `EncryptedStore`, `KeyRing` and `TieredStore` are names of `keepstate`.
"""
