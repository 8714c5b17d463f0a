"""The store protocol: nine methods and the immutable values that they take and give.

A *space* is the unit of atomicity and order. A batch of checks and writes applies whole or not at all, and
takes the next revision of its space: revisions are dense, and a refused batch takes none. Operations on one
space are strictly serializable on every backend.

A key's first byte is its section, which says what the log keeps of a change: `00` nothing (content-named
objects), `01` the key, `02` the key with its old and new value. Any other first byte is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

import msgspec

from keepstate.errors import InvalidError, StorageError

LAST_REVISION: Final = 2**53 - 1
"""The largest that every backend counts to exactly; no space reaches it."""

NONCE_BYTES: Final = 8

ABSENT: Final = 0
"""The version that a `Check` gives for a key that must be absent."""


class Durability(StrEnum):
    """What an acknowledged write survives."""

    NONE = "none"
    """Nothing: it is gone with the process."""
    PROCESS = "process"
    """A crash of the process or server, not a power cut."""
    POWER = "power"
    """A power cut."""


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a store really offers, as it is configured now."""

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
    """A write that moved a space's time on by more than an hour.

    Entries of `revision` and later were written since. The space's time was `from_ms` before, 0 for a new
    space, and `to_ms` after.
    """

    revision: int
    from_ms: int
    to_ms: int


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A key's value as a read found it.

    `version` is the revision that last wrote it, `created` the first write since it was last absent,
    `expires_at_ms` a time on the store's clock, or None.
    """

    key: bytes
    value: bytes
    version: int
    created: int
    expires_at_ms: int | None = None


class Check(msgspec.Struct, frozen=True, gc=False):
    """What must hold of a key: its `version` (`ABSENT` for none) or its `created`, exactly one."""

    key: bytes
    version: int | None = None
    created: int | None = None


class Put(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Writes a value.

    `ttl_ms` counts from the space's now; None never expires. With `stamp` the store appends to `key` a
    segment made of the batch's revision and the write's index in the batch, so that appends never contend.
    """

    key: bytes
    value: bytes
    ttl_ms: int | None = None
    stamp: bool = False


class Delete(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Removes a key; an absent one stays absent."""

    key: bytes


CONTENT_NAMED: Final = "keepstate:object/"
"""What the keys in a caller's key-value store start with whose value follows from the key."""

Write: TypeAlias = Put | Delete
"""Tagged, so that a backend can keep a batch in a journal and decode it again as `Batch`."""


class Batch(msgspec.Struct, frozen=True):
    """Checks and writes that apply together or not at all.

    Args:
        space: Where; 1 to 200 bytes of UTF-8.
        writes: At most 1,000, each key once; none makes a batch that is only judged.
        checks: At most 1,000, judged against the state before the batch.
        at: Applies only if the space is at exactly this revision.
        token: Names the batch (1 to 64 bytes), so that a retry is not applied twice.
        retry_of: Marks a retry; the revision of the space known before the first attempt.
        losses: What `DetectsLosses.losses` told before that was read what the batch builds on. If it has
            changed since, a version may be that of a stranger's write, and the batch is refused.
        alive_until_ms: Goes with `at`: the least expiry among the entries that were read and that no check
            names. The batch is refused from that time on, because expiry takes no revision.
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
    """The batch holds, durably. `now_ms` is the space's time when it applied."""

    revision: int
    now_ms: int


class Conflict(msgspec.Struct, frozen=True, gc=False):
    """The batch was refused: the first failing key and what was found there.

    `actual` is the key's version (0 if absent), or its `created` where that was checked. With `key` None the
    batch's `at` failed and `actual` is the revision of the space; if `actual` equals `at`, the time
    `alive_until_ms` has come.
    """

    key: bytes | None
    actual: int


Outcome: TypeAlias = Applied | Conflict | StorageError | InvalidError
"""What became of one batch.

`InvalidError` stands only where the store alone could see it: a stamped key equal to another key of its
batch.
"""


class Change(msgspec.Struct, frozen=True, gc=False):
    """One key changed. `old` and `new` are kept for section `02` only; None there means absent.

    With `expired` the key was written again, in section `02`, before the store had removed its expired
    value, which is `old`: two changes in one, a removal and a creation.
    """

    revision: int
    key: bytes
    deleted: bool
    old: bytes | None = None
    new: bytes | None = None
    expired: bool = False


class Changes(msgspec.Struct, frozen=True):
    """Changes in order, whole revisions, complete up to and including `upto`."""

    items: Sequence[Change]
    upto: int
    floor: int
    """The lowest revision after which changes can be asked for."""
    nonces: Mapping[int, bytes]
    """The nonces of the revision asked after, of each revision in `items`, and of `upto`.

    A nonce is random and drawn for each revision (for a store in memory, once in its life), so a revision
    that counts up again after a loss has another one. Revision 0 has none.
    """


class Reading(msgspec.Struct, frozen=True):
    """Entries in the order of the keys asked, None for absent, all of one revision.

    `now_ms` is the space's present time, also where expiry was judged at another one.
    """

    entries: Sequence[Entry | None]
    revision: int
    now_ms: int


class Page(msgspec.Struct, frozen=True):
    """A part of a scan, of one revision. It may be empty; only `next` None ends the scan.

    `now_ms` is the space's present time, also where expiry was judged at another one.
    """

    entries: Sequence[Entry]
    next: bytes | None
    """What to give as `after` for the following page."""
    revision: int
    now_ms: int
    nonce: bytes
    """The nonce of `revision`; see `Changes.nonces`."""


class Store(Protocol):
    """Where bytes are kept, and only that."""

    @property
    def capabilities(self) -> Capabilities:
        """Return what this opened store offers."""
        ...

    async def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        """Apply each batch whole or not at all, and answer in the order given.

        Batches of one space apply in the order given; batches of different spaces have no order. A batch's
        failure is its own.

        Raises:
            InvalidError: A batch is malformed or over a limit; nothing of the call was applied.
            ClosedError: The store is closed, or was opened in another process or event loop.
        """
        ...

    async def read(self, space: str, keys: Sequence[bytes], *, at_ms: int | None = None) -> Reading:
        """Return at most 1,000 entries and 8 MiB of values, all of one revision.

        Args:
            space: Where.
            keys: Which.
            at_ms: The time at which expiry is judged, exactly; without it the space's present time.
        """
        ...

    async def scan(
        self,
        space: str,
        prefix: bytes,
        *,
        after: bytes | None = None,
        limit: int = 256,
        reverse: bool = False,
        at_ms: int | None = None,
    ) -> Page:
        """Return entries whose key starts with `prefix`, in key order, after `after` in scan direction.

        A page ends at `limit` entries, 8 MiB or 1,024 rows looked at, whichever comes first. `at_ms` is the
        time at which expiry is judged, exactly; without it the space's present time.
        """
        ...

    async def changes(self, space: str, after: int, *, limit: int = 1024) -> Changes:
        """Return what changed after a revision, and the nonces of the revisions that it names.

        An answer ends with the revision that reaches `limit` changes or 8 MiB.

        Raises:
            CompactedError: `after` is below the log's floor.
            HistoryLostError: The space has not reached `after`.
        """
        ...

    async def wait(self, spaces: Collection[str], timeout_s: float) -> None:
        """Return when one of the spaces may have changed, early or late; correctness never depends on it."""
        ...

    async def spaces(self, prefix: str = "", *, after: str | None = None, limit: int = 256) -> list[str]:
        """Return names of spaces that hold something, in the order of their UTF-8 bytes."""
        ...

    async def drop(self, space: str) -> None:
        """Remove entries, log and tokens as the space's next revision, from which it may continue."""
        ...

    async def sweep(self, prefix: str = "", *, limit: int = 256) -> int:
        """Remove up to `limit` expired entries as ordinary logged changes, and return how many.

        Touches only spaces whose names start with `prefix`.
        """
        ...

    async def close(self) -> None:
        """End what runs beside the caller and let go of files and connections; twice is once."""
        ...


class Listener(Protocol):
    """Hears that one of its spaces may have changed since the last time it was asked."""

    async def wait(self, timeout_s: float) -> None:
        """Return on the next hint, at once if one came since the last call, or after `timeout_s`."""
        ...

    def close(self) -> None:
        """Stop listening."""
        ...


@runtime_checkable
class Listening(Protocol):
    """The extra ability of a store to hold a hint for a listener that is not waiting just then."""

    def listen(self, spaces: Collection[str]) -> Listener:
        """Return a listener that hears every hint from now on."""
        ...


@runtime_checkable
class DetectsLosses(Protocol):
    """The extra ability of a store whose server may forget to say how often it did.

    The call that notices a loss raises `HistoryLostError`, and only that one: by this number everybody else
    who has read something of the space learns that it no longer holds.
    """

    def losses(self, space: str) -> int:
        """Return in how many cases this handle found that the space had lost history."""
        ...


@runtime_checkable
class TellsMarks(Protocol):
    """The extra ability of a store on a server to tell whether a space has a revision that was seen once."""

    def mark(self, space: str) -> Mark | None:
        """Return the highest mark that this handle has seen of the space; asks nobody."""
        ...

    async def changes_under(self, space: str, mark: Mark, after: int, *, limit: int = 1024) -> Changes:
        """Return what changed after a revision, if the space has this mark.

        Raises:
            CompactedError: `after` is below the log's floor.
            HistoryLostError: The space has not, or no longer, the mark. Nobody else is told.
        """
        ...


@runtime_checkable
class TellsLeaps(Protocol):
    """The extra ability of a store to tell when the time of a space leapt."""

    async def last_leap(self, space: str) -> Leap | None:
        """Return the last leap of the space's time, None for a space without a revision; a drop keeps it."""
        ...


@runtime_checkable
class HasMode(Protocol):
    """What a store tells of where it may be used."""

    @property
    def url(self) -> str:
        """Return what names the store, without a password."""
        ...

    @property
    def mode(self) -> Literal["async", "blocking"]:
        """The colour of code that it works in."""
        ...


class Setting(msgspec.Struct, frozen=True):
    """A setting of what stands under a store: its value (None if it is not told), and what it can lose."""

    name: str
    value: str | None
    loses: str | None
    """Which acknowledged writes, and when; None if it loses nothing."""
    mend: str
    """What to do about it."""
    where: str = ""
    """Which server, where a store has several."""


@runtime_checkable
class Inspected(Protocol):
    """The extra ability of a store to tell which settings beneath it decide what it keeps."""

    async def settings(self) -> Sequence[Setting]:
        """Return the settings as they are now."""
        ...


@runtime_checkable
class NamesObjects(Protocol):
    """The extra ability of a store to name what is named by its content, where a digest would tell it."""

    def object_name(self, space: str, content: bytes) -> bytes | None:
        """Return the name: the same for the same content in one space, as long as a digest.

        None is what a wrapper tells where its store would let a digest be the name.
        """
        ...


@runtime_checkable
class ReplacesKeys(Protocol):
    """The extra ability of a store to encrypt again, under its newest key."""

    async def rotate(self, prefix: str = "") -> int:
        """Return how many values stood under an older key, in spaces whose names start with `prefix`."""
        ...


ENCRYPTION_SPACE: Final = "keepstate:encryption"
"""The space of the record that all values of an encrypted store are bound to: without it none opens again.

No handle lists it, reads it or drops it, with keys or without.
"""


@runtime_checkable
class LacksKeys(Protocol):
    """What an encrypted store is to who opened it without keys: nothing shows which parts a value names."""

    @property
    def lacks_keys(self) -> bool:
        """Whether values cannot be told."""
        ...


TOKEN_RANDOM_BYTES: Final = 16
_TOKEN_MARK: Final = b"ks1"


def token_after(revision: int, random: bytes) -> bytes:
    """Return a token that carries a revision before its batch, for any process to ask for its outcome."""
    return _TOKEN_MARK + revision.to_bytes(8, "big") + random


def question(space: str, token: bytes, retry_of: int) -> Batch:
    """Return a retry that cannot apply: it is answered what became of the token's batch.

    Its refusal is kept under the token, and meets a late original too.
    """
    return Batch(space, (), at=LAST_REVISION, token=token, retry_of=retry_of)


def known_before(token: bytes) -> int:
    """Return a revision before the token's batch was first sent; 0 for a token of a caller's own."""
    if token.startswith(_TOKEN_MARK) and len(token) == len(_TOKEN_MARK) + 8 + TOKEN_RANDOM_BYTES:
        return int.from_bytes(token[len(_TOKEN_MARK) : -TOKEN_RANDOM_BYTES], "big")
    return 0
