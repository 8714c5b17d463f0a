"""Names by content: the same content has the same name on every machine and in every version."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from typing import Final

from keepstate.errors import InvalidError

DIGEST_SIZE: Final = 20


def digest(kind: str, format_number: int, canonical_bytes: bytes) -> bytes:
    """Return SHA-256, cut to 160 bits, of kind, format number and bytes, unambiguously concatenated.

    Args:
        kind: The kind of the bytes (a node, a commit); the same bytes of another kind have another name.
        format_number: The format of the bytes, below 65,536.
        canonical_bytes: The bytes before compression and encryption.
    """
    return sha256(_head(kind, format_number) + canonical_bytes).digest()[:DIGEST_SIZE]


@cache
def _head(kind: str, format_number: int) -> bytes:
    name = kind.encode()
    if not 0 < len(name) < 256 or not 0 <= format_number < 1 << 16:
        raise InvalidError(f"kind {kind!r} or format {format_number!r} has no place in a digest")
    return bytes((len(name),)) + name + format_number.to_bytes(2)
