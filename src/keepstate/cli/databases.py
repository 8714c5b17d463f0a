"""Conversations in SQLite databases of other libraries, recognised by their tables, and only read.

Messages of the OpenAI Agents SDK and events of Google's ADK are JSON there. Columns with pickled values,
which old versions of ADK have as well, are never read.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from typing import Any, Final, NamedTuple, cast
from urllib.parse import quote

from keepstate.cli.transcript_forms import Message, message_in
from keepstate.cli.transcripts import Piece, decoded
from keepstate.errors import InvalidError
from keepstate.stores.sqlite.schema import APPLICATION_ID

MAGIC: Final = b"SQLite format 3\x00"
"""The first bytes of an SQLite database."""
_BY_PIECE: Final = 200
_SHOWN: Final = 8


class _Row(NamedTuple):
    """A row with the conversation that it belongs to, its own name, and its JSON."""

    conversation: str
    id: object
    text: object


class _Source(NamedTuple):
    """The way to read conversations from the tables of a library."""

    tables: frozenset[str]
    query: Callable[[set[str]], str]
    table: str
    read: Callable[[Any], Message | None]


def pieces_in(path: str) -> Iterator[Piece]:
    """Return an iterator over the conversations of a database.

    Raises:
        InvalidError: The database is of another kind, or has a row that is not a message.
    """
    with _told(path), ExitStack() as opened:
        url = f"file:{quote(str(Path(path).absolute()))}?mode=ro"
        database = opened.enter_context(closing(sqlite3.connect(url, uri=True)))
        database.execute("pragma trusted_schema = off")
        source, columns = _recognized(database, path)
        return _pieces(path, source, database.execute(source.query(columns)), opened.pop_all())


@contextmanager
def _told(path: str) -> Generator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise InvalidError(f"{path} is an SQLite database that cannot be read ({error})") from error


def _pieces(path: str, source: _Source, found: Iterator[Any], opened: ExitStack) -> Iterator[Piece]:
    with opened, _told(path):
        for conversation, rows in groupby(map(_Row._make, found), key=lambda row: row.conversation):
            start, messages = 0, _messages(path, source, rows)
            while some := [*islice(messages, _BY_PIECE)]:
                places = [place for place, _ in some]
                yield Piece(conversation, start, [message for _, message in some], partial(_at, places), {})
                start += len(some)


def _messages(path: str, source: _Source, rows: Iterator[_Row]) -> Iterator[tuple[str, Message]]:
    for row in rows:
        place = f"{path}, row {row.id} of {source.table}"
        text = row.text.encode() if isinstance(row.text, str) else row.text
        try:
            value = decoded(text if isinstance(text, bytes) else b"")
        except (ValueError, RecursionError) as error:
            raise InvalidError(f"{place}: expected JSON ({error})") from error
        if (message := source.read(value)) is not None:
            yield place, message
        elif source.table == _OPENAI.table:
            raise InvalidError(f"{place}: expected an item of OpenAI's Responses or a message")


def _at(places: list[str], number: int) -> str:
    return places[number]


def _recognized(database: sqlite3.Connection, path: str) -> tuple[_Source, set[str]]:
    """Return the source whose tables the database has, and the columns of its messages."""
    (application,) = database.execute("pragma application_id").fetchone()
    tables = {
        str(name) for (name,) in database.execute("select name from sqlite_master where type = 'table'")
    }
    if application == APPLICATION_ID:
        raise InvalidError(
            f"{path} is a keepstate store; open it as --url, or move it with keepstate migrate"
        )
    if {"checkpoints", "writes"} <= tables:
        raise InvalidError(
            f"{path} holds checkpoints of LangGraph's own saver; import them with keepstate langgraph import "
            f"--from sqlite:///{path} STORE-URL"
        )
    for source in (_OPENAI, _ADK):
        if source.tables <= tables:
            columns = {str(row[1]) for row in database.execute(f"pragma table_info({source.table})")}
            return source, columns
    known = ", ".join(sorted(tables)[:_SHOWN]) or "none"
    raise InvalidError(
        f"{path} is an SQLite database of another kind, with these tables: {known}. Conversations of the "
        "OpenAI Agents SDK (agent_messages) and of Google's ADK (sessions, events) are read"
    )


def _items_query(_: set[str]) -> str:
    return "select session_id, id, message_data from agent_messages order by session_id, id"


def _events_query(columns: set[str]) -> str:
    data = "event_data" if "event_data" in columns else "content"
    name = "app_name || '/' || user_id || '/' || session_id"
    return f"select {name}, id, {data} from events where {data} is not null order by 1, timestamp, rowid"


def _read_event(value: Any) -> Message | None:
    """Return the content of an event of ADK with its author; None if the event has no content."""
    if not isinstance(value, dict):
        return None
    event = cast("dict[str, Any]", value)
    content: Any = event.get("content", event)
    if not isinstance(content, dict) or not isinstance(cast("dict[str, Any]", content).get("parts"), list):
        return None
    author = {"author": event["author"]} if "content" in event and "author" in event else {}
    message = message_in(cast("object", content))
    return None if message is None else {**message, **author}


_OPENAI: Final = _Source(
    frozenset({"agent_sessions", "agent_messages"}), _items_query, "agent_messages", message_in
)
_ADK: Final = _Source(frozenset({"sessions", "events", "app_states"}), _events_query, "events", _read_event)
