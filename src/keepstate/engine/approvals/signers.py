"""Signers: HMAC-SHA256 with named keys, so that keys can be replaced while what they signed is still in use.

A signature covers the purpose, the name of the key and the message, each with its length. So a signature that
was made for one purpose, or with one key, is none for another.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Any, Final, cast

from keepstate.engine.kernel.arguments import check_text
from keepstate.errors import InvalidError

_LEAST_KEY_BYTES: Final = 32
_NAME_BYTES: Final = 64
_KEYS: Final = 100


class Signer:
    """Signs links, and verifies what it or another signer with one of its keys has signed.

    To replace a key, add a new one on every server, then sign with it, and remove the old one when the last
    link that it signed has expired.

    Args:
        keys: The keys by their names: each at least 32 random bytes, each name 1 to 64 bytes of UTF-8.
        signs_with: The name of the key that signs. It may be left out if there is one key.

    Raises:
        InvalidError: A key is too short, two are equal, or `signs_with` names none.
    """

    def __init__(self, keys: Mapping[str, bytes], *, signs_with: str | None = None) -> None:
        if not isinstance(cast("object", keys), Mapping) or not 0 < len(keys) <= _KEYS:
            raise InvalidError(f"`keys` is a mapping of 1 to {_KEYS} names to keys of random bytes")
        known: dict[str, bytes] = {}
        for name, key in keys.items():
            if not 0 < len(check_text("keys", name).encode()) <= _NAME_BYTES:
                raise InvalidError(f"`keys` has a name that is empty or has over {_NAME_BYTES} bytes")
            if type(key) is not bytes or len(key) < _LEAST_KEY_BYTES:
                raise InvalidError(f"key {name!r} has at least {_LEAST_KEY_BYTES} bytes, random ones")
            known[name] = key
        if len({*known.values()}) < len(known):
            raise InvalidError("`keys` has one key under two names; make a new key for each name")
        chosen = next(iter(known)) if signs_with is None and len(known) == 1 else signs_with
        if chosen not in known:
            raise InvalidError(f"`signs_with` is {signs_with!r}; name the key that signs, one of {[*known]}")
        self._keys, self._chosen = known, chosen

    def __repr__(self) -> str:
        return f"<Signer with {self._chosen!r}, knows {', '.join(map(repr, self._keys))}>"

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise TypeError(
            "a Signer cannot be pickled, because its keys would be exposed; create it where it is used"
        )

    @property
    def key_name(self) -> str:
        """The name of the key that signs."""
        return self._chosen

    def sign(self, purpose: str, message: bytes) -> bytes:
        """Return the signature of a message, 32 bytes, by the key that signs.

        Args:
            purpose: The kind of message, in words that no other kind has.
            message: The message.
        """
        return self._signature(self._chosen, purpose, message)

    def verify(self, key_name: str, purpose: str, message: bytes, signature: bytes) -> bool:
        """Return whether a key of this signer has signed a message. Takes the same time for any signature."""
        if key_name not in self._keys:
            return False
        return hmac.compare_digest(self._signature(key_name, purpose, message), signature)

    def _signature(self, key_name: str, purpose: str, message: bytes) -> bytes:
        parts = [b"keepstate signer 1", purpose.encode(), key_name.encode(), message]
        whole = b"".join(len(part).to_bytes(8) + part for part in parts)
        return hmac.digest(self._keys[key_name], whole, "sha256")
