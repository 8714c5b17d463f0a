"""HOW does a PostgreSQL server keep spaces? In a schema of its own, under functions that judge there.

Invariant: one flush is one transaction and one call, which locks the rows of its spaces in the order of their
names and judges every batch under those locks. Nothing that a call needs is left behind in its session by
another, so a pooler may hand each transaction to another process of the server.

To add a function: write it into `applying.sql` or `asking.sql` under its next number. What a released version
created is never replaced: older clients call it beside newer ones.
"""

from keepstate.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
