"""Processes that share a database, one of which opens it by a second SQLite library, or as a plain file.

`second_library ROLE PATH SECONDS`: prints, as JSON, how many of its writes were acknowledged, and the error
that ended them.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import time
from collections.abc import Callable

from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.errors import StorageError
from keepstate.stores.protocol import Applied, Batch, Put
from keepstate.stores.sqlite import SqliteStore

EVERY = 5
"""After so many writes the stranger in the process comes by."""


def key(number: int) -> bytes:
    return b"\x01%d" % number


def by_library(path: str) -> None:
    """Opens the database as a report or a health check would, and closes it: the system drops our locks."""
    connection = sqlite3.connect(path)
    connection.execute("SELECT count(*) FROM log").fetchone()
    connection.close()


def as_file(path: str) -> None:
    """Opens the file as a backup or a checksum would, and closes it: likewise."""
    with open(path, "rb") as file:
        file.read(16)


STRANGERS: dict[str, Callable[[str], None]] = {
    "alone": lambda _: None,
    "library": by_library,
    "file": as_file,
}


def write(role: str, path: str, seconds: float) -> tuple[int, str | None]:
    """Writes until an error or the end; returns how many writes were acknowledged, and the error's code."""
    ends = time.monotonic() + seconds
    store = finish(SqliteStore(path, runner=ThreadRunner()).open())
    acknowledged, failed = 0, None
    while failed is None and time.monotonic() < ends:
        number = acknowledged + 1
        if number % EVERY == 0:
            STRANGERS[role](path)
        [outcome] = finish(store.apply([Batch(role, [Put(key(number), b"x" * 300)])]))
        if isinstance(outcome, Applied):
            acknowledged = number
        else:
            assert isinstance(outcome, StorageError)
            failed = outcome.code
    finish(store.close())
    return acknowledged, failed


def look_on(path: str, seconds: float) -> None:
    """Opens and closes the database by the other library, in a process that does nothing else with it."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        by_library(path)
        time.sleep(0.01)


def main() -> None:
    role, path, seconds = sys.argv[1:]
    if role == "onlooker":
        look_on(path, float(seconds))
        print(json.dumps((0, None)))
    else:
        print(json.dumps(write(role, path, float(seconds))))


if __name__ == "__main__":
    main()
