"""A handle without classes copies what a handle with classes has written, without a loss."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import keepstate
from keepstate import Space, register
from keepstate.engine.kernel import layout
from keepstate.engine.space.keepstate import Keepstate
from keepstate.values.json_exchange import from_json, to_json


@register("tests.builtin.Note", version=3)
@dataclass(frozen=True)
class Note:
    text: str
    more: Any = ()


VALUE = {
    "z": Note("ann", (Decimal("1.10"), datetime(2020, 1, 2, tzinfo=UTC))),
    "a": {Note("b"), 2**80},
    (1, b"x"): [float("inf"), Note("c", {1: Note("d")})],
}


async def stored(space: Space, key: str) -> bytes:
    """Return the stored bytes of a document."""
    store = await space.executor.store()
    place = layout.named_key(layout.DOCUMENTS, key)
    (entry,) = (await store.read(space.executor.stored_name, [place])).entries
    assert entry is not None
    return entry.value


async def test_documents_are_copied_to_the_same_bytes(ks: Keepstate, space: Space) -> None:
    await space.documents.put("note", VALUE)
    async with keepstate.open(ks.store, values="builtin") as plain:
        documents = plain.space(space.name).documents

        form = await documents.get("note")
        await documents.put("copy", form)
        await documents.put("through json", from_json(to_json(form)))
        await documents.update("note", lambda found: found)

    for key in ("copy", "through json", "note"):
        assert await stored(space, key) == await stored(space, "note")
        assert await space.documents.get(key) == VALUE


async def test_events_tasks_and_states_are_copied(ks: Keepstate, space: Space) -> None:
    await space.events.append(VALUE)
    await space.queue.put(VALUE, id="one")
    await space.history.commit({"state": [VALUE] * 300, "note": Note("x")})
    async with keepstate.open(ks.store, values="builtin") as plain:
        copy = plain.space(space.name)

        await copy.events.append((await copy.events.read())[0].data)
        (task,) = await copy.queue.list(payloads=True)
        await copy.queue.put(task.payload, id="two")
        state = await copy.history.checkout("main")
        await copy.history.commit({**state}, branch="copy")

    assert [event.data for event in await space.events.read()] == [VALUE, VALUE]
    assert [task.payload for task in await space.queue.list(payloads=True)] == [VALUE, VALUE]
    assert await space.history.diff("main", "copy") == []
    assert (await space.history.checkout("copy"))["state"] == [VALUE] * 300
