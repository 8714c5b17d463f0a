"""The server's time is that of each statement, also within one transaction."""

from __future__ import annotations

import psycopg
import pytest

from keepstate.stores.postgres import PostgresStore
from keepstate.stores.postgres.client import statements_of
from keepstate.stores.protocol import Put
from tests.stores.postgres.conftest import applied

SPACE, KEY = "space", b"\x01a"
PASSED_MS = 50
AT_NOW = 4 * 8
"""The place of the present time in the answer about one key: after revision, floor and two nonces."""


NOW = b"SELECT int8send(keepstate.now_1(0))"
READ = statements_of("keepstate").queries["get"].kept
"""A read as a connection sends it that keeps statements prepared."""


def literal(data: bytes) -> bytes:
    return b"'\\x" + data.hex().encode() + b"'"


def now_ms(connection: psycopg.Connection[tuple[bytes]], query: bytes, at: int) -> int:
    """Return the time in an answer."""
    values = {b"$1": literal(SPACE.encode()), b"$2": literal(KEY), b"$3": b"0"}
    for name, value in values.items():
        query = query.replace(name, value)
    found = connection.cursor(binary=True).execute(query).fetchone()
    assert found is not None
    return int.from_bytes(found[0][at : at + 8])


@pytest.mark.parametrize(("query", "at"), [(NOW, 0), (READ, AT_NOW)], ids=["function", "read"])
def test_time_passes_within_a_transaction(
    store: PostgresStore, postgres_url: str, query: bytes, at: int
) -> None:
    applied(store, SPACE, Put(KEY, b"1"))

    with psycopg.connect(postgres_url) as connection, connection.transaction():
        first_ms = now_ms(connection, query, at)
        connection.execute("SELECT pg_sleep(%s)", (PASSED_MS / 1000,))
        second_ms = now_ms(connection, query, at)

    assert second_ms >= first_ms + PASSED_MS
