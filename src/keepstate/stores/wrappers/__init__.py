"""WHAT ELSE happens on the way? Stores around a store, with the same protocol.

Invariant: a wrapper changes no answer; it can be left out without changing what a program means.

To add one: take a `Store`, forward every method of the protocol, and run the contract suite on it.
"""
