"""The messages between a store over HTTP and its server: their version, their structs, and errors.

A call is `POST PREFIX/NAME` with one MessagePack body. The header `keepstate-store` names the version of the
messages. The answer is an `Answer`, or a `Problem` with a status of 400 or more. A stream of hints is a
sequence of frames: four bytes with the length, then a list of names. An empty list shows that the line is up.

Structs are maps by name. A release speaks its own version and the one before it, so that server and clients
can be upgraded in either order. `OpenCall` and `Opened` never change, because they find the version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import get_annotations
from typing import Any, ClassVar, Final, Generic, NamedTuple, TypeAlias, TypeVar

import msgspec

from keepstate import errors
from keepstate.errors import KeepstateError, StorageError
from keepstate.stores.protocol import (
    Applied,
    Batch,
    Capabilities,
    Conflict,
)

T = TypeVar("T")

VERSION: Final = 1
"""Version of the messages."""

VERSION_HEADER: Final = "keepstate-store"
DEADLINE_HEADER: Final = "keepstate-deadline-ms"
"""Milliseconds after which the client does not wait for the answer any more."""

MEDIA_TYPE: Final = "application/msgpack"
PROBLEM_TYPE: Final = "application/problem+msgpack"

BODY_BYTES: Final = 9 << 20
"""Size of the largest body of a call: a batch of 8 MiB with its checks and the frame around it."""

NAMES: Final = 1000
"""Number of names in one call, or in one page of a listing."""

HEARTBEAT_S: Final = 5.0
"""Interval in which a stream of hints has a frame, although nothing has changed."""


def spoken() -> range:
    """Return the versions that this release speaks: its own, and the one before it."""
    return range(max(1, VERSION - 1), VERSION + 1)


class Seen(NamedTuple):
    """A mark that a client has seen, and the server's statement that its history has it.

    `vouch` names a process of the server and the losses that it had found. A server that gave it need not
    compare the mark again.
    """

    revision: int
    nonce: bytes
    vouch: bytes


# ---- calls


class Call(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A call of one method."""

    name: ClassVar[str]


class SpaceCall(Call, frozen=True, kw_only=True):
    """A call on one space, under the mark that the client has seen of it."""

    space: str
    seen: Seen | None = None


class OpenCall(Call, frozen=True, kw_only=True):
    """Ask for the store's capabilities. `versions` lists the versions that the client speaks."""

    name = "open"
    versions: list[int]


class ApplyCall(Call, frozen=True, kw_only=True):
    """Apply batches under the marks seen of their spaces."""

    name = "apply"
    batches: Sequence[Batch]
    seen: Mapping[str, Seen] = {}


class ReadCall(SpaceCall, frozen=True, kw_only=True):
    """Read entries by key."""

    name = "read"
    keys: Sequence[bytes]
    at_ms: int | None = None


class ScanCall(SpaceCall, frozen=True, kw_only=True):
    """Read a page of entries."""

    name = "scan"
    prefix: bytes
    limit: int
    after: bytes | None = None
    reverse: bool = False
    at_ms: int | None = None


class SizesCall(SpaceCall, frozen=True, kw_only=True):
    """Read the sizes of the parts."""

    name = "sizes"


class ChangesCall(SpaceCall, frozen=True, kw_only=True):
    """Read the log."""

    name = "changes"
    after: int
    limit: int


class LeapCall(SpaceCall, frozen=True, kw_only=True):
    """Read the last leap of the space's time."""

    name = "leap"


class DropCall(SpaceCall, frozen=True, kw_only=True):
    """Empty the space."""

    name = "drop"
    at: int | None = None


class TrimCall(SpaceCall, frozen=True, kw_only=True):
    """Remove the log but its last revisions."""

    name = "trim"
    keep: int = 1


class ChangedCall(Call, frozen=True, kw_only=True):
    """Read the times of the spaces' last changes."""

    name = "changed"
    spaces: Sequence[str]


class SpacesCall(Call, frozen=True, kw_only=True):
    """List spaces."""

    name = "spaces"
    limit: int
    prefix: str = ""
    after: str | None = None


class SweepCall(Call, frozen=True, kw_only=True):
    """Remove expired entries."""

    name = "sweep"
    limit: int
    prefix: str = ""


class ScrubCall(Call, frozen=True, kw_only=True):
    """Rewrite the store's files without deleted data."""

    name = "scrub"


class SettingsCall(Call, frozen=True, kw_only=True):
    """List the settings of the system under the store."""

    name = "settings"


class ClockCall(Call, frozen=True, kw_only=True):
    """Read the server's clock."""

    name = "clock"


class HintsCall(Call, frozen=True, kw_only=True):
    """Open a stream of hints for spaces."""

    name = "hints"
    spaces: Sequence[str]


# ---- answers


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An error, with the members of RFC 9457 and the facts of its class.

    With `is_lost` the store does not have the mark that the call named.
    """

    kind: str = msgspec.field(name="type")
    title: str
    status: int
    detail: str
    code: str
    retryable: bool
    facts: Mapping[str, Any] = {}
    is_lost: bool = False


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """The version to speak, and the capabilities of the store."""

    version: int
    capabilities: Capabilities


class BatchOutcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The outcome of one batch: exactly one field is set."""

    applied: Applied | None = None
    conflict: Conflict | None = None
    problem: Problem | None = None


class Outcomes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The outcomes of a call's batches in order, and the marks of their spaces."""

    outcomes: Sequence[BatchOutcome]
    seen: Mapping[str, Seen] = {}


class Answer(msgspec.Struct, Generic[T], frozen=True, omit_defaults=True):
    """The answer to a call on one space, and the mark of the space."""

    value: T
    seen: Seen | None = None


encode: Final = msgspec.msgpack.Encoder().encode

# ---- errors

_Kind: TypeAlias = type[KeepstateError]


def _classes(base: _Kind) -> dict[str, _Kind]:
    found = {base.code: base}
    for kind in base.__subclasses__():
        if kind.__module__ == errors.__name__:
            found |= _classes(kind)
    return found


CLASSES: Final[Mapping[str, _Kind]] = _classes(KeepstateError)
"""The classes of keepstate's errors by their codes."""


def facts_of(kind: _Kind) -> frozenset[str]:
    """Return the names of the facts that a class declares."""
    declared = {name for base in kind.__mro__ for name in get_annotations(base)}
    return frozenset(declared - {"code", "retryable"})


def error_of(problem: Problem, *, url: str) -> KeepstateError:
    """Return the error that a problem describes; for an unknown code a `StorageError`.

    A fact that this release does not know is left out, because a newer server may tell more.
    """
    kind = CLASSES.get(problem.code, StorageError)
    known = facts_of(kind)
    facts = {name: fact for name, fact in problem.facts.items() if name in known}
    if "url" in known:
        facts["url"] = url
    return kind(problem.detail, **facts)
