"""Translation of the server's and the driver's errors to keepstate's, by SQLSTATE; no other module does it.

If the server answers with an error, it has rolled back: nothing was written. If the connection was lost, a
write may have been done.
"""

from __future__ import annotations

import re
from typing import Final

from keepstate.errors import (
    CorruptError,
    InvalidError,
    OutcomeUnknownError,
    StorageError,
    StoreFullError,
    StoreUnavailableError,
)
from keepstate.stores.postgres.connection import LostConnection, RefusedStatement

_NO_SCHEMA: Final = frozenset({"3F000", "42P01", "42883", "42704"})
_NOT_PREPARED: Final = frozenset({"26000", "42P05"})
_FOREIGN: Final = frozenset({"42P06", "42P07", "42710", "42723"})
_READ_ONLY: Final = "25006"
_DENIED: Final = "42501"
_FULL: Final = frozenset({"53100"})
_CORRUPT: Final = frozenset({"XX001", "XX002"})
_PASSING: Final = frozenset({"40001", "40P01", "55P03", "57014"})
"""A serialization failure, a deadlock, a lock timeout, and a statement timeout."""
_PASSING_CLASSES: Final = ("08", "53", "57", "58")


_ADVICE: Final = re.compile(r"\s*Is the server running [^?]*\?")
_NO_LOGIN: Final = re.compile(
    r'authentication failed for user|(role|database) "[^"]*" does not exist|no pg_hba\.conf entry'
    r"|no password supplied|is not permitted to log in|permission denied for database"
)
"""libpq reports the reason for a failed connection only as text."""


def misses_schema(error: RefusedStatement) -> bool:
    """Return whether the statement named a missing table or function."""
    return error.sqlstate in _NO_SCHEMA


def misses_prepared(error: RefusedStatement) -> bool:
    """Return whether a prepared statement was missing or existed already, because a session is shared."""
    return error.sqlstate in _NOT_PREPARED


def of_refusal(error: RefusedStatement, *, url: str, schema: str) -> StorageError:
    """Return the error for a statement that the server rejected and rolled back."""
    state, said = error.sqlstate, f"{error.message} ({error.sqlstate})"
    if state in _FULL:
        return StoreFullError(f"{url} has no room left: {said}. Free space on the server.", url=url)
    if state in _CORRUPT:
        return CorruptError(f"{url} has damaged data: {said}. Restore a backup.", url=url, place=schema)
    if state == _READ_ONLY:
        return StoreUnavailableError(
            f"{url} takes no writes: {said}. It is a standby or set to read-only. Name the primary, or "
            "several hosts with target_session_attrs=read-write.",
            url=url,
            is_read_only=True,
        )
    if state == _DENIED:
        return StorageError(
            f"{url} does not let this user work in schema {schema!r}: {said}. Grant it USAGE on the schema "
            "and SELECT, INSERT, UPDATE, DELETE on its tables, and CREATE for the first open.",
            url=url,
        )
    if state in _FOREIGN:
        return StorageError(
            f"Schema {schema!r} of {url} holds something that is not keepstate's: {said}. Name another "
            "schema with the option schema.",
            url=url,
        )
    if state in _PASSING or state[:2] in _PASSING_CLASSES:
        return StoreUnavailableError(f"{url} gave up: {said}. Nothing was written. Try again.", url=url)
    return StorageError(f"{url} refused a statement of keepstate: {said}. Report this.", url=url)


def of_loss(error: LostConnection, *, url: str, may_have_written: bool) -> StoreUnavailableError:
    """Return the error for an answer that did not arrive."""
    kind = OutcomeUnknownError if may_have_written else StoreUnavailableError
    return kind(f"{url} closed the connection before it answered: {error.message}", url=url)


def of_no_connection(error: LostConnection, *, url: str) -> StoreUnavailableError | InvalidError:
    """Return the error for hosts that could not be reached, or rejected the user."""
    said = _ADVICE.sub("", error.message)
    if _NO_LOGIN.search(said):
        return InvalidError(f"{url} rejects this user or database: {said}. Correct them in the URL.")
    return StoreUnavailableError(
        f"{url} cannot be reached: {said}. Start the server, or correct the host, user or database.", url=url
    )
