"""Processes that share a database, one of which opens it by a second SQLite library, or as a plain file.

`second_library ROLE PATH SECONDS LIVES`: writes in a process of its own until an error ends that, and then in
the next. Each line of the output says what a life was answered, at once, so that it stands also when the
system kills it: `library.3 17` a write, `library.3 corrupt` what ended it, `library.3 killed` that the
memory which it shared was gone.
"""

from __future__ import annotations

import os
import signal
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


def partner(number: int) -> bytes:
    """Return the other key of the same batch."""
    return b"\x02%d" % number


def value(number: int) -> bytes:
    return b"%d " % number * 60


def by_library(path: str) -> None:
    """Open the database as a report or a health check would, and close it: the system drops our locks."""
    connection = sqlite3.connect(path)
    connection.execute("SELECT count(*) FROM log").fetchone()
    connection.close()


def as_file(path: str) -> None:
    """Open the file as a backup or a checksum would, and close it: likewise."""
    with open(path, "rb") as file:
        file.read(16)


STRANGERS: dict[str, Callable[[str], None]] = {
    "alone": lambda _: None,
    "library": by_library,
    "file": as_file,
}


def live(role: str, life: str, path: str, ends: float) -> None:
    """Write to a space of its own until an error or the end, and say each answer."""
    store = finish(SqliteStore(path, runner=ThreadRunner()).open())
    number = 0
    while number < EVERY or time.monotonic() < ends:  # the stranger came by once, however busy the machine is
        number += 1
        if number % EVERY == 0:
            STRANGERS[role](path)
        written = [Put(key(number), value(number)), Put(partner(number), value(number))]
        [outcome] = finish(store.apply([Batch(life, written)]))
        if not isinstance(outcome, Applied):
            assert isinstance(outcome, StorageError)
            say(life, outcome.code)
            break
        say(life, str(number))
    finish(store.close())


def say(life: str, what: str) -> None:
    os.write(1, f"{life} {what}\n".encode())


def live_on(role: str, path: str, seconds: float, lives: int) -> None:
    """Start a process for each life, one after another; ends with an error if one of them did."""
    ends = time.monotonic() + seconds
    for number in range(lives):
        if time.monotonic() >= ends:
            break
        life = f"{role}.{number}"
        child = os.fork()
        if child == 0:
            try:
                live(role, life, path, ends)
            except BaseException:  # noqa: BLE001  nothing else of the parent may run in its copy
                sys.excepthook(*sys.exc_info())
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        if code == -signal.SIGBUS:
            say(life, "killed")
        elif code:
            sys.exit(f"{life} ended with {code}")


def look_on(path: str, seconds: float) -> None:
    """Open and close the database by the other library, in a process that does nothing else with it."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        by_library(path)
        time.sleep(0.01)


def main() -> None:
    role, path, seconds, lives = sys.argv[1:]
    if role == "onlooker":
        look_on(path, float(seconds))
    else:
        live_on(role, path, float(seconds), int(lives))


if __name__ == "__main__":
    main()
