"""Positions: opaque texts that name a place in a space and outlive the process that read it.

A text carries what it is a position of, and a nonce or digest of what stood there. Both are compared when the
text is used, in the read that goes on from it, so that a history that was lost in between, and written anew
up to and beyond the same revision, is noticed and never followed in silence.

Layout, before base64url without padding: form, kind, 8 bytes that name the place (a digest of space and
stream, document or listing), the body of the kind, and a CRC-32 of all that. An encrypted store keys the
digests, so that a text tells nobody what it was made of; only a cursor contains a key, which is in the clear
in the store too.
"""

from __future__ import annotations

from base64 import b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections.abc import Iterable
from enum import IntEnum
from struct import Struct
from typing import Final
from weakref import WeakKeyDictionary
from zlib import crc32

from keepstate._runner import reentrant_lock
from keepstate.engine.kernel.content_names import content_name
from keepstate.engine.kernel.loss_detector import LossDetector
from keepstate.errors import CompactedError, HistoryLostError, InvalidError
from keepstate.stores.protocol import NONCE_BYTES, Entry, Mark, Store

DIGEST_BYTES: Final = 8
PLACE_BYTES: Final = 8

_FORM: Final = 1
_CRC_BYTES: Final = 4
_HEAD = Struct(f">BB{PLACE_BYTES}s")
_MARK = Struct(f">Q{NONCE_BYTES}s")
_EVENT = Struct(f">Q{DIGEST_BYTES}s")
_VERSION = Struct(f">Q{DIGEST_BYTES}s")
_TRUSTED_MARKS: Final = 256
"""How many marks of cursors are remembered for each store."""
_SHOWN: Final = 60
"""How much of a wrong text an error repeats."""


class Kind(IntEnum):
    """The kinds of positions; part of their stored form."""

    CHANGES = 1
    EVENT = 2
    VERSION = 3
    PAGE = 4


_NAMES: Final = {
    Kind.CHANGES: "a position of a watch",
    Kind.EVENT: "the position of an event",
    Kind.VERSION: "a printed version of a document",
    Kind.PAGE: "a cursor of a listing",
}
_trusted: WeakKeyDictionary[Store, dict[tuple[str, Mark], int | None]] = WeakKeyDictionary()
"""Marks that a store of this process has given or compared, with the number of losses known at that time."""
_trusted_lock = reentrant_lock()

_SIZES: Final = {Kind.CHANGES: _MARK.size, Kind.EVENT: _EVENT.size, Kind.VERSION: _VERSION.size}


class Printable:
    """The printed version of one entry, made when it is asked for; pickles as its text."""

    __slots__ = ("_parts", "_text")

    def __init__(
        self, text: str | None, positions: Positions | None = None, entry: Entry | None = None
    ) -> None:
        self._text = text
        self._parts = None if positions is None or entry is None else (positions, entry)

    def __reduce__(self) -> tuple[type[Printable], tuple[str | None]]:
        return Printable, (self.text(),)

    def text(self) -> str | None:
        """Return the text; None for what a transaction has written and not yet applied."""
        if self._text is None and self._parts is not None:
            positions, entry = self._parts
            if entry.version > 0:
                self._text = positions.of_version(entry.key, entry.version, entry.value)
            self._parts = None
        return self._text


class Positions:
    """Writes and reads the positions of one space.

    Args:
        store: The opened store of the space.
        space: The name of the space in the store.
        name: The name of the space in messages.
    """

    __slots__ = ("_name", "_space", "_store")

    def __init__(self, store: Store, space: str, name: str) -> None:
        self._store, self._space, self._name = store, space, name

    def digest(self, content: bytes) -> bytes:
        """Return the digest of stored bytes that positions carry."""
        return content_name(self._store, self._space, content)[:DIGEST_BYTES]

    def place(self, part: bytes = b"") -> bytes:
        """Return the bytes that name the space, or a stream, document or listing in it."""
        return self.digest(b"position\0" + self._space.encode() + b"\0" + part)

    # ---- changes

    def of_mark(self, mark: Mark) -> str:
        """Return the position behind a revision of the log."""
        return encode_position(Kind.CHANGES, self.place(), _MARK.pack(*mark))

    def mark_in(self, what: str, text: str) -> Mark:
        """Return the revision, with its nonce, that a position of a watch stands behind."""
        revision, nonce = _MARK.unpack(self._body(what, text, Kind.CHANGES, b""))
        return Mark(revision, nonce if revision else b"")

    # ---- events

    def event_in(self, what: str, text: str, stream: bytes) -> tuple[int, bytes]:
        """Return the number of the event that a position stands behind, and the event's digest."""
        number, digest = _EVENT.unpack(self._body(what, text, Kind.EVENT, stream))
        return number, digest

    # ---- versions

    def of_version(self, key: bytes, version: int, stored: bytes) -> str:
        """Return the printed version of an entry."""
        return encode_position(Kind.VERSION, self.place(key), _VERSION.pack(version, self.digest(stored)))

    def version_in(self, what: str, text: str, key: bytes) -> tuple[int, bytes]:
        """Return the revision in a printed version, and the digest of what was stored then."""
        version, digest = _VERSION.unpack(self._body(what, text, Kind.VERSION, key))
        return version, digest

    # ---- pages

    def of_page(self, prefix: bytes, mark: Mark, keys: Iterable[bytes]) -> list[str]:
        """Return cursors behind keys that were read under a prefix.

        Args:
            prefix: Names the listing.
            mark: The revision at which the keys were read, or a later one.
            keys: The keys.
        """
        self._trust(mark)
        place, read_at = self.place(prefix), _MARK.pack(*mark)
        return [encode_position(Kind.PAGE, place, read_at + key) for key in keys]

    async def page_in(self, what: str, text: str, prefix: bytes) -> bytes:
        """Return the key of a cursor of a listing, once the space is known to have the cursor's revision.

        A cursor that this process has given or compared costs no read: its handle notices losses itself.

        Raises:
            CompactedError: The log no longer reaches back to the revision.
            HistoryLostError: The space no longer has the revision, or has another one in its place.
        """
        body = self._body(what, text, Kind.PAGE, prefix)
        mark, key = Mark(*_MARK.unpack_from(body)), body[_MARK.size :]
        if not key.startswith(prefix):
            raise InvalidError(f"`{what}` is {text[:_SHOWN]!r}; give {_NAMES[Kind.PAGE]}")
        if not self._is_trusted(mark):
            await self._compare(mark)
            self._trust(mark)
        return key

    async def _compare(self, mark: Mark) -> None:
        try:
            changes = await self._store.changes(self._space, mark.revision, limit=1)
        except CompactedError as error:
            raise CompactedError(
                f"the log of space {self._name!r} no longer reaches back to revision {mark.revision}, at "
                "which this cursor was read, so its history cannot be compared; list again from the start",
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
        told, place, body = _opened(what, text, _NAMES[kind])
        if told is not kind:
            raise InvalidError(f"`{what}` is {_NAMES[told]}; give {_NAMES[kind]}")
        if place != self.place(part):
            raise InvalidError(f"`{what}` is {_NAMES[kind]}, but not of this place in space {self._name!r}")
        return body

    def lost(self, revision: int, what: str) -> HistoryLostError:
        """Return the error for a position whose history is gone."""
        return HistoryLostError(
            f"space {self._name!r} no longer has {what} that this position stands behind: the store lost "
            "acknowledged writes (a restored backup, or a failover), and others wrote after; read again what "
            "was read there, and go on from a position of now",
            space=self._name,
            revision=revision,
        )


def encode_event_position(place: bytes, number: int, digest: bytes) -> str:
    """Return the position of an event."""
    return encode_position(Kind.EVENT, place, _EVENT.pack(number, digest))


def encode_position(kind: Kind, place: bytes, body: bytes) -> str:
    """Return a position as text."""
    data = _HEAD.pack(_FORM, kind, place) + body
    return urlsafe_b64encode(data + crc32(data).to_bytes(_CRC_BYTES)).rstrip(b"=").decode()


def _opened(what: str, text: str, wanted: str) -> tuple[Kind, bytes, bytes]:
    """Return the kind, place and body of a position."""
    wrong = InvalidError(f"`{what}` is {text[:_SHOWN]!r}, which is not a position; give {wanted}")
    try:
        data = b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), b"-_", validate=True)
    except (Base64Error, ValueError) as error:
        raise wrong from error
    body, crc = data[:-_CRC_BYTES], data[-_CRC_BYTES:]
    if len(body) < _HEAD.size or crc32(body).to_bytes(_CRC_BYTES) != crc:
        raise wrong
    form, number, place = _HEAD.unpack_from(body)
    if form != _FORM:
        raise InvalidError(f"`{what}` is a position of form {form}, which this release cannot read")
    try:
        kind = Kind(number)
    except ValueError as error:
        raise wrong from error
    rest = body[_HEAD.size :]
    if len(rest) != _SIZES.get(kind, max(len(rest), _MARK.size + 1)):
        raise wrong
    return kind, place, rest
