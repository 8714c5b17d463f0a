"""HOW does work wait for a worker? Tasks that are claimed under a lease, and leases on their own.

Use a task for work that one worker has to complete, and a lease for the right to do something alone. Not an
API boundary: `Space.queue` and `Space.leases` are.
"""
