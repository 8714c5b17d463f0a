"""What the tests of links share: a signer, and requests as a browser sends them."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any

import msgspec

from keepstate import Signer
from keepstate.approval_links import handle
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space

BASE = "https://example.com/approve"
SIGNER = Signer({"2026": b"k" * 32})
NOT_VALID = (403, {"error": "not_valid"})
PLAN = {"send": 100, "to": "acme"}


async def ask(space: Space, id: str = "pay", **given: Any) -> None:
    await space.by("agent").approvals.ask("Pay 100?", id=id, **({"subject": PLAN, "to": ["ann"]} | given))


async def token(
    space: Space, id: str = "pay", to: str = "ann", *, signer: Signer = SIGNER, **given: Any
) -> str:
    link = await space.approvals.link(id, to=to, base=BASE, signer=signer, **given)
    base, _, fragment = link.partition("#")
    assert base == BASE
    return fragment


async def send(ks: Keepstate, body: object, signer: Signer = SIGNER) -> tuple[int, dict[str, Any]]:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await handle(ks, text, signer=signer)


async def read(ks: Keepstate, token: str, signer: Signer = SIGNER) -> tuple[int, dict[str, Any]]:
    return await send(ks, {"token": token, "do": "read"}, signer)


async def answer(
    ks: Keepstate, token: str, value: object, *, saw: str | None = None, signer: Signer = SIGNER, **given: Any
) -> tuple[int, dict[str, Any]]:
    """Answer, as a page does that has read the question."""
    if saw is None:
        saw = (await read(ks, token, signer))[1].get("digest", "")
    return await send(ks, {"token": token, "do": "answer", "value": value, "saw": saw, **given}, signer)


def parts_of(token: str) -> tuple[list[Any], bytes]:
    """Return the fields and the signature in a token."""
    _, body, signature = token.split(".")
    return msgspec.msgpack.decode(_bytes(body)), _bytes(signature)


def joined(fields: object, signature: bytes) -> str:
    return ".".join(("ksl1", _text(msgspec.msgpack.encode(fields)), _text(signature)))


def _bytes(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _text(part: bytes) -> str:
    return urlsafe_b64encode(part).rstrip(b"=").decode()
