"""DOES a store keep the protocol? The contract that every backend has to pass, a model, and clocks.

Subclass the contract in the tests of your own backend. `keepstate_testing`, a distribution of its own, breaks
things on purpose: processes, power, networks, servers. API boundary. Invariant: nothing of keepstate imports
this package, and pytest and hypothesis are imported only where they are used.
"""
