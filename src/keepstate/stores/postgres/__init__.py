"""HOW does a PostgreSQL server store spaces? In a schema of its own, with functions that check batches there.

Invariant: one flush is one transaction and one call. The call locks the rows of its spaces in the order of
their names and checks every batch under those locks. No call depends on the session state of another call, so
a pooler may run each transaction in another process of the server.

To add a function: write it into `apply_functions.sql` or `read_functions.sql` under its next number. A
function of a released version is never replaced, because older clients call it alongside newer ones.

Not an API boundary: open a store by its URL.
"""

from keepstate.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
