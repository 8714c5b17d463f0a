"""What the scripts answer, as outcomes and errors."""

from __future__ import annotations

from typing import Final, cast

from keepstate.errors import (
    CorruptError,
    InvalidError,
    OutcomeUnknownError,
    StorageError,
    StoreUnavailableError,
)
from keepstate.stores.admission import log_size_error
from keepstate.stores.protocol import Applied, Batch, Conflict, Outcome
from keepstate.stores.redis.wire import Reply

APPLIED: Final = b"applied"
LOST: Final = b"lost"
LARGE: Final = b"large"
CLOCK: Final = b"clock"
_CONFLICT = b"conflict"
_UNKNOWN = b"unknown"
_STAMPED = b"stamped"
_FORMAT = b"format"
_RUINS = b"ruins"
_MOVING = b"moving"


def outcome(batch: Batch, told: list[Reply], url: str) -> Outcome:
    """Return what became of a batch, from what `apply.lua` told."""
    kind, space = told[0], batch.space
    if kind == APPLIED:
        return Applied(cast("int", told[1]), cast("int", told[2]))
    if kind == _CONFLICT:
        return Conflict(cast("bytes", told[1]) or None, cast("int", told[2]))
    if kind == _UNKNOWN:
        return OutcomeUnknownError(
            f"the log of space {space!r} no longer reaches back to the first attempt of a retry, "
            "so whether that one applied cannot be told; the retry was not applied",
            url=url,
            space=space,
            token=batch.token,
        )
    if kind == _STAMPED:
        return InvalidError(f"a batch on {space!r} writes a key that one of its stamped keys becomes")
    if kind == LARGE:
        return log_size_error(space)
    damage = f"what space {space!r} at {url} keeps of a retry is damaged: it is no answer"
    return unfit(space, told, url) or CorruptError(damage, url=url, space=space)


def mark_of(told: list[Reply], nonce: bytes) -> tuple[int, bytes]:
    """Return the mark that an applied batch left; `nonce` is the batch's own."""
    if len(told) == 3:
        return cast("int", told[1]), nonce
    return cast("int", told[3]), cast("bytes", told[4])


def unfit(space: str, told: list[Reply], url: str) -> StorageError | None:
    """Return what keeps a script from its work, if it told so."""
    kind, where = told[0], f"space {space!r} at {url}"
    if kind == _MOVING:
        return StoreUnavailableError(f"{where} is being moved to another node", url=url, space=space)
    if kind == _FORMAT:
        return CorruptError(
            f"{where} has format {told[1]!r}, which this release cannot read", url=url, space=space
        )
    if kind == _RUINS:
        return CorruptError(
            f"parts of {where} are missing, or a key of its name is not keepstate's: restore it, "
            "or choose another prefix=",
            url=url,
            space=space,
        )
    return None


def unread(error: OutcomeUnknownError) -> StoreUnavailableError:
    """Return the error of a read without an answer: it changed nothing, so nothing about it is unknown."""
    return StoreUnavailableError(str(error), url=error.url, space=error.space)
