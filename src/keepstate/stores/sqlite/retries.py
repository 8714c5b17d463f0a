"""What retries were answered, kept beyond the log for originals that come late."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from keepstate.errors import CorruptError, InvalidError, OutcomeUnknownError
from keepstate.stores.protocol import Applied, Conflict, Outcome
from keepstate.stores.sqlite.statements import Execute

KEPT_MS = 3_600_000
"""How long an answer is kept."""

_Answer: TypeAlias = tuple[Literal["applied", "conflict", "unknown", "invalid"], bytes | None, int, int, str]
"""The kind, and what it has of a key, a revision or version, a time, a message."""

_decoder = msgspec.msgpack.Decoder(_Answer)


def keep(execute: Execute, space: int, token: bytes, outcome: Outcome, now_ms: int) -> None:
    """Keep a retry's outcome, and forget the space's old ones."""
    match outcome:
        case Applied(revision, at_ms):
            answer: _Answer = ("applied", None, revision, at_ms, "")
        case Conflict(key, actual):
            answer = ("conflict", key, actual, 0, "")
        case OutcomeUnknownError(message=message):
            answer = ("unknown", None, 0, 0, message)
        case InvalidError(message=message):
            answer = ("invalid", None, 0, 0, message)
        case _:  # that the store could not do it says nothing of the next attempt
            return
    forget(execute, space, now_ms)
    execute(
        "INSERT INTO retries (space, token, until_ms, answer) VALUES (?, ?, ?, ?)",
        (space, token, now_ms + KEPT_MS, msgspec.msgpack.encode(answer)),
    )


def forget(execute: Execute, space: int, now_ms: int) -> None:
    """Forget the space's old answers."""
    execute("DELETE FROM retries WHERE space = ? AND until_ms <= ?", (space, now_ms))


def find(execute: Execute, space: int, name: str, token: bytes, now_ms: int) -> Outcome | None:
    """Return the outcome kept under a token, if there is one.

    Raises:
        CorruptError: What is kept is no outcome.
    """
    encoded: Any = execute(
        "SELECT answer FROM retries WHERE space = ? AND token = ? AND until_ms > ?", (space, token, now_ms)
    ).get
    if encoded is None:
        return None
    try:
        kind, key, number, at_ms, message = _decoder.decode(encoded)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        place = f"the answer kept for token {token!r} of space {name!r}"
        raise CorruptError(f"{place} is damaged: {error}", place=place, space=name) from error
    if kind == "applied":
        return Applied(number, at_ms)
    if kind == "conflict":
        return Conflict(key, number)
    if kind == "unknown":
        return OutcomeUnknownError(message, space=name, token=token)
    return InvalidError(message)


def reassign(execute: Execute, space: int, to: int, now_ms: int) -> None:
    """Hand a space's answers on to the number that it has after a drop."""
    forget(execute, space, now_ms)
    execute("UPDATE retries SET space = ? WHERE space = ?", (to, space))
