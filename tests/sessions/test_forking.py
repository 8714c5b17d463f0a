"""The cost of a fork and of a search does not grow with the conversation; and planted bugs are noticed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

import keepstate
from keepstate import Session
from keepstate._runner import TaskRunner
from keepstate.sessions import replies, word_search
from keepstate.sessions.conversation import Conversation
from keepstate.sessions.conversation_documents import ConversationDocuments
from keepstate.sessions.session_watch import SessionWatch
from keepstate.sessions.word_search import Words
from keepstate.stores.memory import MemoryStore
from keepstate.stores.protocol import Batch, Outcome, Reading
from tests.contracts.sessions.conversations import said


class CountingStore(MemoryStore):
    """Counts the entries that are read, and those that are written."""

    counts = (0, 0)

    async def read(self, space: str, keys: Sequence[bytes], *, at_ms: int | None = None) -> Reading:
        self.counts = self.counts[0] + len(keys), self.counts[1]
        return await super().read(space, keys, at_ms=at_ms)

    async def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        self.counts = self.counts[0], self.counts[1] + sum(len(batch.writes) for batch in batches)
        return await super().apply(batches)


async def talk_of(count: int, ks: keepstate.Keepstate, *, is_recorded: bool = True) -> Conversation:
    """Return a conversation; a space that others own is recorded if they say so."""
    session = Session("s", persistence=ks) if is_recorded else Session("s", space=ks.space("others"))
    talk = session.conversation.within(100)
    for start in range(0, count, 400):
        await talk.append(*(said(f"message {n:05d}") for n in range(start, min(start + 400, count))))
    return talk


TREE_NODES = 12
"""The most nodes that the tree of a recorded state of 10,000 documents has more to write than a small one."""


@pytest.mark.parametrize(("at", "is_recorded"), [(None, False), (5, False), (None, True)])
async def test_a_fork_costs_the_same_after_10_messages_and_after_5_000(
    at: int | None, *, is_recorded: bool
) -> None:
    costs: list[tuple[int, int]] = []
    for count in (10, 5_000):
        store = await CountingStore(runner=TaskRunner()).open()
        async with keepstate.open(store) as ks:
            talk = await talk_of(count, ks, is_recorded=is_recorded)
            store.counts = 0, 0
            fork = await talk.fork("f", at=at)
            costs.append(store.counts)
            assert await fork.count() == (count if at is None else at + 1)
        await store.close()

    (few_reads, few_writes), (reads, writes) = costs
    assert few_reads - 2 <= reads <= few_reads + 2
    # Where the conversation begins, its context may have a page less.
    assert writes <= few_writes + (TREE_NODES if is_recorded else 1) < 20


async def test_a_search_in_a_long_conversation_lets_others_run() -> None:
    async with keepstate.open("memory://") as ks:
        talk, turns = await talk_of(2_400, ks), 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        page = await talk.search("absent")
        counting.cancel()

        assert page == [] and page.next == "400" and turns >= word_search.LOOKED_AT // 100


@pytest.mark.parametrize(
    ("text", "query", "is_found"),
    [
        ("I fly to RÉUNION", "réunion", True),
        ("Straße", "STRASSE", True),
        ("ｆｕｌｌ width", "full", True),
        ("flights", "flight", True),
        ("highlight", "light", False),
        ("我要去东京旅行", "东京", True),
        ("learn c++ now", "c++", True),
        ("one\ntwo  three", '"two three"', True),
        ("two and three", '"two three"', False),
        ("two and three", "three two", True),
        ("unclosed quote here", '"quote he', True),
        ("anything", '"" "  "', True),
        ("a.b", "a*b", False),
    ],
)
def test_words_are_found_as_people_write_them(text: str, query: str, is_found: bool) -> None:
    assert Words(query).are_in(text) is is_found


# ---- planted bugs

Plant = Callable[[pytest.MonkeyPatch], None]


def fork_copies_messages(planting: pytest.MonkeyPatch) -> None:
    """Copy the shared messages of a fork."""
    put_record = ConversationDocuments.put_record

    async def put(self: ConversationDocuments, record: Any) -> None:
        await put_record(self, record)
        if record.parent is not None:
            for number in range(min(record.spans[-1][1], 500)):
                await self.put_edit(number, said("copy"))

    planting.setattr(ConversationDocuments, "put_record", put)


def search_without_bound(planting: pytest.MonkeyPatch) -> None:
    """Look at all messages for one page."""
    planting.setattr(word_search, "LOOKED_AT", 10**9)


async def _pass_by_cost() -> None:
    await test_a_fork_costs_the_same_after_10_messages_and_after_5_000(None, is_recorded=False)


@pytest.mark.parametrize(
    ("plant", "test"),
    [
        (fork_copies_messages, _pass_by_cost),
        (search_without_bound, test_a_search_in_a_long_conversation_lets_others_run),
    ],
)
async def test_planted_bugs_are_noticed(
    plant: Plant, test: Callable[[], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        await test()


async def tell_twice() -> None:
    async with keepstate.open("memory://") as ks:
        talk = await talk_of(2, ks)
        fork = await talk.fork("f")
        assert await fork.merge_back(summary="x") == await fork.merge_back(summary="x")


async def stop_in_ended_session() -> None:
    async with keepstate.open("memory://") as ks:
        session = Session("s", persistence=ks)
        await session.conversation.append(said("Hello"))
        with pytest.raises(keepstate.LeaseLostError):
            async with session.conversation.reply():
                await session.end()


async def sweep_is_no_change() -> None:
    async with keepstate.open("memory://") as ks:
        session = Session("s", persistence=ks)
        await session.update({"n": 1})
        await session.end()
        position = await session.position()
        await session.sweep()
        await session.update({"n": 2})
        async for change in session.watch(after=position):
            assert (change.part, change.kind) == ("session", "created")
            break


def tells_each_time(planting: pytest.MonkeyPatch) -> None:
    """Forget that a fork was told of."""
    put_record = ConversationDocuments.put_record

    async def put(self: ConversationDocuments, record: Any) -> None:
        await put_record(self, replace(record, told=None))

    planting.setattr(ConversationDocuments, "put_record", put)


def end_of_session_ignored(planting: pytest.MonkeyPatch) -> None:
    """Let a writer never ask whether its session lives."""

    asked = 0

    async def is_over(_: object) -> bool:
        nonlocal asked
        asked += 1
        assert asked < 20, "it tries for ever"
        return False

    planting.setattr(replies.ReplyStream, "is_over", is_over)


def sweeps_are_told(planting: pytest.MonkeyPatch) -> None:
    """Forget which lives have ended."""
    parse = SessionWatch._parse  # pyright: ignore[reportPrivateUsage]

    def forget(self: SessionWatch, count: int) -> Any:
        found = parse(self, count)
        self._ended = 0  # pyright: ignore[reportPrivateUsage]
        return found

    planting.setattr(SessionWatch, "_parse", forget)


@pytest.mark.parametrize(
    ("plant", "test"),
    [
        (tells_each_time, tell_twice),
        (end_of_session_ignored, stop_in_ended_session),
        (sweeps_are_told, sweep_is_no_change),
    ],
)
async def test_planted_bugs_of_what_is_told_are_noticed(
    plant: Plant, test: Callable[[], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    await test()
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        await test()
