"""The store protocol: ten methods, and the immutable values that they take and return.

A *space* is the unit of atomicity and order. A batch of checks and writes applies whole or not at all, and
takes the next revision of its space: revisions are dense, and a refused batch takes none. Operations on one
space are strictly serializable on every backend.

A key's first byte is its section. It decides what the log records of a change: `00` nothing (content-named
objects), `01` the key, `02` the key with its old and new value. Any other first byte is rejected.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias, TypedDict, runtime_checkable

import msgspec

from keepstate.errors import InvalidError, StorageError

LAST_REVISION: Final = 2**53 - 1
"""The largest revision that every backend represents exactly; no space reaches it."""

NONCE_BYTES: Final = 8

ABSENT: Final = 0
"""The version that a `Check` gives for a key that must be absent."""


class Durability(StrEnum):
    """The failures that an acknowledged write survives."""

    NONE = "none"
    """None: the data is gone with the process."""
    PROCESS = "process"
    """A crash of the process or server, not a power cut."""
    POWER = "power"
    """A power cut."""


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """The abilities of a store as it is configured now."""

    durability: Durability
    shared: bool
    """Whether several processes may have it open at once."""
    fails_over: bool = False
    """Whether a replica that missed acknowledged writes may take over."""


class Mark(NamedTuple):
    """A revision and its nonce."""

    revision: int
    nonce: bytes


class Leap(NamedTuple):
    """A write that advanced a space's time by more than an hour.

    Entries of `revision` and later were written after it. The space's time was `from_ms` before the write (0
    for a new space) and `to_ms` after it.
    """

    revision: int
    from_ms: int
    to_ms: int


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A key with its value, as read.

    `version` is the revision that last wrote the key, `created` the first write since it was last absent, and
    `expires_at_ms` a time on the store's clock, or None.
    """

    key: bytes
    value: bytes
    version: int
    created: int
    expires_at_ms: int | None = None


class Check(msgspec.Struct, frozen=True, gc=False):
    """A condition on a key: exactly one of its `version` (`ABSENT` for an absent key) and its `created`."""

    key: bytes
    version: int | None = None
    created: int | None = None


class Put(msgspec.Struct, frozen=True, gc=False, tag=True):
    """A write of a value.

    `ttl_ms` counts from the space's present time; None never expires. With `stamp` the store appends to `key`
    a segment made of the batch's revision and the write's index in the batch, so that appends never contend.
    """

    key: bytes
    value: bytes
    ttl_ms: int | None = None
    stamp: bool = False


class Delete(msgspec.Struct, frozen=True, gc=False, tag=True):
    """A removal of a key; an absent key stays absent."""

    key: bytes


CONTENT_NAMED: Final = "keepstate:object/"
"""Prefix of keys in a caller's key-value store whose value is determined by the key."""

Write: TypeAlias = Put | Delete
"""A write. The classes are tagged, so that a backend can store a batch in a journal and decode it again."""


class Batch(msgspec.Struct, frozen=True):
    """Checks and writes that apply together or not at all.

    Args:
        space: Name of the space, 1 to 200 bytes of UTF-8.
        writes: At most 1,000, each key once. A batch without writes is only checked.
        checks: At most 1,000, evaluated against the state before the batch.
        at: The batch applies only if the space is at exactly this revision.
        token: Names the batch (1 to 64 bytes), so that a retry is not applied twice.
        retry_of: Marks a retry: the revision of the space known before the first attempt.
        losses: The value of `DetectsLosses.losses` from before the reads that the batch builds on. If it has
            changed since, a version may be that of another writer's write, and the batch is rejected.
        alive_until_ms: Requires `at`. The earliest expiry among the entries that were read and that no check
            names. The batch is rejected from that time on, because expiry takes no revision.
    """

    space: str
    writes: Sequence[Write]
    checks: Sequence[Check] = ()
    at: int | None = None
    token: bytes | None = None
    retry_of: int | None = None
    losses: int | None = None
    alive_until_ms: int | None = None


class Applied(msgspec.Struct, frozen=True, gc=False):
    """The batch was applied, durably. `now_ms` is the space's time of that moment."""

    revision: int
    now_ms: int


class Conflict(msgspec.Struct, frozen=True, gc=False):
    """The batch was rejected: the first failing key, and the revision found there.

    `actual` is the key's version (0 if absent), or its `created` if that was checked. If `key` is None, `at`
    failed and `actual` is the revision of the space. If `actual` then equals `at`, the time `alive_until_ms`
    has come.
    """

    key: bytes | None
    actual: int


Outcome: TypeAlias = Applied | Conflict | StorageError | InvalidError
"""The result of one batch.

`InvalidError` occurs only if the store alone could detect the fault: a stamped key equal to another key of
its batch, or replaced values that are too large for the log.
"""


class Change(msgspec.Struct, frozen=True, gc=False):
    """A change of one key. `old` and `new` are recorded for section `02` only, where None means absent.

    With `expired` the key was written again, in section `02`, before the store had removed its expired
    value, which is `old`. That is two changes in one: a removal and a creation.
    """

    revision: int
    key: bytes
    deleted: bool
    old: bytes | None = None
    new: bytes | None = None
    expired: bool = False


class Changes(msgspec.Struct, frozen=True):
    """Changes in order, in whole revisions, complete up to and including `upto`."""

    items: Sequence[Change]
    upto: int
    floor: int
    """The lowest revision that may be passed as `after`."""
    nonces: Mapping[int, bytes]
    """The nonces of `after`, of each revision in `items`, and of `upto`.

    A nonce is random and drawn for each revision (for a store in memory, once in its life), so a revision
    that counts up again after a loss has another one. Revision 0 has none.
    """


class Reading(msgspec.Struct, frozen=True):
    """Entries in the order of the requested keys, None for absent ones, all of one revision.

    `now_ms` is the space's present time, even if expiry was judged at another time.
    """

    entries: Sequence[Entry | None]
    revision: int
    now_ms: int


class Page(msgspec.Struct, frozen=True):
    """A part of a scan, of one revision. It may be empty; the scan ends only when `next` is None.

    `now_ms` is the space's present time, even if expiry was judged at another time.
    """

    entries: Sequence[Entry]
    next: bytes | None
    """The value to pass as `after` for the next page."""
    revision: int
    now_ms: int
    nonce: bytes
    """The nonce of `revision`; see `Changes.nonces`."""


class PartSize(NamedTuple):
    """The number of entries of one part, and the size of their keys and values as they are stored."""

    entries: int
    size_bytes: int


class Sizes(msgspec.Struct, frozen=True):
    """The size of each part of a space that is not empty, all of one revision and without expired entries.

    `parts` is keyed by `values.key.part_of` of the entries' keys. A space with more than
    `limits.COUNTED_PARTS` parts counts the further ones under their section.
    """

    parts: Mapping[bytes, PartSize]
    revision: int
    now_ms: int


SCAN_LIMIT: Final = 256
"""Number of entries in a page of a scan, by default."""


class ScanOptions(TypedDict, total=False):
    """The options of `Store.scan`, for a wrapper that forwards them."""

    after: bytes | None
    limit: int
    reverse: bool
    at_ms: int | None


class Store(Protocol):
    """A store of bytes."""

    @property
    def capabilities(self) -> Capabilities:
        """Return the capabilities of this opened store."""
        ...

    async def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        """Apply each batch whole or not at all, and return the outcomes in the order given.

        Batches of one space apply in the order given; batches of different spaces have no order. The failure
        of a batch does not affect the others.

        Raises:
            InvalidError: A batch is malformed or over a limit. No batch of the call was applied.
            ClosedError: The store is closed, or was opened in another process or event loop.
        """
        ...

    async def read(self, space: str, keys: Sequence[bytes], *, at_ms: int | None = None) -> Reading:
        """Return at most 1,000 entries and 8 MiB of values, all of one revision.

        Args:
            space: Name of the space.
            keys: At most 1,000 keys.
            at_ms: The exact time at which expiry is judged; by default the space's present time.
        """
        ...

    async def scan(
        self,
        space: str,
        prefix: bytes,
        *,
        after: bytes | None = None,
        limit: int = SCAN_LIMIT,
        reverse: bool = False,
        at_ms: int | None = None,
    ) -> Page:
        """Return entries whose key starts with `prefix`, in key order, after `after` in scan direction.

        A page ends at `limit` entries, 8 MiB or 1,024 examined rows, whichever comes first. `at_ms` is the
        exact time at which expiry is judged; by default the space's present time.
        """
        ...

    async def sizes(self, space: str) -> Sizes:
        """Return the size of each part of a space, in one call that does not depend on its size.

        The store counts while it applies, sweeps and drops. Entries that have expired and are not swept yet
        are subtracted one by one.
        """
        ...

    async def changes(self, space: str, after: int, *, limit: int = 1024) -> Changes:
        """Return the changes after a revision, with the nonces of their revisions.

        The result ends with the revision that reaches `limit` changes or 8 MiB.

        Raises:
            CompactedError: `after` is below the log's floor.
            HistoryLostError: The space has not reached `after`.
        """
        ...

    async def wait(self, spaces: Collection[str], timeout_s: float) -> None:
        """Wait until one of the spaces may have changed, early or late; correctness never depends on it."""
        ...

    async def spaces(self, prefix: str = "", *, after: str | None = None, limit: int = 256) -> list[str]:
        """Return the names of spaces that are not empty, in the order of their UTF-8 bytes."""
        ...

    async def drop(self, space: str, *, at: int | None = None) -> bool:
        """Remove entries, log and tokens as the space's next revision; later writes continue from it.

        Return whether the space was there. A space that is not takes no revision. With `at`, a space at any
        other revision stays as it is, as if it were not there.
        """
        ...

    async def sweep(self, prefix: str = "", *, limit: int = 256) -> int:
        """Remove up to `limit` expired entries as ordinary logged changes, and return the count.

        Only spaces whose names start with `prefix` are changed.
        """
        ...

    async def close(self) -> None:
        """Stop background work, and release files and connections; a second call does nothing."""
        ...


class Listener(Protocol):
    """A receiver of hints that one of its spaces may have changed since the last wait."""

    async def wait(self, timeout_s: float) -> None:
        """Wait for the next hint, for at most `timeout_s`; a hint since the last call returns at once."""
        ...

    def close(self) -> None:
        """Stop listening."""
        ...


@runtime_checkable
class Wakeable(Protocol):
    """The extra ability of a listener to end a wait before a hint comes."""

    def wake(self) -> None:
        """Let `wait` return without a hint; callable from any thread."""
        ...


@runtime_checkable
class Listening(Protocol):
    """The extra ability of a store to remember a hint for a listener that is not waiting."""

    def listen(self, spaces: Collection[str]) -> Listener:
        """Return a listener that receives every hint from now on."""
        ...


@runtime_checkable
class DetectsLosses(Protocol):
    """The extra ability of a store whose server may lose writes to count its losses.

    Only the call that notices a loss raises `HistoryLostError`. Every other reader of the space detects by
    this number that its data is stale.
    """

    def losses(self, space: str) -> int:
        """Return the number of times that this handle found the space to have lost history."""
        ...


@runtime_checkable
class ReportsMarks(Protocol):
    """The extra ability of a store on a server to check whether a space still has a revision seen before."""

    def mark(self, space: str) -> Mark | None:
        """Return the highest mark that this handle has seen of the space, without asking the server."""
        ...

    async def changes_under(self, space: str, mark: Mark, after: int, *, limit: int = 1024) -> Changes:
        """Return the changes after a revision, if the space has this mark.

        Raises:
            CompactedError: `after` is below the log's floor.
            HistoryLostError: The space does not have the mark, or lost it. The loss is not counted for
                others.
        """
        ...


@runtime_checkable
class ReportsLeaps(Protocol):
    """The extra ability of a store to report leaps of a space's time."""

    async def last_leap(self, space: str) -> Leap | None:
        """Return the last leap of the space's time, or None without a revision; a drop keeps it."""
        ...


@runtime_checkable
class ReportsLastChange(Protocol):
    """The extra ability of a store to report the time of the last change of spaces."""

    async def changed_ms(self, spaces: Sequence[str]) -> list[int | None]:
        """Return the time of each space's last revision, by the store's clock; None if it is not known."""
        ...


@runtime_checkable
class Scrubs(Protocol):
    """The extra ability of a store to remove the bytes of deleted data from its files."""

    async def scrub(self) -> Sequence[str]:
        """Rewrite the files without deleted data. Return in words the places that may still have it."""
        ...


@runtime_checkable
class TrimsLogs(Protocol):
    """The extra ability of a store to remove the older part of a space's log."""

    async def trim(self, space: str, *, keep: int = 1) -> None:
        """Remove the log of a space, and the tokens in it, but the last revisions.

        No revision is taken. What is read at an older position raises `CompactedError`.

        Args:
            space: The name of the space.
            keep: The number of revisions that stay in the log; one at least, so that the space exists.
        """
        ...


@runtime_checkable
class HasMode(Protocol):
    """The URL and the mode of a store."""

    @property
    def url(self) -> str:
        """Return the URL of the store, without a password."""
        ...

    @property
    def mode(self) -> Literal["async", "blocking"]:
        """The mode in which the store works."""
        ...


class Setting(msgspec.Struct, frozen=True):
    """A setting of the system under a store: its value (None if unknown), and the writes that it can lose."""

    name: str
    value: str | None
    loses: str | None
    """The acknowledged writes that can be lost, and when; None if there are none."""
    mend: str
    """The remedy."""
    where: str = ""
    """The server, if a store has several."""


@runtime_checkable
class Inspected(Protocol):
    """The extra ability of a store to list the settings of its system that decide its durability."""

    async def settings(self) -> Sequence[Setting]:
        """Return the present settings."""
        ...


@runtime_checkable
class NamesObjects(Protocol):
    """The extra ability of a store to name content by a key, because a plain digest would reveal it."""

    def object_name(self, space: str, content: bytes) -> bytes | None:
        """Return the name of a content: the same for the same content in one space, and as long as a digest.

        A wrapper returns None if its store allows a digest as the name.
        """
        ...


@runtime_checkable
class ReplacesKeys(Protocol):
    """The extra ability of a store to encrypt its values again with its newest key."""

    async def rotate(self, prefix: str = "") -> int:
        """Encrypt spaces whose names start with `prefix` again; return the number of older values."""
        ...


ENCRYPTION_SPACE: Final = "keepstate:encryption"
"""The space of the record that all values of an encrypted store are bound to.

Without that record no value can be decrypted. No handle lists, reads or drops the space, even with keys.
"""


@runtime_checkable
class LacksKeys(Protocol):
    """An encrypted store that was opened without keys, so that the parts named by a value are unknown."""

    @property
    def lacks_keys(self) -> bool:
        """Return whether values cannot be decrypted."""
        ...


TOKEN_RANDOM_BYTES: Final = 16
_TOKEN_MARK: Final = b"ks1"


def make_token(revision: int, random: bytes) -> bytes:
    """Return a token that carries a revision before its batch, so any process can ask for the outcome."""
    return _TOKEN_MARK + revision.to_bytes(8, "big") + random


def question(space: str, token: bytes, retry_of: int) -> Batch:
    """Return a retry that cannot apply; its answer is the outcome of the token's batch.

    The store remembers the rejection under the token, so a late original is rejected too.
    """
    return Batch(space, (), at=LAST_REVISION, token=token, retry_of=retry_of)


def revision_in_token(token: bytes) -> int:
    """Return a revision from before the token's batch was first sent; 0 for a token made by a caller."""
    if token.startswith(_TOKEN_MARK) and len(token) == len(_TOKEN_MARK) + 8 + TOKEN_RANDOM_BYTES:
        return int.from_bytes(token[len(_TOKEN_MARK) : -TOKEN_RANDOM_BYTES], "big")
    return 0
