"""Outcomes of retries, stored apart from the log for originals that arrive late."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from keepstate.errors import CorruptError, InvalidError, OutcomeUnknownError
from keepstate.stores.protocol import Applied, Conflict, Outcome
from keepstate.stores.sqlite.statements import Execute

KEPT_MS = 3_600_000
"""Milliseconds for which an outcome is stored."""

_Answer: TypeAlias = tuple[Literal["applied", "conflict", "unknown", "invalid"], bytes | None, int, int, str]
"""The kind, a key, a revision or version, a time, and a message, as far as the kind has them."""

_decoder = msgspec.msgpack.Decoder(_Answer)


def keep(execute: Execute, space: int, token: bytes, outcome: Outcome, now_ms: int) -> None:
    """Store a retry's outcome, and delete the space's old ones."""
    match outcome:
        case Applied(revision, at_ms):
            answer: _Answer = ("applied", None, revision, at_ms, "")
        case Conflict(key, actual):
            answer = ("conflict", key, actual, 0, "")
        case OutcomeUnknownError(message=message):
            answer = ("unknown", None, 0, 0, message)
        case InvalidError(message=message):
            answer = ("invalid", None, 0, 0, message)
        case _:  # a failure of the store does not decide the next attempt
            return
    forget(execute, space, now_ms)
    execute(
        "INSERT INTO retries (space, token, until_ms, answer) VALUES (?, ?, ?, ?)",
        (space, token, now_ms + KEPT_MS, msgspec.msgpack.encode(answer)),
    )


def forget(execute: Execute, space: int, now_ms: int) -> None:
    """Delete the space's old outcomes."""
    execute("DELETE FROM retries WHERE space = ? AND until_ms <= ?", (space, now_ms))


def find(execute: Execute, space: int, name: str, token: bytes, now_ms: int) -> Outcome | None:
    """Return the outcome stored under a token, or None.

    Raises:
        CorruptError: The stored bytes are not an outcome.
    """
    encoded: Any = execute(
        "SELECT answer FROM retries WHERE space = ? AND token = ? AND until_ms > ?", (space, token, now_ms)
    ).get
    if encoded is None:
        return None
    try:
        kind, key, number, at_ms, message = _decoder.decode(encoded)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        place = f"the outcome stored for token {token!r} of space {name!r}"
        raise CorruptError(
            f"{place} is damaged: {error}. Restore the file from a backup.", place=place, space=name
        ) from error
    if kind == "applied":
        return Applied(number, at_ms)
    if kind == "conflict":
        return Conflict(key, number)
    if kind == "unknown":
        return OutcomeUnknownError(message, space=name, token=token)
    return InvalidError(message)


def reassign(execute: Execute, space: int, to: int, now_ms: int) -> None:
    """Move a space's outcomes to the number that it has after a drop."""
    forget(execute, space, now_ms)
    execute("UPDATE retries SET space = ? WHERE space = ?", (to, space))
