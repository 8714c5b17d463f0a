"""The sealing of one value and its opening: AES-256-GCM, bound to the key and space of the value.

```
first byte · key id (8) · day (4) · terms (1) · [version (8)] · [ttl (8)] · [created (8)] · nonce (12) ·
    ciphertext · tag (16)
```

A `KeyRing` has the keys: one seals, and all of them open. The day and the space make a key of their own from
the ring's (HKDF), so no key seals more than a day's values of one space. Nonces are random, 96 bits: two are
equal with a probability below 2^-32 up to 2^32 values under one key (NIST SP 800-38D), which is 49,700 per
second in one space for a day.

Keys, sizes and times are not hidden. The bytes before the nonce, the store's id, the space and the key are
authenticated with the value. A stamped key is unknown when its value is sealed, so such a value is bound to
the key without its stamp, and to its index in the batch. The first byte says which, and whether the value was
sealed again later; then the version of its original write follows. Frozen: every version reads sealed values.

The terms are what the writer wanted of the row: that it expires, with the time to live in milliseconds (bit
1), that this write creates it (bit 2), or the revision at which it was created (bit 4). The store sets expiry
and creation after sealing, so a reader compares the row with the terms. To add a kind of seal, add a first
byte, which is never given another meaning.
"""

from __future__ import annotations

import hmac
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Final, NamedTuple

from keepstate._clock import SYSTEM_CLOCK, Clock
from keepstate.errors import CorruptError, InvalidError, MissingExtraError
from keepstate.stores.protocol import Entry
from keepstate.values import codec
from keepstate.values.key import STAMP_SIZE, STAMP_TAG

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM


KEY_BYTES: Final = 32
KEY_ID_BYTES: Final = 8


class KeyRing:
    """Keys by their ids, which are derived from the keys and reveal nothing about them.

    Args:
        newest: 32 random bytes that seal new values.
        older: Keys of earlier values; they only open.

    Raises:
        InvalidError: A key does not have 32 bytes, or occurs twice.
    """

    def __init__(self, newest: bytes, *older: bytes) -> None:
        self._keys = {key_id(key): key for key in map(_check_key, (newest, *older))}
        if len(self._keys) != 1 + len(older):
            raise InvalidError("A key occurs twice in the ring. Pass each key once, the newest first.")
        self.newest_id = next(iter(self._keys))

    @classmethod
    def new_key(cls) -> bytes:
        """Return a new random key; store it in another location than the store."""
        return SYSTEM_CLOCK.random_bytes(KEY_BYTES)

    def __repr__(self) -> str:
        return f"<KeyRing of {len(self._keys)}, newest {self.newest_id.hex()}>"

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError(
            "A KeyRing cannot be pickled, because that would reveal its keys. Create it where it is used."
        )

    def __contains__(self, wanted: bytes) -> bool:
        return wanted in self._keys

    def derived(self, wanted: bytes, salt: bytes, purpose: bytes) -> bytes:
        """Return a key derived from the ring's key of this id, a different one for each salt and purpose."""
        return derived(self._keys[wanted], salt, purpose)


def derived(key: bytes, salt: bytes, purpose: bytes) -> bytes:
    """Return 32 bytes by HKDF with SHA-256 (RFC 5869)."""
    extracted = hmac.digest(salt, key, "sha256")
    return hmac.digest(extracted, purpose + b"\x01", "sha256")


def key_id(key: bytes) -> bytes:
    """Return the id of a key in sealed bytes."""
    return sha256(b"keepstate key id\x00" + key).digest()[:KEY_ID_BYTES]


def _check_key(key: object) -> bytes:
    if not isinstance(key, bytes) or len(key) != KEY_BYTES:
        raise InvalidError(
            f"A key of the ring must have {KEY_BYTES} bytes. Create one with KeyRing.new_key()."
        )
    return bytes(key)


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
"""Number of bytes that sealing adds to a value that was written once and never expires."""
MOST_OVERHEAD_BYTES: Final = OVERHEAD_BYTES + 3 * _NUMBER_BYTES
THIS_WRITE: Final = 0
"""In terms: this write creates the row."""


class Terms(NamedTuple):
    """The writer's intent for the row of a value.

    Attributes:
        ttl_ms: The requested time to live; None for a row that never expires.
        created: The revision at which the row was created, `THIS_WRITE`, or None if the writer named neither.
    """

    ttl_ms: int | None = None
    created: int | None = None


NO_TERMS: Final = Terms()


class Opened(NamedTuple):
    """A sealed value after opening.

    `version` is that of the original write if the value was sealed again, otherwise None.
    """

    value: bytes
    key_id: bytes
    version: int | None
    terms: Terms

    def version_of(self, entry: Entry) -> int:
        """Return the version to report for the entry with the value."""
        return entry.version if self.version is None else self.version

    def require_unaltered(self, space: str, entry: Entry, now_ms: int) -> None:
        """Raise `CorruptError` if the row contradicts the writer's terms.

        Args:
            space: The space.
            entry: The row, with the sealed value.
            now_ms: A time of the space, no earlier than the row was read.
        """
        ttl_ms, created = self.terms
        if (ttl_ms is None) != (entry.expires_at_ms is None):
            meant = "never to expire" if ttl_ms is None else f"to expire {ttl_ms} ms after its write"
            raise _damage_error(space, entry.key, f"was written {meant}, and its expiry was changed")
        if ttl_ms is not None and entry.expires_at_ms is not None and entry.expires_at_ms - now_ms > ttl_ms:
            # The row was written before now, so at most its time to live can be left.
            what = f"has more than its {ttl_ms} ms to live: its expiry was changed"
            raise _damage_error(space, entry.key, what)
        version = self.version_of(entry)
        if created is not None and entry.created != (created or version):
            raise _damage_error(
                space, entry.key, f"was not created at revision {entry.created}: its row was changed"
            )


class Sealer:
    """Seals and opens the values of one store.

    Args:
        ring: The keys.
        store_id: The id of the store, different for each.
        clock: Time and randomness of this process.

    Raises:
        MissingExtraError: cryptography is not installed.
    """

    def __init__(self, ring: KeyRing, store_id: bytes, clock: Clock) -> None:
        self._ring, self._store_id, self._clock = ring, store_id, clock
        self._make, self._wrong = _aes_gcm()
        self._cipher = lru_cache(maxsize=_DERIVED_KEPT)(self._new_cipher)

    def _new_cipher(self, key_id: bytes, day: bytes, space: str) -> AESGCM:
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
        """Return the value sealed for one key.

        Args:
            space: The space.
            key: The key; without the stamp, if the write adds one.
            value: The value.
            terms: The writer's intent for the row.
            index: The index in its batch of a write that gets a stamp.
            version: The revision of the original write, for a value that is sealed again.
        """
        kind = _WRITTEN if version is None else _AGAIN
        day = (self._clock.now_ms() // _DAY_MS).to_bytes(_DAY_BYTES)
        head = bytes((kind if index is None else _STAMPED,)) + self._ring.newest_id + day
        head += _encode_terms(terms, version)
        nonce = self._clock.random_bytes(_NONCE_BYTES)
        cipher = self._cipher(self._ring.newest_id, day, space)
        return head + nonce + cipher.encrypt(nonce, value, self._bound(head, space, key, index))

    def open(self, space: str, key: bytes, sealed: bytes) -> Opened:
        """Return the value that was sealed for this key.

        Raises:
            CorruptError: The bytes were not sealed, or under a key outside the ring, or for another key, or
                have changed.
        """
        kind = sealed[0] if sealed else None
        size = _head_size(sealed)
        if kind not in (_WRITTEN, _STAMPED, _AGAIN) or len(sealed) < size + _NONCE_BYTES + _TAG_BYTES:
            raise _damage_error(space, key, "is not sealed: it was written without encryption, or is damaged")
        head = sealed[:size]
        key_id, day = head[1 : 1 + KEY_ID_BYTES], head[1 + KEY_ID_BYTES :][:_DAY_BYTES]
        if key_id not in self._ring:
            raise _damage_error(
                space, key, f"is sealed under key {key_id.hex()}, which is not in the ring. Add that key"
            )
        index: int | None = None
        bound = key
        if kind == _STAMPED:
            if len(key) <= STAMP_SIZE or key[-STAMP_SIZE] != STAMP_TAG:
                raise _damage_error(space, key, "is sealed for a key with a stamp: it was moved here")
            bound, index = key[:-STAMP_SIZE], int.from_bytes(key[-2:])
        nonce, body = sealed[size : size + _NONCE_BYTES], sealed[size + _NONCE_BYTES :]
        try:
            value = self._cipher(key_id, day, space).decrypt(
                nonce, body, self._bound(head, space, bound, index)
            )
        except self._wrong as error:
            raise _damage_error(space, key, "was changed, or moved here from another key") from error
        return Opened(value, key_id, *_decode_terms(head))

    def _bound(self, head: bytes, space: str, key: bytes, index: int | None) -> bytes:
        name = space.encode()
        stamp = b"" if index is None else index.to_bytes(2)
        return b"".join((head, self._store_id, bytes((len(name),)), name, stamp, key))


def plain_size(sealed: bytes) -> int:
    """Return the size of the value in sealed bytes."""
    return len(sealed) - _head_size(sealed) - _NONCE_BYTES - _TAG_BYTES


def _head_size(sealed: bytes) -> int:
    """Return the number of bytes before the nonce."""
    if len(sealed) < _HEAD_BYTES:
        return _HEAD_BYTES
    terms = sealed[_HEAD_BYTES - 1]
    numbers = (sealed[0] == _AGAIN) + bool(terms & _EXPIRES) + bool(terms & _CREATED)
    return _HEAD_BYTES + numbers * _NUMBER_BYTES


def _encode_terms(terms: Terms, version: int | None) -> bytes:
    ttl_ms, created = terms
    bits = _EXPIRES * (ttl_ms is not None)
    if created is not None:
        bits |= _CREATED if created else _CREATES
    numbers = (version, ttl_ms, created or None)
    return bytes((bits,)) + b"".join(
        number.to_bytes(_NUMBER_BYTES) for number in numbers if number is not None
    )


def _decode_terms(head: bytes) -> tuple[int | None, Terms]:
    """Return the version of the original write, if the value was sealed again, and the terms."""
    bits, at = head[_HEAD_BYTES - 1], _HEAD_BYTES
    numbers: list[int | None] = []
    for is_present in (head[0] == _AGAIN, bits & _EXPIRES, bits & _CREATED):
        numbers.append(int.from_bytes(head[at : at + _NUMBER_BYTES]) if is_present else None)
        at += _NUMBER_BYTES * bool(is_present)
    version, ttl_ms, created = numbers
    return version, Terms(ttl_ms, THIS_WRITE if bits & _CREATES else created)


def _damage_error(space: str, key: bytes, what: str) -> CorruptError:
    place = f"{key!r} of {space!r}"
    return CorruptError(f"The value of {place} {what}.", space=space, place=place)


def _aes_gcm() -> tuple[type[AESGCM], type[Exception]]:
    try:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        install = "pip install 'keepstate[encryption]'"
        raise MissingExtraError(f"Encryption needs cryptography: {install}", install=install) from error
    return AESGCM, InvalidTag
