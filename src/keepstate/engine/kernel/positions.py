"""Positions: opaque texts that identify a point in a space and outlive the process that read it.

A text contains a digest of its target, and a nonce or digest of the data at the position. Both are compared
when the text is used, in the read that continues from it. A history that was lost and rewritten past the same
revision is therefore detected, never followed silently.

Layout, before base64url without padding: form, kind, 8 bytes of target (a digest of the space and the stream,
document or listing), the body of the kind, and a CRC-32 of all of these. An encrypted store keys the digests,
so a text reveals none of its inputs. Only a cursor contains a key, which is plain text in the store too.
"""

from __future__ import annotations

from base64 import b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections.abc import Iterable, Sequence
from enum import IntEnum
from struct import Struct
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary
from zlib import crc32

import msgspec

from keepstate._runner import reentrant_lock
from keepstate.engine.kernel.arguments import check_text
from keepstate.engine.kernel.store_abilities import LossDetector, content_name
from keepstate.errors import CompactedError, HistoryLostError, InvalidError
from keepstate.stores.protocol import NONCE_BYTES, Entry, Mark, Store
from keepstate.values.notebooks import Table

T = TypeVar("T")

DIGEST_BYTES: Final = 8
TARGET_BYTES: Final = 8

_FORM: Final = 1
_CRC_BYTES: Final = 4
_HEAD = Struct(f">BB{TARGET_BYTES}s")
_MARK = Struct(f">Q{NONCE_BYTES}s")
_EVENT = Struct(f">Q{DIGEST_BYTES}s")
_VERSION = Struct(f">Q{DIGEST_BYTES}s")
_CHAT = Struct(">5Q")
_TRUSTED_MARKS: Final = 256
"""The largest number of cursor marks cached for each store."""
_SHOWN_CHARS: Final = 60
"""The number of characters of an invalid text that an error quotes."""


class Kind(IntEnum):
    """The kinds of positions; part of their stored form."""

    CHANGES = 1
    EVENT = 2
    VERSION = 3
    PAGE = 4
    CHAT = 5


_NAMES: Final = {
    Kind.CHANGES: "a position of a watch",
    Kind.EVENT: "the position of an event",
    Kind.VERSION: "a printed version of a document",
    Kind.PAGE: "a cursor of a listing",
    Kind.CHAT: "a position of a conversation",
}
_trusted: WeakKeyDictionary[Store, dict[tuple[str, Mark], int | None]] = WeakKeyDictionary()
"""Marks that a store of this process has issued or verified, with the number of losses known at that time."""
_trusted_lock = reentrant_lock()

_VERSION_BEGIN: Final = urlsafe_b64encode(bytes((_FORM, Kind.VERSION, 0)))[:2].decode()
_VERSION_CHARS: Final = -(-(_HEAD.size + _VERSION.size + _CRC_BYTES) * 4 // 3)

_SIZES: Final = {
    Kind.CHANGES: _MARK.size,
    Kind.EVENT: _EVENT.size,
    Kind.VERSION: _VERSION.size,
    Kind.CHAT: _CHAT.size,
}


class Page(Table[T]):
    """One page of a listing: a list of its rows.

    A cursor is an opaque text, for `after` or `before` of the same listing in any process. It is rejected by
    other listings, and if the store has lost the history that it belongs to.

    Attributes:
        next: The cursor for `after` that continues after the last row. None at the end of the listing.
        previous: The cursor for `before` that leads back to the rows before the first row. None at the
            beginning of the listing.
    """

    __slots__ = ("next", "previous")

    def __init__(
        self, rows: Iterable[T] = (), *, next: str | None = None, previous: str | None = None
    ) -> None:
        super().__init__(rows)
        self.next, self.previous = next, previous

    def __repr__(self) -> str:
        return f"{list(self)!r} (next={self.next!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _page_of, (list(self), self.next, self.previous)


def _page_of(rows: list[T], next: str | None, previous: str | None) -> Page[T]:
    return Page(rows, next=next, previous=previous)


class Range(msgspec.Struct, frozen=True):
    """The part of a listing that one page reads.

    Attributes:
        after: The key above which the scan reads, or None.
        before: The key below which the scan reads, or None.
        reverse: Whether the scan begins with the last key.
        is_back: Whether the rows come in the opposite order of the listing, because the page leads back.
        has_cursor: Whether the page begins or ends at a cursor.
    """

    after: bytes | None
    before: bytes | None
    reverse: bool
    is_back: bool
    has_cursor: bool


class Printable:
    """The printed version of one entry, computed on first use; pickled as its text."""

    __slots__ = ("_parts", "_text")

    def __init__(
        self, text: str | None, positions: Positions | None = None, entry: Entry | None = None
    ) -> None:
        self._text = text
        self._parts = None if positions is None or entry is None else (positions, entry)

    def __reduce__(self) -> tuple[type[Printable], tuple[str | None]]:
        return Printable, (self.text(),)

    def text(self) -> str | None:
        """Return the text; None for an entry that a transaction has written but not yet applied."""
        if self._text is None and self._parts is not None:
            positions, entry = self._parts
            if entry.version > 0:
                self._text = positions.of_version(entry.key, entry.version, entry.value)
            self._parts = None
        return self._text


class Positions:
    """Encodes and decodes the positions of one space.

    Args:
        store: The opened store of the space.
        space: The name of the space in the store.
        name: The name of the space in messages.
    """

    __slots__ = ("_name", "_space", "_store")

    def __init__(self, store: Store, space: str, name: str) -> None:
        self._store, self._space, self._name = store, space, name

    def digest(self, content: bytes) -> bytes:
        """Return the digest of stored bytes that positions contain."""
        return content_name(self._store, self._space, content)[:DIGEST_BYTES]

    def target(self, part: bytes = b"") -> bytes:
        """Return the bytes that identify the space, or a stream, document or listing in it."""
        space = self._space.encode()
        return self.digest(b"position\0" + len(space).to_bytes(2) + space + part)

    # ---- changes

    def of_mark(self, mark: Mark) -> str:
        """Return the position after a revision of the log."""
        return encode_position(Kind.CHANGES, self.target(), _MARK.pack(*mark))

    def mark_in(self, what: str, text: str) -> Mark:
        """Return the revision, with its nonce, that a position of a watch follows."""
        return _mark_of(*_MARK.unpack(self._body(what, text, Kind.CHANGES, b"")))

    # ---- events

    def event_in(self, what: str, text: str, stream: bytes) -> tuple[int, bytes]:
        """Return the number and the digest of the event that a position follows."""
        number, digest = _EVENT.unpack(self._body(what, text, Kind.EVENT, stream))
        return number, digest

    # ---- versions

    def of_version(self, key: bytes, version: int, stored: bytes) -> str:
        """Return the printed version of an entry."""
        return encode_position(Kind.VERSION, self.target(key), _VERSION.pack(version, self.digest(stored)))

    def version_in(self, what: str, text: str, key: bytes) -> tuple[int, bytes]:
        """Return the revision in a printed version, and the digest of the bytes stored at that revision."""
        version, digest = _VERSION.unpack(self._body(what, text, Kind.VERSION, key))
        return version, digest

    # ---- conversations

    def of_chat(self, conversation: bytes, counts: Sequence[int]) -> str:
        """Return the position in a conversation: five numbers that only its followers understand."""
        return encode_position(Kind.CHAT, self.target(conversation), _CHAT.pack(*counts))

    def chat_in(self, what: str, text: str, conversation: bytes) -> tuple[int, ...]:
        """Return the numbers in a position of a conversation."""
        return _CHAT.unpack(self._body(what, text, Kind.CHAT, conversation))

    # ---- pages

    def of_page(self, query: bytes, mark: Mark, keys: Iterable[bytes]) -> list[str]:
        """Return a cursor at each of these keys of a listing.

        Args:
            query: The bytes that identify the listing. Its cursors are rejected by every other listing.
            mark: The revision at which the keys were read, or a later one.
            keys: The keys.
        """
        self._trust(mark)
        target, read_at = self.target(query), _MARK.pack(*mark)
        return [encode_position(Kind.PAGE, target, read_at + key) for key in keys]

    async def page_in(self, what: str, text: str, prefix: bytes, query: bytes | None = None) -> bytes:
        """Return the key of a cursor of a listing, after verifying that the space has the cursor's revision.

        A cursor that this process issued or verified before costs no read, because its handle detects losses.

        Args:
            what: The name of the argument.
            text: The cursor.
            prefix: The prefix of the keys that the listing shows.
            query: The bytes that identify the listing; by default the prefix.

        Raises:
            CompactedError: The log no longer reaches back to the revision.
            HistoryLostError: The revision is missing, or was replaced by a different one.
        """
        body = self._body(what, text, Kind.PAGE, prefix if query is None else query)
        mark, key = _mark_of(*_MARK.unpack_from(body)), body[_MARK.size :]
        if not key.startswith(prefix):
            raise InvalidError(f"`{what}` is {text[:_SHOWN_CHARS]!r}; give {_NAMES[Kind.PAGE]}")
        if not self._is_trusted(mark):
            await self._compare(mark)
            self._trust(mark)
        return key

    async def range_in(
        self, prefix: bytes, query: bytes, *, after: str | None, before: str | None, reverse: bool
    ) -> Range:
        """Return the part of a listing that follows the cursor `after`, or leads to the cursor `before`.

        Raises:
            InvalidError: Both cursors were given, or one belongs to another listing.
        """
        if after is not None and before is not None:
            raise InvalidError("`after` and `before` were both given; a page begins or ends at one cursor")
        if after is None and before is None:
            return Range(None, None, reverse, is_back=False, has_cursor=False)
        if after is not None:
            key = await self.page_in("after", check_text("after", after), prefix, query)
        else:
            key = await self.page_in("before", check_text("before", before), prefix, query)
        is_back = before is not None
        backwards = reverse != is_back
        low, high = (None, key) if backwards else (key, None)
        return Range(low, high, backwards, is_back, has_cursor=True)

    def page_of(
        self, query: bytes, read: Range, limit: int, rows: Sequence[tuple[bytes, T]], mark: Mark
    ) -> Page[T]:
        """Return a page of at most `limit` rows.

        Args:
            query: The bytes that identify the listing.
            read: The part of the listing that was read.
            limit: The largest number of rows.
            rows: Each row with its key, in the order of the scan. A row beyond `limit` shows that there are
                more.
            mark: The revision at which the last row was read.
        """
        more, shown = len(rows) > limit, list(rows[:limit])
        if read.is_back:
            shown.reverse()
        if not shown:
            return Page()
        first, last = self.of_page(query, mark, (shown[0][0], shown[-1][0]))
        return Page(
            (row for _, row in shown),
            next=last if more or read.is_back else None,
            previous=first if (more if read.is_back else read.has_cursor) else None,
        )

    async def _compare(self, mark: Mark) -> None:
        try:
            changes = await self._store.changes(self._space, mark.revision, limit=1)
        except CompactedError as error:
            raise CompactedError(
                f"the log of space {self._name!r} no longer reaches back to revision {mark.revision} of this "
                "cursor, so it cannot be verified. List again from the start",
                space=self._name,
                floor=error.floor,
            ) from error
        if changes.nonces[mark.revision] != mark.nonce:
            raise self.lost(mark.revision, f"revision {mark.revision}")

    def _trust(self, mark: Mark) -> None:
        with _trusted_lock:
            marks = _trusted.setdefault(self._store, {})
            marks.pop((self._space, mark), None)
            marks[self._space, mark] = self._losses()
            if len(marks) > _TRUSTED_MARKS:
                del marks[next(iter(marks))]

    def _is_trusted(self, mark: Mark) -> bool:
        with _trusted_lock:
            marks = _trusted.get(self._store, {})
            return (self._space, mark) in marks and marks[self._space, mark] == self._losses()

    def _losses(self) -> int | None:
        return LossDetector(self._store, self._space, self._name).known

    def _body(self, what: str, text: str, kind: Kind, part: bytes) -> bytes:
        actual, target, body = _decode(what, text, kind)
        if actual is not kind:
            raise InvalidError(f"`{what}` is {_NAMES[actual]}; give {_NAMES[kind]}")
        if target != self.target(part):
            raise InvalidError(
                f"`{what}` is {_NAMES[kind]}, but of another space, stream, document or listing; give one of "
                f"this call in space {self._name!r}"
            )
        return body

    def lost(self, revision: int, what: str) -> HistoryLostError:
        """Return the error for a position whose history is gone."""
        return HistoryLostError(
            f"space {self._name!r} no longer has {what}, which this position follows: the store lost "
            "acknowledged writes (a restored backup, or a failover). Read the data again, and continue from "
            "a current position",
            space=self._name,
            revision=revision,
        )


def _mark_of(revision: int, nonce: bytes) -> Mark:
    """Return a decoded mark. Revision 0, of a space without a batch, has no nonce."""
    return Mark(revision, nonce if revision else b"")


def encode_event_position(target: bytes, number: int, digest: bytes) -> str:
    """Encode the position of an event."""
    return encode_position(Kind.EVENT, target, _EVENT.pack(number, digest))


def encode_position(kind: Kind, target: bytes, body: bytes) -> str:
    """Encode a position as text."""
    data = _HEAD.pack(_FORM, kind, target) + body
    return urlsafe_b64encode(data + crc32(data).to_bytes(_CRC_BYTES)).rstrip(b"=").decode()


def _decode(what: str, text: str, wanted: Kind) -> tuple[Kind, bytes, bytes]:
    """Decode a position into its kind, target and body."""
    wrong = _not_one(what, text, wanted)
    try:
        data = b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), b"-_", validate=True)
    except (Base64Error, ValueError) as error:
        raise wrong from error
    body, crc = data[:-_CRC_BYTES], data[-_CRC_BYTES:]
    if len(body) < _HEAD.size or crc32(body).to_bytes(_CRC_BYTES) != crc:
        raise wrong
    form, number, target = _HEAD.unpack_from(body)
    if form != _FORM:
        raise InvalidError(f"`{what}` is a position of form {form}, which this release cannot read")
    try:
        kind = Kind(number)
    except ValueError as error:
        raise wrong from error
    rest = body[_HEAD.size :]
    if len(rest) != _SIZES.get(kind, max(len(rest), _MARK.size + 1)):
        raise wrong
    return kind, target, rest


def _not_one(what: str, text: str, wanted: Kind) -> InvalidError:
    """Return the error for a text that is not a position of any kind."""
    shown = f"`{what}` is {text[:_SHOWN_CHARS]!r}"
    if wanted is not Kind.VERSION:
        return InvalidError(f"{shown}, which is not a position; give {_NAMES[wanted]}")
    return InvalidError(
        f"{shown}, which is not a printed version. Give the `printed_version` of an entry, which has "
        f"{_VERSION_CHARS} characters and begins with {_VERSION_BEGIN!r}. Its `version` is an int, and is "
        "valid within one handle only"
    )
