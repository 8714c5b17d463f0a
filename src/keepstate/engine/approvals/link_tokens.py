"""Tokens of links: a person, an approval and what it asked, signed.

A token is `ksl1.BODY.SIGNATURE`, both in base64url without padding. The body is an array in msgpack of the
name of the key and the fields of a `Link`. It is signed, not encrypted: its holder can read the names in it.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Annotated, Final

import msgspec

from keepstate.engine.approvals.signers import Signer
from keepstate.engine.kernel.stored import StoredMs

TOKEN_BYTES: Final = 4 << 10
_VERSION: Final = "ksl1"
_PURPOSE: Final = "approval link"
_encode: Final = msgspec.msgpack.Encoder().encode


class Link(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The content of a link.

    Attributes:
        key_name: The name of the key that signed it.
        tenant: The tenant of the space, or None.
        space: The name of the space.
        id: The id of the approval.
        to: The person who may answer by it.
        group: The group that the person answers for, or None.
        digest: The digest of what is asked.
        nonce: The nonce of the approval.
        expires_ms: The time from which it is not valid, by the store's clock.
    """

    key_name: str
    tenant: str | None
    space: str
    id: str
    to: str
    group: str | None
    digest: str
    nonce: Annotated[bytes, msgspec.Meta(min_length=16)]
    expires_ms: StoredMs


_decode: Final = msgspec.msgpack.Decoder(Link).decode


def sign_link(link: Link, signer: Signer) -> str:
    """Return the token of a link."""
    body = _encode(link)
    return ".".join((_VERSION, _to_text(body), _to_text(signer.sign(_PURPOSE, body))))


def verify_link(token: str, signer: Signer) -> Link | None:
    """Return the link that a token is of, or None unless a key of the signer signed exactly this token."""
    if len(token) > TOKEN_BYTES or not token.isascii():
        return None
    version, *texts = token.split(".")
    if version != _VERSION or len(texts) != 2:
        return None
    body, signature = map(_to_bytes, texts)
    if body is None or signature is None:
        return None
    try:
        link = _decode(body)
    except (msgspec.DecodeError, ValueError):  # text that is not UTF-8 is a ValueError
        return None
    return link if signer.verify(link.key_name, _PURPOSE, body, signature) else None


def _to_text(part: bytes) -> str:
    return urlsafe_b64encode(part).rstrip(b"=").decode()


def _to_bytes(text: str) -> bytes | None:
    """Return the bytes of base64url without padding, or None for any other text.

    The decoder skips signs outside its alphabet, and unused bits. So only the text that it would make counts.
    """
    try:
        part = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        return None
    return part if _to_text(part) == text else None
