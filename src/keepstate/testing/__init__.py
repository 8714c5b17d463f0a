"""DOES a store keep the protocol, and an application survive? The contract of stores, fixtures and clocks.

Subclass the contract in the tests of your own backend. The tests of an application take the fixtures that
`plugin` gives to pytest. To break things on purpose (processes, power, networks, servers), take
`keepstate_testing`, a distribution of its own. API boundary. Invariant: nothing else in keepstate imports
this package, and only the modules that use pytest or hypothesis import them.
"""
