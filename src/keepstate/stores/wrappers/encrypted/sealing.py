"""One value to sealed bytes and back: AES-256-GCM, bound to the place where the value stands.

```
first byte · key id (8) · day (4) · terms (1) · [version (8)] · [ttl (8)] · [created (8)] · nonce (12) ·
    ciphertext · tag (16)
```

The day and the space make a key of their own out of the ring's (HKDF), so that no key seals more than a
day's values of one space. Nonces are random, 96 bits: two are alike with a probability below 2^-32 up to 2^32
values under one key (NIST SP 800-38D), which is 49,700 a second in one space for a day.

Not hidden are keys, sizes and times. What stands before the nonce, the store's id, the space and the key are
authenticated with the value. A stamped key is not known when its value is sealed: such a value is bound to
what stands before the stamp and to its index in the batch. The first byte says which, and whether the value
was sealed again later: then the version of its real write follows. Frozen: sealed values are read for ever.

The terms say what the writer meant of the row: that it expires, with the time to live in milliseconds (bit
1), that this write creates it (bit 2), or at which revision it was created (bit 4). The store sets expiry and
creation after sealing, so the terms do not hold them: a reader compares the row with the terms.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from keepstate._clock import Clock
from keepstate.errors import CorruptError, MissingExtraError
from keepstate.stores.protocol import Entry
from keepstate.stores.wrappers.encrypted.ring import KEY_ID_BYTES, KeyRing
from keepstate.values import codec
from keepstate.values.key import STAMP_SIZE, STAMP_TAG

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_WRITTEN: Final = codec.SEALED[0]
_STAMPED: Final = _WRITTEN | 0x40
_AGAIN: Final = _WRITTEN | 0x80

_DAY_MS: Final = 24 * 3600 * 1000
_DAY_BYTES: Final = 4
_NONCE_BYTES: Final = 12
_TAG_BYTES: Final = 16
_NUMBER_BYTES: Final = 8
_EXPIRES, _CREATES, _CREATED = 1, 2, 4
"""The bits of the terms."""
_DERIVED_KEPT: Final = 4096

STORE_ID_BYTES: Final = 16
_HEAD_BYTES: Final = 1 + KEY_ID_BYTES + _DAY_BYTES + 1
OVERHEAD_BYTES: Final = _HEAD_BYTES + _NONCE_BYTES + _TAG_BYTES
"""How much larger a value is that was written once and never expires."""
MOST_OVERHEAD_BYTES: Final = OVERHEAD_BYTES + 3 * _NUMBER_BYTES
THIS_WRITE: Final = 0
"""In terms: the row is created by the write of the value itself."""


class Terms(NamedTuple):
    """The writer's intent for the row of a value.

    Attributes:
        ttl_ms: The time to live that was asked; None for a row that never expires.
        created: The revision that the row was created at, `THIS_WRITE`, or None if the writer named neither.
    """

    ttl_ms: int | None = None
    created: int | None = None


NO_TERMS: Final = Terms()


class Opened(NamedTuple):
    """What was sealed.

    `version` is that of the real write of a value that was sealed again, else None.
    """

    value: bytes
    key_id: bytes
    version: int | None
    terms: Terms

    def version_of(self, entry: Entry) -> int:
        """Return the version to tell of the entry that the value was found in."""
        return entry.version if self.version is None else self.version

    def refuse_altered(self, space: str, entry: Entry, now_ms: int) -> None:
        """Raise `CorruptError` if the row is not as its writer can have meant it.

        Args:
            space: Where.
            entry: The row, with the sealed value.
            now_ms: The space's time, no earlier than the row was read.
        """
        ttl_ms, created = self.terms
        if (ttl_ms is None) != (entry.expires_at_ms is None):
            meant = "never to expire" if ttl_ms is None else f"to expire {ttl_ms} ms after its write"
            raise _damaged(space, entry.key, f"was written {meant}, and its expiry was changed")
        if ttl_ms is not None and entry.expires_at_ms is not None and entry.expires_at_ms - now_ms > ttl_ms:
            # It was written by now, so that no more than the time to live can be left.
            raise _damaged(space, entry.key, f"has more than its {ttl_ms} ms to live; its expiry was changed")
        version = self.version_of(entry)
        if created is not None and entry.created != (created or version):
            raise _damaged(
                space, entry.key, f"was not created at revision {entry.created}; its row was changed"
            )


class Sealer:
    """Seals and opens the values of one store.

    Args:
        ring: The keys.
        store_id: What tells this store from others.
        clock: Time and randomness of this process.

    Raises:
        MissingExtraError: cryptography is not installed.
    """

    def __init__(self, ring: KeyRing, store_id: bytes, clock: Clock) -> None:
        self._ring, self._store_id, self._clock = ring, store_id, clock
        self._make, self._wrong = _aes_gcm()
        self._cipher = lru_cache(maxsize=_DERIVED_KEPT)(self._made)

    def _made(self, key_id: bytes, day: bytes, space: str) -> AESGCM:
        purpose = b"keepstate seal 1\x00" + day + space.encode()
        return self._make(self._ring.derived(key_id, self._store_id, purpose))

    def seal(
        self,
        space: str,
        key: bytes,
        value: bytes,
        *,
        terms: Terms = NO_TERMS,
        index: int | None = None,
        version: int | None = None,
    ) -> bytes:
        """Return the value sealed for one place.

        Args:
            space: Where.
            key: Under which key; without the stamp, if that comes with the write.
            value: What.
            terms: The writer's intent for the row.
            index: Of a write that gets a stamp, where it stands in its batch.
            version: Of a value that is sealed again, the revision that really wrote it.
        """
        kind = _WRITTEN if version is None else _AGAIN
        day = (self._clock.now_ms() // _DAY_MS).to_bytes(_DAY_BYTES)
        head = bytes((kind if index is None else _STAMPED,)) + self._ring.newest_id + day
        head += _encoded(terms, version)
        nonce = self._clock.random_bytes(_NONCE_BYTES)
        cipher = self._cipher(self._ring.newest_id, day, space)
        return head + nonce + cipher.encrypt(nonce, value, self._bound(head, space, key, index))

    def open(self, space: str, key: bytes, sealed: bytes) -> Opened:
        """Return what was sealed for this place.

        Raises:
            CorruptError: It was not sealed, or under no key of the ring, for another place, or has changed.
        """
        kind = sealed[0] if sealed else None
        size = _head_size(sealed)
        if kind not in (_WRITTEN, _STAMPED, _AGAIN) or len(sealed) < size + _NONCE_BYTES + _TAG_BYTES:
            raise _damaged(space, key, "is not sealed; it was written without encryption, or is damaged")
        head = sealed[:size]
        key_id, day = head[1 : 1 + KEY_ID_BYTES], head[1 + KEY_ID_BYTES :][:_DAY_BYTES]
        if key_id not in self._ring:
            raise _damaged(
                space, key, f"is sealed under key {key_id.hex()}, which is not in the ring; add it"
            )
        index: int | None = None
        bound = key
        if kind == _STAMPED:
            if len(key) <= STAMP_SIZE or key[-STAMP_SIZE] != STAMP_TAG:
                raise _damaged(space, key, "is sealed for a key with a stamp; it was moved here")
            bound, index = key[:-STAMP_SIZE], int.from_bytes(key[-2:])
        nonce, body = sealed[size : size + _NONCE_BYTES], sealed[size + _NONCE_BYTES :]
        try:
            value = self._cipher(key_id, day, space).decrypt(
                nonce, body, self._bound(head, space, bound, index)
            )
        except self._wrong as error:
            raise _damaged(space, key, "was changed, or moved here from another place") from error
        return Opened(value, key_id, *_decoded(head))

    def _bound(self, head: bytes, space: str, key: bytes, index: int | None) -> bytes:
        name = space.encode()
        stamp = b"" if index is None else index.to_bytes(2)
        return b"".join((head, self._store_id, bytes((len(name),)), name, stamp, key))


def plain_size(sealed: bytes) -> int:
    """Return the size of the value in sealed bytes."""
    return len(sealed) - _head_size(sealed) - _NONCE_BYTES - _TAG_BYTES


def _head_size(sealed: bytes) -> int:
    """Return the size of what stands before the nonce."""
    if len(sealed) < _HEAD_BYTES:
        return _HEAD_BYTES
    terms = sealed[_HEAD_BYTES - 1]
    numbers = (sealed[0] == _AGAIN) + bool(terms & _EXPIRES) + bool(terms & _CREATED)
    return _HEAD_BYTES + numbers * _NUMBER_BYTES


def _encoded(terms: Terms, version: int | None) -> bytes:
    ttl_ms, created = terms
    bits = _EXPIRES * (ttl_ms is not None)
    if created is not None:
        bits |= _CREATED if created else _CREATES
    numbers = (version, ttl_ms, created or None)
    return bytes((bits,)) + b"".join(
        number.to_bytes(_NUMBER_BYTES) for number in numbers if number is not None
    )


def _decoded(head: bytes) -> tuple[int | None, Terms]:
    """Return the version of the real write, if the value was sealed again, and the terms."""
    bits, at = head[_HEAD_BYTES - 1], _HEAD_BYTES
    numbers: list[int | None] = []
    for is_there in (head[0] == _AGAIN, bits & _EXPIRES, bits & _CREATED):
        numbers.append(int.from_bytes(head[at : at + _NUMBER_BYTES]) if is_there else None)
        at += _NUMBER_BYTES * bool(is_there)
    version, ttl_ms, created = numbers
    return version, Terms(ttl_ms, THIS_WRITE if bits & _CREATES else created)


def _damaged(space: str, key: bytes, what: str) -> CorruptError:
    place = f"{key!r} of {space!r}"
    return CorruptError(f"the value of {place} {what}", space=space, place=place)


def _aes_gcm() -> tuple[type[AESGCM], type[Exception]]:
    try:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        install = "pip install 'keepstate[encryption]'"
        raise MissingExtraError(f"encryption needs cryptography: {install}", install=install) from error
    return AESGCM, InvalidTag
