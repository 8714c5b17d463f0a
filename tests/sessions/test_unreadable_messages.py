"""Pages of a conversation and of memories that go on around what cannot be read."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from keepstate import CorruptError, InvalidError, KeepstateError, Memories, Session, Unreadable
from keepstate.engine.kernel import layout
from keepstate.engine.space.keepstate import Keepstate
from tests.engine.test_unreadable import FORM, Seat, damage, older  # noqa: F401  a fixture

BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)


async def named(ks: Keepstate, space: str, end: str) -> bytes:
    """Return the key of the document whose name ends so."""
    (name,) = [name async for name in ks.space(space).documents.keys(f"*{end}")]
    return layout.named_key(layout.DOCUMENTS, name)


async def test_a_page_of_a_conversation_goes_on_around_messages(ks: Keepstate, older: Any) -> None:  # noqa: F811
    session = Session("s", persistence=ks)
    talk, space = session.conversation, ks.space("session/s")
    for number, content in enumerate(("one", Seat(7), "three", "four", "five")):
        message = {"role": "user", "content": "two" if number == 1 else content}
        await talk.append(message, meta={"seat": content} if number == 1 else {}, author="ann")
    await talk.edit(3, "four!")
    for end in ("edit/000000000003", "message/000000000004"):
        await damage(space, await named(ks, "session/s", end))
    older()

    with pytest.raises(KeepstateError):
        await talk.page()
    skipped = await talk.page(unreadable="skip")
    raw = await talk.page(unreadable="raw")
    last = await talk.page(limit=2, unreadable="skip")
    rest = await talk.page(before=last.previous, limit=3, unreadable="skip")
    with pytest.raises(InvalidError, match="`unreadable` is 'no'"):
        await talk.page(unreadable="no")  # type: ignore[arg-type]

    assert [entry.message["content"] for entry in skipped] == ["one", "three"]
    assert [entry.number for entry in raw] == [0, 1, 2, 3, 4]
    assert [entry.unreadable is not None for entry in raw] == [False, True, False, True, True]
    _, newer, _, edited, damaged = raw
    assert (newer.message["content"], newer.meta, newer.author) == ("two", {"seat": FORM}, "ann")
    assert newer.unreadable is not None and newer.unreadable.classes == ("tests/seat@2",)
    assert (edited.message, edited.author) == ({}, "ann")
    assert edited.at > BEGINNING
    assert (damaged.message, damaged.meta, damaged.at) == ({}, {}, BEGINNING)
    assert damaged.unreadable is not None and damaged.unreadable.code == CorruptError.code
    assert [[entry.number for entry in page] for page in (last, rest)] == [[], [0, 2]]


async def test_a_page_of_an_earlier_moment_goes_on_around_messages(ks: Keepstate, older: Any) -> None:  # noqa: F811
    talk = Session("s", persistence=ks).conversation
    for number, content in enumerate(("one", "two", "three")):
        await talk.append({"role": "user", "content": content}, meta={"seat": Seat(7)} if number == 1 else {})
    await talk.pop(2)
    older()

    with pytest.raises(KeepstateError):
        await talk.page(at="main#3")
    skipped = await talk.page(at="main#3", unreadable="skip")
    raw = await talk.page(at="main#3", unreadable="raw")

    assert [entry.message["content"] for entry in skipped] == ["one", "three"]
    assert [entry.unreadable is not None for entry in raw] == [False, True, False]
    assert [entry.message["content"] for entry in await talk.page()] == ["one"]


async def test_a_page_of_memories_goes_on_around_those_that_cannot_be_read(ks: Keepstate, older: Any) -> None:  # noqa: F811
    memories = Memories(ks.space("memory/ann"), owner="ann")
    await memories.remember("likes tea", id="a")
    await memories.remember("sits here", id="b", source="m1")
    facts = ks.space("memory/ann").documents
    await facts.update("memories/b/fact", lambda fact: fact | {"data": {"seat": Seat(7)}})
    await memories.remember("likes rain", id="c")
    await damage(ks.space("memory/ann"), await named(ks, "memory/ann", "c/fact"))
    older()

    with pytest.raises(KeepstateError, match="memories go on around it"):
        await memories.page()
    skipped = await memories.page(unreadable="skip")
    good, newer, damaged = await memories.page(unreadable="raw")

    assert [memory.id for memory in skipped] == ["a"]
    assert (good.text, good.unreadable) == ("likes tea", None)
    assert (newer.id, newer.text, newer.data, newer.source) == ("b", "sits here", {"seat": FORM}, "m1")
    assert isinstance(newer.unreadable, Unreadable) and newer.unreadable.code == "unsupported"
    assert (damaged.id, damaged.text, damaged.data) == ("c", "", {})
    assert damaged.unreadable is not None and damaged.unreadable.value is None
