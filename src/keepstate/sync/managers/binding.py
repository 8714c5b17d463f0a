"""Blocking twins of `keepstate.managers.binding`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from os import PathLike
from typing import TypedDict

from keepstate.managers.backends import Backend
from keepstate.stores.protocol import Store
from keepstate.sync.keepstate import Keepstate
from keepstate.sync.space import Space, Transaction


class ManagerStorage(TypedDict, total=False):
    """The arguments of a manager's constructor that name its storage.

    Attributes:
        persistence: `memory`, `file`, `sqlite`, `redis` or `postgres`; a URL, a description, an open store or
            a handle on one.
        url: The URL, if `persistence` names a backend.
        redis_url: The URL of a Redis server.
        file_path: The file of a journal or SQLite database.
        space: A space or transaction that stores all subjects, in place of a store.
    """

    persistence: str | Backend | Store | Keepstate | None
    url: str | None
    redis_url: str | None
    file_path: str | PathLike[str] | None
    space: Space | Transaction | None
