"""The keys of an encrypted store: one seals, all of them open."""

from __future__ import annotations

import hmac
from hashlib import sha256
from typing import Final

from keepstate._clock import SYSTEM_CLOCK
from keepstate.errors import InvalidError

KEY_BYTES: Final = 32
KEY_ID_BYTES: Final = 8


class KeyRing:
    """Keys by their ids, which follow from the keys and tell nothing of them.

    Args:
        newest: 32 random bytes that seal what is written from now on.
        older: Keys that earlier values were sealed under; they only open.

    Raises:
        InvalidError: A key has not 32 bytes, or stands twice.
    """

    def __init__(self, newest: bytes, *older: bytes) -> None:
        self._keys = {key_id(key): key for key in map(_admitted, (newest, *older))}
        if len(self._keys) != 1 + len(older):
            raise InvalidError("a key stands twice in the ring; give the newest first, and each once")
        self.newest_id = next(iter(self._keys))

    @classmethod
    def new_key(cls) -> bytes:
        """Return a new random key; keep it where the store is not kept."""
        return SYSTEM_CLOCK.random_bytes(KEY_BYTES)

    def __repr__(self) -> str:
        return f"<KeyRing of {len(self._keys)}, newest {self.newest_id.hex()}>"

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError(
            "a KeyRing cannot be pickled, since its keys would lie open; make it where it is used"
        )

    def __contains__(self, wanted: bytes) -> bool:
        return wanted in self._keys

    def derived(self, wanted: bytes, salt: bytes, purpose: bytes) -> bytes:
        """Return a key made of the ring's key of this id, another one for each salt and purpose."""
        return derived(self._keys[wanted], salt, purpose)


def derived(key: bytes, salt: bytes, purpose: bytes) -> bytes:
    """Return 32 bytes by HKDF with SHA-256 (RFC 5869)."""
    extracted = hmac.digest(salt, key, "sha256")
    return hmac.digest(extracted, purpose + b"\x01", "sha256")


def key_id(key: bytes) -> bytes:
    """Return what names a key in sealed bytes."""
    return sha256(b"keepstate key id\x00" + key).digest()[:KEY_ID_BYTES]


def _admitted(key: object) -> bytes:
    if not isinstance(key, bytes) or len(key) != KEY_BYTES:
        raise InvalidError(f"a key of the ring is no {KEY_BYTES} bytes; make one by KeyRing.new_key()")
    return bytes(key)
