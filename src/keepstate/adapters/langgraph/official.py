"""Reads the databases of LangGraph's own savers, SQLite or PostgreSQL, through these savers. Writes nothing.

Their serializer creates objects of the classes of LangChain and LangGraph, and of allowed classes. It skips
other objects with a warning; here that raises `InvalidError`. The serializer also calls allowed functions, so
only classes can be allowed here, and only those whose objects keepstate can store.
"""

from __future__ import annotations

import logging
import sqlite3
import sys
from collections.abc import Generator, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from contextvars import ContextVar
from importlib import import_module
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import quote, unquote

import msgspec
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.serde.event_hooks import register_serde_event_listener
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from keepstate.adapters.langgraph.classes import Classes, Named, class_of
from keepstate.errors import InvalidError, MissingExtraError, NotFoundError, StoreUnavailableError
from keepstate.stores.sqlite.schema import APPLICATION_ID
from keepstate.stores.urls import StoreUrl, shown
from keepstate.values.types import LEAF_WRITERS

_CHECKPOINTS: Final = "select thread_id, checkpoint_ns, checkpoint_id from checkpoints order by 1, 2, 3"
_OF_THREAD: Final = (
    "select thread_id, checkpoint_ns, checkpoint_id from checkpoints where thread_id = {mark} order by 2, 3"
)
_WRITES: Final = (
    "select task_id, task_path, channel, type, {value} as value from {table} "
    "where thread_id = {mark} and checkpoint_ns = {mark} and checkpoint_id = {mark} "
    "order by task_path, task_id, idx < 0, idx"  # indexes from 0 first, then the special negative ones
)
_BLOCKED: Final = ("msgpack_blocked", "msgpack_method_blocked")
_LOGGER: Final = logging.getLogger("langgraph.checkpoint.serde.jsonplus")
_READS: Final[ContextVar[Any]] = ContextVar("official_reads", default=None)
"""The database that is being read: listeners receive the events of all serializers of the process."""


class CheckpointName(msgspec.Struct, frozen=True):
    """The name of a checkpoint."""

    thread: str
    namespace: str
    id: str

    @property
    def config(self) -> RunnableConfig:
        """The config that names the checkpoint."""
        named = {"thread_id": self.thread, "checkpoint_ns": self.namespace, "checkpoint_id": self.id}
        return {"configurable": named}

    def __str__(self) -> str:
        return f"checkpoint {self.id} of thread {self.thread!r}" + (
            f" in {self.namespace!r}" if self.namespace else ""
        )


class TaskWrites(msgspec.Struct, frozen=True):
    """The writes of one task on a checkpoint, in order."""

    task_id: str
    task_path: str
    writes: list[tuple[str, Any]]


class Official:
    """The database of one of LangGraph's savers.

    Args:
        saver: The saver, on a read-only connection.
        connection: The connection.
        is_sqlite: Whether the saver is the one for SQLite, not the one for PostgreSQL.
        failures: The base class of the connection's errors.
    """

    def __init__(
        self, saver: BaseCheckpointSaver[Any], connection: Any, *, is_sqlite: bool, failures: type[Exception]
    ) -> None:
        self._saver, self._connection, self._failures = saver, connection, failures
        mark, value, table = ("?", "value", "writes") if is_sqlite else ("%s", "blob", "checkpoint_writes")
        self._writes = _WRITES.format(mark=mark, value=value, table=table)
        self._of_thread = _OF_THREAD.format(mark=mark)
        self._blocked: list[str] = []

    def named(self, thread: str | None = None) -> list[CheckpointName]:
        """Return the names of all checkpoints, or of those of a thread: the oldest of a namespace first."""
        query = (_CHECKPOINTS,) if thread is None else (self._of_thread, (thread,))
        return [CheckpointName(*_values(row)) for row in self._connection.execute(*query).fetchall()]

    def read(self, name: CheckpointName) -> CheckpointTuple:
        """Return a checkpoint.

        Raises:
            NotFoundError: It was deleted.
            InvalidError: It cannot be read, or holds an object of a class that is not allowed.
            StoreUnavailableError: The database does not answer.
        """
        with self._reading(name):
            found = self._saver.get_tuple(name.config)
        if found is None:
            raise NotFoundError(f"{name} was deleted during the import; run the import again")
        if found.checkpoint["id"] != name.id:
            raise InvalidError(f"{name} holds another checkpoint, {found.checkpoint['id']}")
        return found

    def writes(self, name: CheckpointName) -> list[TaskWrites]:
        """Return the writes of tasks on a checkpoint; raises as `read`."""
        found: dict[tuple[str, str], TaskWrites] = {}
        with self._reading(name):
            key = name.thread, name.namespace, name.id
            for row in self._connection.execute(self._writes, key).fetchall():
                task_id, task_path, channel, kind, value = _values(row)
                task = found.setdefault((task_id, task_path), TaskWrites(task_id, task_path, []))
                task.writes.append((channel, self._saver.serde.loads_typed((kind, value))))
        return list(found.values())

    @contextmanager
    def _reading(self, name: CheckpointName) -> Generator[None]:
        """Add the name of the checkpoint to errors."""
        self._blocked.clear()
        token = _READS.set(self)
        try:
            yield
        except self._failures as error:
            raise StoreUnavailableError(f"{name} cannot be read: {error}") from error
        except Exception as error:  # anything that a serializer raises for unknown bytes
            raise InvalidError(f"{name} cannot be read: {str(error) or type(error).__name__}") from error
        finally:
            _READS.reset(token)
        self._raise_blocked(name)

    def on_event(self, event: Any) -> None:
        """Record an object that the serializer skipped in this read."""
        if event.get("kind") in _BLOCKED and _READS.get() is self:
            self._blocked.append(_blocked(str(event["module"]), str(event["name"]), event.get("method")))

    def passes(self, record: logging.LogRecord) -> bool:
        """Return whether a log record of the serializer passes: a skipped object is an error here."""
        return _READS.get() is not self or not str(record.msg).startswith("Blocked")

    def _raise_blocked(self, name: CheckpointName) -> None:
        if self._blocked:
            raise InvalidError(f"{name} {self._blocked[0]}")


def _blocked(module: str, name: str, method: str | None) -> str:
    """Return the error for a name in stored bytes that is not allowed; the name is not imported."""
    full = f"{module}:{name}"
    if method is not None:
        return f"wants to call {method} of {full!r}, which is never allowed; find out what wrote it"
    found: object = getattr(sys.modules.get(module), "__dict__", {}).get(name)
    if found is not None and not isinstance(found, type):
        return f"wants to call {full!r}, which is not a class and cannot be allowed; find out what wrote it"
    if module.partition(".")[0] in sys.stdlib_module_names or not _is_name(f"{module}.{name}"):
        return f"holds a {full!r}, which is not a class of an application; find out what wrote it"
    return f"holds a {full}; if it is a class of yours, allow it: --allow {full}, or allow= of a saver"


def _is_name(dotted: str) -> bool:
    return all(part.isidentifier() for part in dotted.split("."))


def _values(row: Any) -> Sequence[Any]:
    return list(cast("dict[str, Any]", row).values()) if isinstance(row, dict) else row


@contextmanager
def opened(url: str, allow: Iterable[Named] = ()) -> Generator[Official]:
    """Yield the database of a URL, opened read-only.

    Args:
        url: `sqlite:///old.db` or `postgresql://…`.
        allow: Classes that may come back, in addition to LangChain's and LangGraph's own.

    Raises:
        InvalidError: The URL has another scheme, or objects of an allowed class cannot be stored.
        NotFoundError: There are no checkpoints.
        MissingExtraError: LangGraph's saver is not installed.
    """
    names = [_named(one) for one in allow]
    serde = JsonPlusSerializer(allowed_msgpack_modules=names, allowed_json_modules=names or None)
    scheme = url.partition("://")[0].lower()
    if scheme == "sqlite":
        opening = _sqlite(url, serde)
    elif scheme in ("postgresql", "postgres"):
        opening = _postgres(url, serde)
    else:
        raise InvalidError(
            f"{shown(url)!r} is not a database of LangGraph; give sqlite:///old.db or postgresql://…"
        )
    with opening as official:
        stop = register_serde_event_listener(official.on_event)
        _LOGGER.addFilter(official.passes)
        try:
            yield official
        finally:
            _LOGGER.removeFilter(official.passes)
            stop()


def _named(allowed: Named) -> tuple[str, ...]:
    kind = class_of(allowed)
    if kind not in LEAF_WRITERS and Classes(is_quiet=True).of(kind) is None:
        raise InvalidError(
            f"{kind.__module__}.{kind.__qualname__} is allowed, but checkpoints cannot store its objects"
        )
    return (kind.__module__, kind.__qualname__) if isinstance(allowed, type) else allowed


def reject_official(path: str, cause: Exception) -> None:
    """Raise `InvalidError` if a file that is not a keepstate store is a database of LangGraph."""
    try:
        with closing(sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True)) as connection:
            rows = connection.execute("select name from sqlite_master where type = 'table'").fetchall()
    except sqlite3.Error:
        return
    tables = {name for (name,) in rows}
    if "checkpoints" in tables:
        raise InvalidError(
            f"{path} holds checkpoints of LangGraph's own saver; give another file, and import them with "
            f"keepstate langgraph import --from sqlite:///{path} STORE-URL"
        ) from cause
    if "store_migrations" in tables:
        raise InvalidError(
            f"{path} holds items of LangGraph's own store; give another file, and put them there"
        ) from cause


@contextmanager
def _sqlite(url: str, serde: JsonPlusSerializer) -> Generator[Official]:
    path = unquote(url.removeprefix("sqlite:///"))
    if not Path(path).is_file():
        raise NotFoundError(f"there is no file {path!r}")
    module = _module("sqlite")
    with closing(sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True)) as connection:
        columns = {row[1] for row in connection.execute("pragma table_info(writes)")}
        if connection.execute("pragma application_id").fetchone() == (APPLICATION_ID,):
            raise NotFoundError(
                f"{path!r} is a keepstate store, which savers use as it is; "
                "--from takes the database of LangGraph's own saver"
            )
        if "task_path" not in columns:
            raise NotFoundError(
                f"{path!r} has no checkpoints in the form of SqliteSaver today; if they are older, let "
                "SqliteSaver open the file once, which updates them"
            )
        saver = module.SqliteSaver(connection, serde=serde)
        saver.is_setup = True  # otherwise its first call would write
        yield Official(saver, connection, is_sqlite=True, failures=sqlite3.Error)


@contextmanager
def _postgres(url: str, serde: JsonPlusSerializer) -> Generator[Official]:
    StoreUrl.parse(url)  # libpq's own error for a malformed one shows the password
    opening: AbstractContextManager[Any] = _module("postgres").PostgresSaver.from_conn_string(url)
    failures: type[Exception] = import_module("psycopg").Error
    with ExitStack() as stack:
        try:
            saver = stack.enter_context(opening)
        except import_module("psycopg").ProgrammingError:
            raise InvalidError(f"libpq rejects {shown(url)}; correct it, and quote its parts") from None
        saver.conn.read_only = True
        saver.serde = serde
        tables = "select to_regclass('checkpoints'), to_regclass('checkpoint_writes')"
        if None in _values(saver.conn.execute(tables).fetchone()):
            raise NotFoundError("the database has no checkpoints of LangGraph's PostgresSaver")
        yield Official(saver, saver.conn, is_sqlite=False, failures=failures)


def _module(name: str) -> Any:
    try:
        return import_module(f"langgraph.checkpoint.{name}")
    except ImportError as error:
        install = f"pip install langgraph-checkpoint-{name}"
        message = f"reading its database needs LangGraph's saver: {install}"
        raise MissingExtraError(message, install=install) from error
