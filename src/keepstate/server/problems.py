"""Errors as HTTP: the status of each class of the error tree, and problem details of RFC 9457.

Invariant: `code` is the contract. The detail may name keys and spaces, so a request is authorised before
anything that raises one of these errors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

import msgspec
from starlette.responses import Response

from keepstate import errors

STATUS: Final[Mapping[type[errors.KeepstateError], int]] = {
    errors.KeepstateError: 500,
    errors.ConflictError: 409,
    errors.AttemptsExhaustedError: 503,
    errors.TaskFailedError: 409,
    errors.TaskCancelledError: 409,
    errors.NotFoundError: 404,
    errors.AlreadyExistsError: 409,
    errors.InvalidError: 422,
    errors.TransitionError: 409,
    errors.NotAllowedError: 403,
    errors.QuotaExceededError: 507,
    errors.NotLoadedError: 422,
    errors.PrunedError: 410,
    errors.ClosedError: 503,
    errors.UnsupportedError: 501,
    errors.MissingExtraError: 501,
    errors.StateError: 422,
    errors.StateConflictError: 409,
    errors.StorageError: 500,
    errors.StoreUnavailableError: 503,
    errors.OutcomeUnknownError: 504,
    errors.StoreFullError: 507,
    errors.ClockError: 503,
    errors.CorruptError: 500,
    errors.HistoryLostError: 410,
    errors.CompactedError: 410,
}
"""The status of a class, and of its subclasses that have none of their own."""
PROBLEM_JSON: Final = "application/problem+json"
_HIDDEN: Final = frozenset({"url", "place", "space", "conflicts"})
"""Facts that describe the machine of the server, name a space as it is stored, or hold values of any size."""
_OF_THE_MACHINE: Final = (
    errors.StoreUnavailableError,
    errors.StoreFullError,
    errors.CorruptError,
    errors.ClockError,
    errors.MissingExtraError,
)
"""Errors whose messages name files, hosts and packages of the server."""
_HANDLE: Final = re.compile(r"<(?:Keepstate|\w*Store) [^<>]*>")
"""A handle or a store in a message, with its address."""
_LOGIN: Final = re.compile(r"[a-z+]+://\S* rejects ")
"""The message of a store that rejects the server's own user or password."""
_RETRY_AFTER_S: Final = "1"


class Problem(msgspec.Struct, omit_defaults=True, frozen=True):
    """An error, as problem details of RFC 9457. Programs decide by `code`."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    retryable: bool = False
    facts: dict[str, Any] = {}


class RefusedError(Exception):
    """A request that the server refuses by itself, before or instead of a call of the store.

    Args:
        status: The status of the response.
        code: The stable code of the problem.
        detail: The reason, and what to do.
        headers: Further headers of the response.
        retryable: Whether the same request may succeed later.
    """

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        retryable: bool = False,
    ) -> None:
        super().__init__(detail)
        self.status, self.code, self.detail = status, code, detail
        self.headers, self.retryable = dict(headers or {}), retryable


def status_of(error: errors.KeepstateError) -> int:
    """Return the status of an error: that of the first of its classes that has one."""
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)


def problem_of(error: errors.KeepstateError | RefusedError, *, may_read: bool = True) -> Problem:
    """Return an error as problem details.

    Args:
        error: The error.
        may_read: The caller has the right to read. Otherwise the problem has no stored value.
    """
    if isinstance(error, RefusedError):
        title = error.code.replace("_", " ").capitalize()
        return Problem(_type_of(error.code), title, error.status, error.detail, error.code, error.retryable)
    if isinstance(error, errors.InvalidError) and _LOGIN.match(error.message):
        error = errors.StoreUnavailableError(error.message)  # no client can correct it
    status = status_of(error)
    title = error.code.replace("_", " ").capitalize()
    facts = {name: _fact(value) for name, value in error.facts.items() if name not in _HIDDEN}
    detail = _HANDLE.sub("the store", error.message)
    if isinstance(error, _OF_THE_MACHINE) or error.facts.get("url") is not None:
        detail = f"the store reported {error.code!r}; the log of the server has the details"
    if isinstance(error, errors.MergeConflictError) and not may_read:
        detail = "both sides changed one place; a key with the right 'read' previews the merge"
    return Problem(_type_of(error.code), title, status, detail, error.code, error.retryable, facts)


def unexpected_problem() -> Problem:
    """Return the problem of an error that is not one of keepstate: the log has it, the client does not."""
    return Problem(
        _type_of("internal"), "Internal", 500, "the server failed; its log has the error", "internal"
    )


def respond(problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
    """Return the response of a problem."""
    given = {"Cache-Control": "no-store", **(headers or {})}
    if problem.status == 503:
        given.setdefault("Retry-After", _RETRY_AFTER_S)
    return Response(msgspec.json.encode(problem), problem.status, given, PROBLEM_JSON)


def respond_to(error: errors.KeepstateError | RefusedError, *, may_read: bool = True) -> Response:
    """Return the response of an error, as `problem_of` tells it."""
    return respond(
        problem_of(error, may_read=may_read), error.headers if isinstance(error, RefusedError) else None
    )


def _type_of(code: str) -> str:
    return f"urn:keepstate:error:{code}"


def _fact(value: object) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Decimal) or (isinstance(value, int) and not -(1 << 53) < value < 1 << 53):
        return str(value)
    return value if value is None or isinstance(value, str | int | float) else str(value)
