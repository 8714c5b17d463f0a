"""The server as the store sees it: named statements over a pool, and where errors are mapped."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from keepstate._clock import Clock
from keepstate._runner import Runner
from keepstate.errors import UnsupportedError
from keepstate.stores.postgres import faults
from keepstate.stores.postgres.connection import (
    Connection,
    LostConnection,
    RefusedStatement,
    Statement,
    connect,
)
from keepstate.stores.postgres.pool import Pool
from keepstate.stores.postgres.statements import statements_of
from keepstate.stores.postgres.wire import byteas, from_byteas, from_int8

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

_log = logging.getLogger("keepstate.stores.postgres")

LAYOUT = 1
"""The layout of the tables that this version reads and writes."""


class Settings(NamedTuple):
    """What the server says of itself."""

    is_standby: bool
    syncs_files: bool
    syncs_commits: bool
    may_fail_over: bool
    version: int


class Client:
    """Asks the server, and makes its schema where it is missing.

    Args:
        url: Names the server in errors; without a password.
        parameters: What libpq connects with.
        schema: Where the tables are.
        max_connections: How many calls may be under way.
        timeout_s: How long to wait for an answer.
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
        self._pool = Pool(self.connect, size=max_connections, runner=runner, clock=clock)
        self._prepares = True

    @property
    def connections(self) -> int:
        """Return how many connections calls share now."""
        return self._pool.count

    def close(self) -> None:
        """Hang up."""
        self._pool.close()

    async def connect(self) -> Connection:
        """Return a connection outside the pool; who asks for it closes it."""
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
        """Return the answer to a query that changes nothing."""
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
        """Return the answer to a query, asked on a connection of the caller's own."""
        try:
            (answer,) = await connection.converse(self._statement(name, values))
        except LostConnection as error:
            raise faults.of_loss(error, url=self._url, may_have_written=False) from error
        except RefusedStatement as error:
            connection.close()
            if not await self._mended(error):
                raise self._refused(error) from error
            raise faults.of_loss(
                LostConnection(error.message), url=self._url, may_have_written=False
            ) from error
        return answer

    def _statement(self, name: str, values: Sequence[bytes | None] = ()) -> Statement:
        text, prepared_name, kept = self._sql.queries[name]
        return Statement(text, values, prepared_name, kept)

    async def _converse(self, may_write: bool, *statements: Statement, again: bool = True) -> list[PGresult]:
        """Return the answers; once more where the schema was missing, or a pooler took what was prepared."""
        connection = self._pool.take_free() or await self._pool.take()
        try:
            return await connection.converse(*statements)
        except LostConnection as error:
            raise faults.of_loss(error, url=self._url, may_have_written=may_write) from error
        except RefusedStatement as error:
            refused = error
        finally:
            self._pool.give_back(connection)
        if not again or not await self._mended(refused):
            raise self._refused(refused) from refused
        return await self._converse(may_write, *statements, again=False)

    async def _mended(self, error: RefusedStatement) -> bool:
        """Return whether what stood in the way of a statement is gone, so that it may be sent again."""
        if faults.misses_prepared(error):
            _log.warning("%s does not keep prepared statements; from now on they are not used", self._url)
            self._prepares = False
            self._pool.forget()
            return True
        if faults.misses_schema(error):
            await self.prepare()
            return True
        return False

    def _refused(self, error: RefusedStatement) -> Exception:
        return faults.of_refusal(error, url=self._url, schema=self._schema)

    # ---- the schema

    async def prepare(self) -> Settings:
        """Make what is missing of the schema, and return what the server says of itself."""
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
            self._pool.give_back(connection)

    async def _settings(self, connection: Connection) -> Settings:
        (answer,) = await connection.converse(self._statement("settings"))
        standby, files, commits, fails_over = (answer.get_value(0, place) == b"\x01" for place in range(4))
        return Settings(standby, files, commits, fails_over, from_int8(answer.get_value(0, 4)))

    async def _check_layout(self, connection: Connection) -> None:
        (answer,) = await connection.converse(self._statement("layout"))
        layout = from_int8(answer.get_value(0, 0))
        if layout > LAYOUT:
            raise UnsupportedError(
                f"schema {self._schema!r} of {self._url} has layout {layout}, and this version knows up to "
                f"{LAYOUT}; install the newer keepstate that wrote it"
            )

    async def _create_missing(self, connection: Connection) -> None:
        """Create what is not there, in one transaction that other openers wait for."""
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
        has_schema, has_tables = (answer.get_value(0, place) == b"\x01" for place in range(2))
        there = {name.decode() for name in from_byteas(answer.get_value(0, 2))}
        return [
            *([] if has_schema else [sql.queries["create_schema"].text]),
            *([] if has_tables else sql.tables.values()),
            *(text for name, text in sql.functions.items() if name not in there),
        ]
