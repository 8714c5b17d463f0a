"""HOW does work wait for a worker? Tasks that are claimed under a lease, and leases by themselves.

Take a task for work that one worker has to complete, and a lease for the right to do something alone. Not an
API boundary: `Space.queue` and `Space.leases` are.
"""
