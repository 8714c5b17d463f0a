"""WHERE is it kept? In one SQLite file, shared by the processes of one host.

Invariant: a process uses one `Database` per file, which has the process's only writing connection. Every
write and every checkpoint holds the lock file next to the database. No other code opens the file.

To add a statement: one that changes rows goes into `flush`, one that only reads into `queries`. A new column
needs a new layout number in `schema`. Not an API boundary: open a store by its URL.
"""

from keepstate.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
