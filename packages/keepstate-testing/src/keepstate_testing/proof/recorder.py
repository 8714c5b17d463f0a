"""A history on its way to a file that survives its writer.

Each process has one file, and appends each record with one `write`. So a record survives, even if the process
is killed at its next instruction. Only the last record can be cut by a kill; it is left out.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from keepstate_testing.proof.operations import (
    Attempt,
    Demand,
    Histories,
    History,
    LogPage,
    Look,
    Note,
    Refused,
    Took,
    Wrote,
)

_LENGTH_BYTES: Final = 4


class Began(msgspec.Struct, frozen=True, array_like=True, tag="b"):
    """A batch is about to be sent."""

    number: int
    space: str
    at_ns: int
    writes: list[Wrote]
    checks: list[Demand]
    at: int | None
    token: bytes
    alive_until_ms: int | None = None


class Applied(msgspec.Struct, frozen=True, array_like=True, tag="a", gc=False):
    """The answer that a batch was applied."""

    number: int
    at_ns: int
    answer: Took


class Failed(msgspec.Struct, frozen=True, array_like=True, tag="f", gc=False):
    """The answer that a batch was not applied."""

    number: int
    at_ns: int
    answer: Refused


class Looked(msgspec.Struct, frozen=True, array_like=True, tag="l"):
    """Something was read."""

    look: Look


class Followed(msgspec.Struct, frozen=True, array_like=True, tag="p", gc=False):
    """A page of the log was read."""

    page: LogPage


class DurableMark(msgspec.Struct, frozen=True, array_like=True, tag="n", gc=False):
    """A client says something of its own work."""

    note: Note


Record: TypeAlias = Began | Applied | Failed | Looked | Followed | DurableMark


class Recorder:
    """Appends records to a file of its own; for any number of threads.

    Args:
        path: The file; it must not be there yet.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        self._encode = msgspec.msgpack.Encoder().encode
        self._numbers = itertools.count()

    def number(self) -> int:
        """Return a number that no other batch of this file has."""
        return next(self._numbers)

    def write(self, *records: Record) -> None:
        """Append the records; when it returns, they survive a kill."""
        parts: list[bytes] = []
        for record in records:
            body = self._encode(record)
            parts += (len(body).to_bytes(_LENGTH_BYTES), body)
        os.write(self._file, b"".join(parts))

    def note(self, space: str, what: str, about: str = "", number: int = 0) -> None:
        """Append a client's record of its own work."""
        self.write(DurableMark(Note(space, what, about, number)))

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def load(paths: Iterable[Path]) -> Histories:
    """Return the records of the files, by space."""
    histories: Histories = {}
    for path in paths:
        _load_one(path, histories)
    return histories


def _load_one(path: Path, histories: Histories) -> None:
    attempts: dict[int, Attempt] = {}
    for record in _records(path.read_bytes()):
        if isinstance(record, Looked):
            _of(histories, record.look.space).looks.append(record.look)
        elif isinstance(record, Began):
            attempts[record.number] = attempt = Attempt(
                record.space, record.at_ns, record.writes, record.checks, record.at, record.token
            )
            attempt.alive_until_ms = record.alive_until_ms
            _of(histories, record.space).attempts.append(attempt)
        elif isinstance(record, Followed):
            _of(histories, record.page.space).pages.append(record.page)
        elif isinstance(record, DurableMark):
            _of(histories, record.note.space).notes.append(record.note)
        else:
            attempt = attempts.pop(record.number)
            attempt.ended_ns, attempt.answer = record.at_ns, record.answer


def _of(histories: Histories, space: str) -> History:
    history = histories.get(space)
    if history is None:
        history = histories[space] = History(space)
    return history


def _records(data: bytes) -> Iterator[Record]:
    decode = msgspec.msgpack.Decoder(Record).decode
    view, start = memoryview(data), 0
    while start + _LENGTH_BYTES <= len(data):
        end = start + _LENGTH_BYTES + int.from_bytes(view[start : start + _LENGTH_BYTES])
        if end > len(data):
            return
        yield decode(view[start + _LENGTH_BYTES : end])
        start = end
