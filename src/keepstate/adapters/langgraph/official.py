"""Reads what LangGraph's own savers have stored in SQLite or PostgreSQL: by these savers, and writes nothing.

Their serializer makes objects of the classes of LangChain, of LangGraph, and of those that are allowed. Where
it would leave another one out, which it does with no more than a warning, `InvalidError` is raised. It calls
whatever is allowed, be it a function: so here only classes can be, of which keepstate can store the objects.
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

from keepstate.adapters.langgraph.classes import Allowed, Classes, class_of
from keepstate.errors import InvalidError, MissingExtraError, NotFoundError, StoreUnavailableError
from keepstate.stores.sqlite.schema import APPLICATION_ID
from keepstate.stores.urls import StoreUrl, shown
from keepstate.values.types import LEAF_WRITERS

_CHECKPOINTS: Final = "select thread_id, checkpoint_ns, checkpoint_id from checkpoints order by 1, 2, 3"
_WRITES: Final = (
    "select task_id, task_path, channel, type, {value} as value from {table} "
    "where thread_id = {mark} and checkpoint_ns = {mark} and checkpoint_id = {mark} "
    "order by task_path, task_id, idx < 0, idx"  # a place in an order, and those with a meaning behind
)
_BLOCKED: Final = ("msgpack_blocked", "msgpack_method_blocked")
_LOGGER: Final = logging.getLogger("langgraph.checkpoint.serde.jsonplus")
_READS: Final[ContextVar[Any]] = ContextVar("official_reads", default=None)
"""Which of them is reading: every listener of the process hears of what any serializer leaves out."""


class Named(msgspec.Struct, frozen=True):
    """Names a checkpoint."""

    thread: str
    namespace: str
    id: str

    @property
    def config(self) -> RunnableConfig:
        """The config that asks for it."""
        told = {"thread_id": self.thread, "checkpoint_ns": self.namespace, "checkpoint_id": self.id}
        return {"configurable": told}

    def __str__(self) -> str:
        return f"checkpoint {self.id} of thread {self.thread!r}" + (
            f" in {self.namespace!r}" if self.namespace else ""
        )


class TaskWrites(msgspec.Struct, frozen=True):
    """What one task has written on a checkpoint, in order."""

    task_id: str
    task_path: str
    writes: list[tuple[str, Any]]


class Official:
    """A database of one of LangGraph's savers.

    Args:
        saver: The saver, on a connection that only reads.
        is_sqlite: Whether it is the one for SQLite; else the one for PostgreSQL.
        failures: What the connection raises.
    """

    def __init__(
        self, saver: BaseCheckpointSaver[Any], connection: Any, *, is_sqlite: bool, failures: type[Exception]
    ) -> None:
        self._saver, self._connection, self._failures = saver, connection, failures
        mark, value, table = ("?", "value", "writes") if is_sqlite else ("%s", "blob", "checkpoint_writes")
        self._writes = _WRITES.format(mark=mark, value=value, table=table)
        self._blocked: list[str] = []  # what is said of each

    def named(self) -> list[Named]:
        """Return the names of all checkpoints: by thread and namespace, the oldest first."""
        return [Named(*_values(row)) for row in self._connection.execute(_CHECKPOINTS).fetchall()]

    def read(self, name: Named) -> CheckpointTuple:
        """Return a checkpoint.

        Raises:
            NotFoundError: It is there no more.
            InvalidError: It cannot be read, or an object of a class that nobody allowed is in it.
            StoreUnavailableError: The database does not answer.
        """
        with self._reading(name):
            found = self._saver.get_tuple(name.config)
        if found is None:
            raise NotFoundError(f"{name} was deleted while it was to be read; run it again")
        if found.checkpoint["id"] != name.id:
            raise InvalidError(f"{name} holds another one, {found.checkpoint['id']}")
        return found

    def writes(self, name: Named) -> list[TaskWrites]:
        """Return what tasks have written on a checkpoint; raises as `read`."""
        found: dict[tuple[str, str], TaskWrites] = {}
        with self._reading(name):
            place = name.thread, name.namespace, name.id
            for row in self._connection.execute(self._writes, place).fetchall():
                task_id, task_path, channel, kind, value = _values(row)
                task = found.setdefault((task_id, task_path), TaskWrites(task_id, task_path, []))
                task.writes.append((channel, self._saver.serde.loads_typed((kind, value))))
        return list(found.values())

    @contextmanager
    def _reading(self, name: Named) -> Generator[None]:
        """Tell of which checkpoint it is that cannot be read."""
        self._blocked.clear()
        token = _READS.set(self)
        try:
            yield
        except self._failures as error:
            raise StoreUnavailableError(f"{name} cannot be read: {error}") from error
        except Exception as error:  # whatever a serializer makes of bytes that it does not know
            raise InvalidError(f"{name} cannot be read: {str(error) or type(error).__name__}") from error
        finally:
            _READS.reset(token)
        self._refuse_blocked(name)

    def hear(self, event: Any) -> None:
        """Note what the serializer has left out of what is read here."""
        if event.get("kind") in _BLOCKED and _READS.get() is self:
            self._blocked.append(_blocked(str(event["module"]), str(event["name"]), event.get("method")))

    def passes(self, record: logging.LogRecord) -> bool:
        """Whether the serializer may say this: what it left out here is told as an error, with no advice."""
        return _READS.get() is not self or not str(record.msg).startswith("Blocked")

    def _refuse_blocked(self, name: Named) -> None:
        if self._blocked:
            raise InvalidError(f"{name} {self._blocked[0]}")


def _blocked(module: str, name: str, method: str | None) -> str:
    """Return what to say of what stored bytes name, and nobody has allowed; it is not imported for that."""
    told = f"{module}:{name}"
    if method is not None:
        return f"wants {method} of {told!r} called, which nothing allows; look who has written that"
    found: object = getattr(sys.modules.get(module), "__dict__", {}).get(name)
    if found is not None and not isinstance(found, type):
        return f"wants {told!r} called, which is no class and cannot be allowed; look who has written that"
    if module.partition(".")[0] in sys.stdlib_module_names or not _is_name(f"{module}.{name}"):
        return f"holds a {told!r}, which is no class of an application; look who has written that"
    return f"holds a {told}; if it is a class of yours, allow it: --allow {told}"


def _is_name(dotted: str) -> bool:
    return all(part.isidentifier() for part in dotted.split("."))


def _values(row: Any) -> Sequence[Any]:
    return list(cast("dict[str, Any]", row).values()) if isinstance(row, dict) else row


@contextmanager
def opened(url: str, allow: Iterable[Allowed] = ()) -> Generator[Official]:
    """Yield the database that a URL names, opened to be read.

    Args:
        url: `sqlite:///old.db` or `postgresql://…`.
        allow: Classes that may come back, beside LangChain's and LangGraph's own.

    Raises:
        InvalidError: The URL names neither, or what is allowed is no class of objects that can be stored.
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
            f"{shown(url)!r} is no database of LangGraph's; give sqlite:///old.db or postgresql://…"
        )
    with opening as official:
        stop = register_serde_event_listener(official.hear)
        _LOGGER.addFilter(official.passes)
        try:
            yield official
        finally:
            _LOGGER.removeFilter(official.passes)
            stop()


def _named(allowed: Allowed) -> tuple[str, ...]:
    kind = class_of(allowed)
    if kind not in LEAF_WRITERS and Classes(is_quiet=True).of(kind) is None:
        raise InvalidError(
            f"{kind.__module__}.{kind.__qualname__} is allowed, and no checkpoint can keep objects of it"
        )
    return (kind.__module__, kind.__qualname__) if isinstance(allowed, type) else allowed


def refuse_official(path: str, cause: Exception) -> None:
    """Raise `InvalidError` if a file, which is no keepstate store, is what LangGraph keeps its state in."""
    try:
        with closing(sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True)) as connection:
            rows = connection.execute("select name from sqlite_master where type = 'table'").fetchall()
    except sqlite3.Error:
        return
    tables = {name for (name,) in rows}
    if "checkpoints" in tables:
        raise InvalidError(
            f"{path} holds checkpoints of LangGraph's own saver; give another file, and bring them over with "
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
                f"{path!r} is a keepstate store, and has nothing to bring in: savers use it as it is; "
                "--from names the database of LangGraph's own saver"
            )
        if "task_path" not in columns:
            raise NotFoundError(
                f"{path!r} has no checkpoints as SqliteSaver stores them now; if they are older, call its "
                "setup() once, which brings them up to date"
            )
        saver = module.SqliteSaver(connection, serde=serde)
        saver.is_setup = True  # else its first call would write
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
            raise InvalidError(f"libpq does not take {shown(url)}; correct it, and quote its parts") from None
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
