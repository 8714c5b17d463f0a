"""WHAT ELSE happens on the way? Stores around a store, with the same protocol.

Invariant: a wrapper does not change results, so it can be left out without changing a program's meaning.

To add one: take a `Store`, forward every method of the protocol, and run the contract suite on it.
"""
