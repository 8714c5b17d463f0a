"""WHERE is it kept? In one SQLite file, shared by the processes of one host.

Invariant: all of a process goes through one `Database` a file, which has the process's only writing
connection; every write and every checkpoint holds the lock file beside the database. Nobody opens the file
in another way.

To add a statement: what changes rows goes into `flush`, what only reads into `reading`; a new column needs
a new layout number in `schema`.
"""

from keepstate.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
