"""HOW does state survive harm? Chaos, faults, proof, real servers and simulated time.

A distribution of its own, so that an application does not install what only tests need. Take a module from
here to break something on purpose; `keepstate.testing` has the contract that a backend has to pass.
"""
