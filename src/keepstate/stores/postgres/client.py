"""The server as the store sees it: named statements over a pool, the schema, and a watcher of changes.

Each statement in an SQL file of this folder follows a line `-- name: …`.

NOTIFY would report changes faster than polling, but it takes a lock over the whole database at each commit,
and poolers do not forward it. So the watcher polls: often while spaces change, rarely while they do not.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Final, NamedTuple

from keepstate._clock import Clock
from keepstate._runner import Runner, Signal
from keepstate.errors import UnsupportedError
from keepstate.stores.pool import Pool
from keepstate.stores.postgres import faults
from keepstate.stores.postgres.connection import (
    Connection,
    LostConnection,
    RefusedStatement,
    Statement,
    connect,
)
from keepstate.stores.postgres.wire import byteas, from_byteas, from_int8, from_int8s
from keepstate.values import limits
from keepstate.values.key import OBJECTS, PART_BYTES, stamp_suffix, stored_key

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

_NAME = "-- name: "
_OFTEN = frozenset({"begin", "commit", "put", "apply", "get", "read", "scan", "changes", "sizes"})
_SETTINGS = (
    "SET search_path = pg_catalog SET plan_cache_mode = force_generic_plan SET jit = off "
    "SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off "
    "SET enable_hashjoin = off SET enable_mergejoin = off"
)


class Query(NamedTuple):
    """A statement; a frequent one has a name under which a connection may prepare `kept`."""

    text: bytes
    name: bytes
    kept: bytes


class Statements(NamedTuple):
    """The statements for one schema; functions and tables in the order of their creation."""

    queries: Mapping[str, Query]
    tables: Mapping[str, bytes]
    functions: Mapping[str, bytes]


@cache
def statements_of(schema: str) -> Statements:
    """Return the statements for a schema."""
    texts = _read("queries.sql", schema)
    queries = {
        name: Query(
            text,
            f"keepstate_{schema}_{name}"[:63].encode() if name in _OFTEN else b"",
            texts.get(f"{name}, kept", text),
        )
        for name, text in texts.items()
    }
    functions = {**_read("apply_functions.sql", schema), **_read("read_functions.sql", schema)}
    return Statements(queries, _read("schema.sql", schema), functions)


def _read(file: str, schema: str) -> dict[str, bytes]:
    text = files("keepstate.stores.postgres").joinpath(file).read_text("utf-8")
    words = {
        "{schema}": f'"{schema}"',
        "{settings}": _SETTINGS,
        "{stamp}": stamp_suffix(0, 0)[:1].hex(),
        "{text_tag}": str(stored_key(OBJECTS, "")[1]),
        "{part_bytes}": str(PART_BYTES),
        "{counted_parts}": str(limits.COUNTED_PARTS),
    }
    named: dict[str, bytes] = {}
    for part in text.split(_NAME)[1:]:
        name, _, statement = part.partition("\n")
        body = "\n".join(line for line in statement.splitlines() if not line.startswith("--")).strip()
        for word, meaning in words.items():
            body = body.replace(word, meaning)
        named[name] = body.encode()
    return named


_log = logging.getLogger("keepstate.stores.postgres")

_TRUSTED_S = 0.05
"""Seconds after an answer in which a connection is assumed alive; checking its socket slows reads."""

LAYOUT = 1
"""The layout of the tables that this version reads and writes."""


class Settings(NamedTuple):
    """The server's own account of itself."""

    is_standby: bool
    syncs_files: bool
    syncs_commits: bool
    may_fail_over: bool
    version: int


class Client:
    """Runs statements on the server, and creates its schema if that is missing.

    Args:
        url: Names the server in errors; without a password.
        parameters: The connection parameters for libpq.
        schema: The schema of the tables.
        max_connections: Number of calls that may be under way.
        timeout_s: Seconds to wait for an answer.
    """

    def __init__(
        self,
        *,
        url: str,
        parameters: Mapping[str, str],
        schema: str,
        max_connections: int,
        timeout_s: float,
        runner: Runner,
        clock: Clock,
    ) -> None:
        self._url, self._parameters, self._schema = url, parameters, schema
        self._timeout_s, self._runner = timeout_s, runner
        self._sql = statements_of(schema)
        self._begin, self._commit = self._statement("begin"), self._statement("commit")
        self._pool = Pool[Connection](
            self.connect, size=max_connections, trusted_s=_TRUSTED_S, runner=runner, clock=clock
        )
        self._prepares, self._is_closed = True, False

    @property
    def connections(self) -> int:
        """Return the number of connections that calls share now."""
        return self._pool.count

    def close(self) -> None:
        """Close idle connections now, and each other one after its call."""
        self._is_closed = True
        self._close_idle()

    def _close_idle(self) -> None:
        for connection in self._pool.take_idle():
            connection.close()

    def _give_back(self, connection: Connection) -> None:
        if self._is_closed or connection.is_amid:  # an interrupt ended its conversation
            connection.close()
        if connection.is_closed:
            self._pool.discard(connection)
        else:
            self._pool.give_back(connection)

    async def connect(self) -> Connection:
        """Return a connection outside the pool; the caller closes it."""
        try:
            connection = await connect(self._parameters, timeout_s=self._timeout_s, runner=self._runner)
            if self._prepares:
                (answer,) = await connection.converse(self._statement("backend"))
                if connection.is_of(from_int8(answer.get_value(0, 0))):
                    await connection.converse(self._statement("plan"))
                    connection.keep_prepared()
            return connection
        except LostConnection as error:
            raise faults.of_no_connection(error, url=self._url) from error
        except RefusedStatement as error:
            raise self._refused(error) from error

    async def ask(self, name: str, *values: bytes | None) -> PGresult:
        """Return the answer to a query that only reads."""
        (answer,) = await self._converse(False, self._statement(name, values))
        return answer

    async def change(self, name: str, *values: bytes | None) -> PGresult:
        """Run one statement as a transaction, and return its answer when it is durable.

        Raises:
            OutcomeUnknownError: The connection was lost; the transaction may have been committed.
        """
        _, answer, _ = await self._converse(True, self._begin, self._statement(name, values), self._commit)
        return answer

    async def ask_on(self, connection: Connection, name: str, *values: bytes | None) -> PGresult:
        """Return the answer to a query on the caller's own connection."""
        try:
            (answer,) = await connection.converse(self._statement(name, values))
        except LostConnection as error:
            raise faults.of_loss(error, url=self._url, may_have_written=False) from error
        except RefusedStatement as error:
            connection.close()
            if not await self._repair(error):
                raise self._refused(error) from error
            raise faults.of_loss(
                LostConnection(error.message), url=self._url, may_have_written=False
            ) from error
        return answer

    def _statement(self, name: str, values: Sequence[bytes | None] = ()) -> Statement:
        text, prepared_name, kept = self._sql.queries[name]
        return Statement(text, values, prepared_name, kept)

    async def _converse(self, may_write: bool, *statements: Statement, again: bool = True) -> list[PGresult]:
        """Return the answers; try again once if the schema or a prepared statement was missing."""
        connection = self._pool.take_free() or await self._pool.take()
        if (
            not self._prepares
        ):  # it may have been opened, or been in use, before a statement was found missing
            connection.stop_preparing()
        try:
            return await connection.converse(*statements)
        except LostConnection as error:
            raise faults.of_loss(error, url=self._url, may_have_written=may_write) from error
        except RefusedStatement as error:
            refused = error
        finally:
            self._give_back(connection)
        if not again or not await self._repair(refused):
            raise self._refused(refused) from refused
        return await self._converse(may_write, *statements, again=False)

    async def _repair(self, error: RefusedStatement) -> bool:
        """Repair the reason for a refusal if possible, and return whether the statement may be sent again."""
        if faults.misses_prepared(error):
            _log.warning("%s does not keep prepared statements, so they are not used from now on.", self._url)
            self._prepares = False
            self._close_idle()
            return True
        if faults.misses_schema(error):
            await self.prepare()
            return True
        return False

    def _refused(self, error: RefusedStatement) -> Exception:
        return faults.of_refusal(error, url=self._url, schema=self._schema)

    # ---- the schema

    async def prepare(self) -> Settings:
        """Create the missing tables and functions, and return the server's settings."""
        connection = await self._pool.take()
        try:
            settings = await self._settings(connection)
            if not settings.is_standby:
                await self._create_missing(connection)
                await self._check_layout(connection)
            return settings
        except LostConnection as error:
            raise faults.of_loss(error, url=self._url, may_have_written=False) from error
        except RefusedStatement as error:
            raise self._refused(error) from error
        finally:
            self._give_back(connection)

    async def _settings(self, connection: Connection) -> Settings:
        (answer,) = await connection.converse(self._statement("settings"))
        standby, files, commits, fails_over = (answer.get_value(0, column) == b"\x01" for column in range(4))
        return Settings(standby, files, commits, fails_over, from_int8(answer.get_value(0, 4)))

    async def _check_layout(self, connection: Connection) -> None:
        (answer,) = await connection.converse(self._statement("layout"))
        layout = from_int8(answer.get_value(0, 0))
        if layout > LAYOUT:
            raise UnsupportedError(
                f"Schema {self._schema!r} of {self._url} has layout {layout}, and this version knows up to "
                f"{LAYOUT}. Upgrade keepstate."
            )

    async def _create_missing(self, connection: Connection) -> None:
        """Create the missing parts in one transaction, for which other openers wait."""
        if not await self._missing(connection):
            return
        await connection.converse(self._begin)
        try:
            await connection.converse(self._statement("creators"))
            for text in await self._missing(connection):
                await connection.converse(Statement(text))
            await connection.converse(self._commit)
        except BaseException:
            connection.close()
            raise

    async def _missing(self, connection: Connection) -> list[bytes]:
        sql = self._sql
        wanted = byteas([name.encode() for name in sql.functions])
        (answer,) = await connection.converse(self._statement("look", (self._schema.encode(), wanted)))
        has_schema, has_tables = (answer.get_value(0, column) == b"\x01" for column in range(2))
        present = {name.decode() for name in from_byteas(answer.get_value(0, 2))}
        return [
            *([] if has_schema else [sql.queries["create_schema"].text]),
            *([] if has_tables else sql.tables.values()),
            *(text for name, text in sql.functions.items() if name not in present),
        ]


_SHORTEST_S: Final = 0.0015
_LONGEST_S: Final = 0.012
"""Pauses between rounds: a round takes the server about 0.1 ms."""
_BUSY_S: Final = 0.5
"""Seconds after a change for which the pause stays short, because changes come in groups."""
_SLOWER: Final = 1.25
"""Factor by which each later round is longer than the last."""


class Watcher:
    """Compares the revisions of spaces with the revisions of its last round."""

    def __init__(self, client: Client, *, clock: Clock) -> None:
        self._client, self._clock = client, clock
        self._connection: Connection | None = None
        self._seen: dict[str, int] = {}
        self._pause_s, self._busy_until_s = _SHORTEST_S, 0.0

    async def wait(self, spaces: Collection[str], timeout_s: float, *, nudge: Signal) -> Collection[str]:
        """Return spaces that changed, or were not watched before; none after `timeout_s` or a nudge."""
        until_s = self._clock.monotonic_s() + timeout_s
        while not (changed := await self._changed(spaces)):
            now_s = self._clock.monotonic_s()
            if now_s >= until_s or await nudge.wait(self._pause_s):
                return ()
            if now_s >= self._busy_until_s:
                self._pause_s = min(self._pause_s * _SLOWER, _LONGEST_S)
        self._pause_s, self._busy_until_s = _SHORTEST_S, self._clock.monotonic_s() + _BUSY_S
        return changed

    async def _changed(self, spaces: Collection[str]) -> list[str]:
        if self._connection is None or not self._connection.is_open():
            self._connection = await self._client.connect()
        answer = await self._client.ask_on(
            self._connection, "revisions", byteas([space.encode() for space in spaces])
        )
        names = [name.decode() for name in from_byteas(answer.get_value(0, 0))]
        now = {
            **dict.fromkeys(spaces, 0),
            **dict(zip(names, from_int8s(answer.get_value(0, 1)), strict=True)),
        }
        before, self._seen = self._seen, now
        return [space for space, revision in now.items() if before.get(space) != revision]

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
