"""The bytes that a store keeps, to search them for what was erased: its files, or a dump of its server."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import redis
from keepstate_testing.servers import Postgres, Redis
from psycopg.sql import SQL, Identifier


class Dump:
    """Finds a text in all that a store keeps.

    Args:
        kind: The kind of the store.
        request: Knows the servers.
        folder: The folder of the files.
    """

    def __init__(self, kind: str, request: pytest.FixtureRequest, folder: Path) -> None:
        self._kind, self._request, self._folder = kind, request, folder

    def has(self, text: bytes) -> bool:
        """Return whether the text is in the files, in a table, or under a key of the server."""
        if self._kind == "postgres":
            written = b"".join(_rows_of(self._request.getfixturevalue("postgres_server")))
            return text in written or text.hex().encode() in written
        if self._kind == "redis":
            return any(text in each for each in _bytes_of(self._request.getfixturevalue("redis_server")))
        return bool(found_in(self._folder, text))


def _rows_of(server: Postgres) -> Iterator[bytes]:
    """Yield all rows of all tables of a server, with bytes in hexadecimal."""
    with psycopg.connect(server.url) as connection:
        found = connection.execute(
            "SELECT schemaname, tablename FROM pg_tables WHERE schemaname NOT IN "
            "('pg_catalog', 'information_schema')"
        )
        for table in found.fetchall():
            with connection.cursor().copy(SQL("COPY {} TO STDOUT").format(Identifier(*table))) as rows:
                yield from map(bytes, rows)


def _bytes_of(server: Redis) -> Iterator[bytes]:
    """Yield all keys of a server, and everything under them."""
    with redis.Redis.from_url(server.url) as client:
        for key in client.scan_iter():
            yield key
            match client.type(key):
                case b"hash":
                    for pair in client.hgetall(key).items():
                        yield from pair
                case b"zset":
                    yield from client.zrange(key, 0, -1)
                case _:
                    yield client.get(key)


def found_in(folder: Path, text: bytes) -> list[str]:
    """Return the files that contain a text; another process reads them, as closing them drops locks."""
    command = ["grep", "-rlaF", text.decode(), str(folder)]
    return subprocess.run(command, stdout=subprocess.PIPE, check=False, text=True).stdout.split()
