"""DOES a store keep the protocol? The contract that every backend has to pass, a model, and clocks.

Subclass the contract in the tests of your own backend. To break things on purpose (processes, power,
networks, servers), take `keepstate_testing`, a distribution of its own. API boundary. Invariant: nothing else
in keepstate imports this package, and only the modules that use pytest or hypothesis import them.
"""
