"""A store in which every field of every part holds text that attacks its reader, or is huge or deep.

What the library refuses, such as a control character in a name, is left out by `_tried`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import keepstate
from keepstate import Session
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import KeepstateError

MARK = "pwned"
SCRIPT = f"<script>window.{MARK}=1</script>"
IMAGE = f'"><img src=x onerror="window.{MARK}=1">'
LINK = f"javascript:window.{MARK}=1"
BIDI = "safe\u202egnp.exe\u2066\u2069\u200f"
CONTROL = "a\u0000b\u0007c\u001b[31md\u009be\u2028f\ufeffg"
FORMS = "${7*7}{{7*7}}#{7*7}%s%n&lt;b&gt;"
EVIL = f"{SCRIPT}{IMAGE}{FORMS}{BIDI}"
TEXTS = (SCRIPT, IMAGE, LINK, BIDI, CONTROL, FORMS, "\ud7ff\U0001f469\u200d\U0001f680", "x" * 300, "")
DEEP, HUGE = 100, 1 << 20
SPACE = f"run/{EVIL}"[:180]


async def fill(ks: Keepstate) -> None:
    """Fill a store that is empty."""
    space = ks.space(SPACE, author=EVIL)
    await _fill_parts(space)
    await _fill_history(space)
    await _fill_queue(space)
    await _fill_approvals(space)
    await _fill_sessions(ks)
    for text in TEXTS:
        await _tried(_named, ks, f"names/{text}")
        await _tried(_named, ks, text or "empty", text)


async def _named(ks: Keepstate, space: str, tenant: str | None = None) -> None:
    await (ks if tenant is None else ks.tenant(tenant)).space(space).documents.put("k", space)


def value() -> dict[str, Any]:
    """Return a value with all that a page may stumble over."""
    deep: Any = EVIL
    for _ in range(DEEP):
        deep = {"deeper": [deep]}
    return {
        **{f"{number}: {text}": text for number, text in enumerate(TEXTS)},
        "": "the empty key",
        "__proto__": {"polluted": True},
        "constructor": {"prototype": {"polluted": True}},
        "toString": "no function",
        "numbers": [2**63 - 1, -(2**53) - 1, 1e308, math.inf, -math.inf, math.nan, -0.0, True, None],
        "bytes": b"\x00\xff<script>",
        "tuple": (1, (2, EVIL)),
        "set": {1, 2},
        "when": datetime(9999, 12, 31, 23, 59, tzinfo=UTC),
        "deep": deep,
        "long": EVIL * 50,
        "wide": list(range(3_000)),
    }


async def _fill_parts(space: Any) -> None:
    for text in TEXTS:
        await _tried(space.documents.put, text, {"value": text})
        await _tried(space.documents.put, f"ends/{text}", text, ttl_s=86_400)
        await _tried(space.events.append, {"type": text, "text": text}, stream=text or "empty")
        await _tried(space.leases.acquire, f"lease {text}", ttl_s=86_400)
        await _tried(space.schedules.put, text, every_s=3_600, kind=text, payload=text, key=text)
    await space.documents.put("everything", value())
    await space.documents.put("huge", SCRIPT * (HUGE // len(SCRIPT)))
    await space.documents.put("@type", {"@type": "int", "value": SCRIPT})
    await space.events.append(value())


async def _fill_history(space: Any) -> None:
    history = space.history
    await history.commit(
        {"messages": [], **value()}, message=EVIL, meta={"model": EVIL[:200], "nodes": EVIL[:200]}
    )
    for role in ("system", "user", "assistant", "tool", EVIL):
        for content in (
            EVIL,
            [{"type": "text", "text": EVIL}, {"type": "image_url", "image_url": {"url": LINK}}],
        ):
            call = {"id": EVIL, "type": "function", "function": {"name": EVIL, "arguments": EVIL}}
            message = {
                "role": role,
                "content": content,
                "name": EVIL,
                "tool_calls": [call],
                "tool_call_id": EVIL,
            }
            await history.append("messages", message, author=role, message=f"{role}: {EVIL}")
    for odd in (
        None,
        7,
        [],
        {"role": None},
        {"content": {"not": "text"}},
        {"role": "assistant", "tool_calls": 5},
    ):
        await history.append("messages", odd)
    for text in TEXTS:
        await _tried(history.branch, f"b{text}")
        await _tried(history.tag, f"t{text}")
        await _tried(history.commit, {"only": text}, branch=text, message=text, author=text)


async def _fill_queue(space: Any) -> None:
    queue = space.queue

    async def fail(task: Any) -> None:
        if not task.payload:
            task.ended_as  # noqa: B018  a task without a payload is completed
            return
        await task.step(f"step {EVIL[:100]}", _said, EVIL)
        raise RuntimeError(EVIL * 20)

    for number, text in enumerate(TEXTS):
        await _tried(queue.put, {"text": text}, id=f"{number} {text}", kind=text, key=text, max_attempts=1)
    await queue.put(value(), id=EVIL[:300], max_attempts=1)
    await queue.run(fail, worker=EVIL[:100], idle_s=0.05)
    await queue.put(value(), id="waits", delay_s=86_400)
    await queue.put(EVIL, id="cancelled")
    await queue.cancel("cancelled", by=EVIL[:100], reason=EVIL)


async def _said(text: str) -> str:
    return text


async def _fill_approvals(space: Any) -> None:
    schema = {
        "type": "object",
        "title": EVIL,
        "properties": {
            EVIL: {"type": "string", "title": EVIL, "description": EVIL, "default": EVIL, "enum": [EVIL]}
        },
    }
    for number, text in enumerate((*TEXTS, EVIL)):
        asked = {"subject": {"text": text}, "to": [text] if text else []}
        await _tried(space.approvals.ask, f"{text}?", id=f"{number}", **asked)
    await _tried(space.approvals.ask, EVIL, id=EVIL[:200], subject=value())
    await _tried(space.approvals.ask, EVIL, id="form", subject=EVIL, schema=schema)


async def _fill_sessions(ks: Keepstate) -> None:
    for number, text in enumerate((*TEXTS, EVIL)):
        session = Session(f"{number} {text[:90]}", user_id=f"user {text[:90]}", persistence=ks)
        talk = session.conversation
        for role in ("user", "assistant"):
            await _tried(
                talk.append, {"role": role, "content": text}, author=text or "a", meta={"model": text}
            )
        await _tried(_forked, talk, text)
        await session.close()


async def _forked(talk: Any, name: str) -> None:
    await (await talk.fork(name)).append({"role": "user", "content": name})


async def _tried(call: Callable[..., Awaitable[object]], *given: object, **options: object) -> bool:
    """Return whether the library takes it."""
    try:
        await call(*given, **options)
    except (KeepstateError, ValueError):
        return False
    return True


async def main() -> None:
    """Say what the library refuses, by filling a store in memory."""
    async with keepstate.open("memory://") as ks:
        await fill(ks)
        print(*[repr(space) async for space in ks.spaces()], sep="\n")
        for found in await ks.find():
            print(found.kind, found.state, repr(found.id), found.title)
        print(await ks.space(SPACE).queue.counts(), len(await ks.space(SPACE).approvals.pending()))


if __name__ == "__main__":
    asyncio.run(main())
