"""Conversations of Pydantic AI: whole saves, no lost turn, few reads, and nothing left after a deletion."""

from __future__ import annotations

import asyncio
import base64
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
from pydantic_ai import BinaryContent
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import ConversationConflict, ConversationEntry, ConversationRecord
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.adapters import pydantic_values
from keepstate.adapters.pydantic_ai import KeepstateConversationStore, lines, saves
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import InvalidError, NotFoundError
from keepstate.names import INDEX_SPACE
from keepstate.stores.memory import MemoryStore
from keepstate.stores.protocol import Batch, Outcome, Page, Reading
from keepstate.testing.adapter_contract import AdapterContract
from tests.adapters.pydantic_ai.talking import WHEN, said

T = TypeVar("T")


async def extend(
    store: KeepstateConversationStore, id: str, items: Sequence[ModelMessage], scope: Any = None
) -> None:
    """Load, extend and save a conversation, again after a conflict, as an application does."""
    while True:
        talk = await store.load(id) or Conversation(conversation_id=id)
        talk.messages.extend(items)
        try:
            await store.save(talk, scope=scope)
        except ConversationConflict:
            continue
        return


class TestConversations(AdapterContract):
    """The contract of adapters, on every backend. The owner of a conversation is its scope."""

    @pytest.fixture
    def url(self, any_url: str) -> str:
        return any_url

    def make(self, url: str) -> KeepstateConversationStore:
        return KeepstateConversationStore(url)

    async def add(self, adapter: KeepstateConversationStore, id: str, items: Sequence[Any]) -> None:
        await extend(adapter, id, items)

    async def read(self, adapter: KeepstateConversationStore, id: str) -> list[Any]:
        found = await adapter.load(id)
        return [] if found is None else found.messages

    def item(self, n: int) -> Any:
        return ModelRequest(parts=[UserPromptPart(f"q{n}", timestamp=WHEN)], timestamp=WHEN)

    def rich_item(self) -> Any:
        return ModelResponse(
            parts=[
                ThinkingPart("hm", id="t1", signature="s"),
                TextPart("naïve 🦜 \0"),
                ToolCallPart("search", {"to": "NYC", "n": [1, None, 0.5]}, "call_1"),
            ],
            model_name="m",
            timestamp=WHEN,
            provider_details={"finish": "stop"},
            metadata={"kept": True},
        )

    async def clear(self, adapter: KeepstateConversationStore, id: str) -> None:
        await adapter.delete(id)

    async def add_owned(
        self, adapter: KeepstateConversationStore, owner: str, id: str, items: Sequence[Any]
    ) -> None:
        await extend(adapter, f"{owner}/{id}", items, owner)

    async def read_owned(self, adapter: KeepstateConversationStore, owner: str, id: str) -> list[Any]:
        return await self.read(adapter, f"{owner}/{id}")

    async def erase(self, adapter: KeepstateConversationStore, owner: str) -> None:
        await adapter.erase(owner)


async def names(store: KeepstateConversationStore, prefix: str = "") -> list[str]:
    """Return the names of all documents of a store."""

    async def list_them(ks: Keepstate) -> list[str]:
        return [name async for name in ks.space("pydantic/main").documents.keys(prefix=prefix)]

    return await store.call(list_them)


async def filled(store: KeepstateConversationStore, id: str, count: int, scope: Any = None) -> Conversation:
    """Save a conversation with a number of messages."""
    talk = Conversation(conversation_id=id, messages=[said(n) for n in range(count)])
    await store.save(talk, scope=scope)
    return talk


# ---- two writers


async def test_of_two_saves_from_one_revision_one_raises(any_url: str) -> None:
    async with KeepstateConversationStore.from_url(any_url) as store:
        await filled(store, "c", 2)
        both = [await store.load("c"), await store.load("c")]
        for n, talk in enumerate(both):
            assert talk is not None
            talk.messages.append(said(10 + n))

        done = await asyncio.gather(*(store.save(talk) for talk in both if talk), return_exceptions=True)

        assert sorted(type(each).__name__ for each in done) == ["ConversationConflict", "list"]
        kept = await store.load("c")
        assert kept is not None
        assert len(kept.messages) == 3


async def test_a_first_save_does_not_replace_the_conversation_of_another_process(shared_url: str) -> None:
    async with (
        KeepstateConversationStore.from_url(shared_url) as one,
        KeepstateConversationStore.from_url(shared_url) as other,
    ):
        await filled(one, "c", 2)
        with pytest.raises(ConversationConflict):
            await filled(other, "c", 4)

        assert len(await names(other, "entry/")) == 2


async def test_a_fork_raced_by_the_deletion_of_its_source_is_whole_or_refused(any_url: str) -> None:
    async with KeepstateConversationStore.from_url(any_url) as store:
        for n in range(12):
            talk = await filled(store, f"c{n}", 6)
            forked, deleted = await asyncio.gather(
                store.fork(f"c{n}", new_conversation_id=f"f{n}", at=3),
                store.delete(f"c{n}"),
                return_exceptions=True,
            )
            assert deleted is None
            if isinstance(forked, BaseException):
                assert isinstance(forked, UserError), forked
                assert await store.load(f"f{n}") is None
            else:
                found = await store.load(f"f{n}")
                assert found is not None
                assert found.messages == talk.messages[:3]
                await store.delete(f"f{n}")

        assert await names(store) == []


async def test_a_fork_and_its_source_grow_side_by_side(any_url: str) -> None:
    async with KeepstateConversationStore.from_url(any_url) as store:
        source = await filled(store, "c", 3)
        fork = await store.fork("c", new_conversation_id="f")
        for n in range(5):
            source.messages.append(said(100 + n))
            fork.messages.append(said(200 + n))
            await asyncio.gather(store.save(source), store.save(fork))

        for talk in (source, fork):
            found = await store.load(talk.conversation_id)
            assert found is not None
            assert found.messages == talk.messages
        assert len(await names(store, "message/")) == 3 + 5 + 5


# ---- large saves


async def test_a_save_of_thousands_is_invisible_until_it_is_whole(
    any_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pydantic_values, "AT_ONCE", 20)
    async with KeepstateConversationStore.from_url(any_url) as store:
        talk = Conversation(conversation_id="c", messages=[said(n) for n in range(400)])
        task = asyncio.create_task(store.save(talk))
        while not await names(store, "message/"):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

        assert task.cancelled()
        assert 0 < len(await names(store, "message/")) < 400
        assert await store.load("c") is None
        assert await store.sweep() == 0  # it could still go on
        monkeypatch.setattr(saves, "_STAGED_US", 0)
        task = asyncio.create_task(store.save(talk))
        while len(await names(store, "line/")) < 2:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

        assert await store.sweep() > 0
        assert len(await names(store, "line/")) == 1


async def test_a_long_save_goes_on_while_other_conversations_are_deleted(
    any_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pydantic_values, "AT_ONCE", 4)
    async with KeepstateConversationStore.from_url(any_url) as store:
        base = await filled(store, "c", 3)
        talk = Conversation(
            conversation_id="c",
            messages=[*base.messages, *(said(n) for n in range(100))],
            revision=base.revision,
            new_message_index=3,
        )
        task = asyncio.create_task(store.save(talk))
        while not task.done():
            await filled(store, "other", 2)
            await store.delete("other")

        await task
        found = await store.load("c")
        assert found is not None
        assert found.messages == talk.messages
        await store.delete("c")
        assert await names(store) == []


async def test_a_long_save_whose_beginning_is_deleted_is_refused(
    any_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pydantic_values, "AT_ONCE", 1)
    async with KeepstateConversationStore.from_url(any_url) as store:
        await filled(store, "c", 1)
        source = await store.load_entries("c")
        assert source is not None
        parent_id = source[0].id
        entries: list[ConversationEntry] = []
        for n in range(150):
            entries.append(ConversationEntry(parent_id=parent_id, message=said(n)))
            parent_id = entries[-1].id
        record = ConversationRecord(conversation_id="d", head_id=parent_id)
        task = asyncio.create_task(store.write_record(record, new_entries=entries, expected_revision=None))
        while len(await names(store, "line/")) < 2:
            await asyncio.sleep(0)
        await store.delete("c")

        with pytest.raises(ConversationConflict):
            await task
        assert await store.load("d") is None


async def test_messages_of_megabytes_are_saved_and_loaded_together(any_url: str) -> None:
    big = [
        ModelRequest(parts=[UserPromptPart([BinaryContent(bytes([n]) * 700_000, media_type="audio/wav")])])
        for n in range(14)
    ]
    huge = ModelRequest(parts=[UserPromptPart("x" * 3_000_000)])
    async with KeepstateConversationStore.from_url(any_url) as store:
        await store.save(Conversation(conversation_id="c", messages=[*big, huge]))

        found = await store.load("c")
        assert found is not None
        assert found.messages == [*big, huge]
        await store.delete("c")
        assert await names(store) == []


# ---- deletion


async def test_a_deletion_that_is_interrupted_is_completed_by_the_next_one(
    any_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "_DELETED_AT_ONCE", 10)
    async with KeepstateConversationStore.from_url(any_url) as store:
        await filled(store, "c", 300)
        await filled(store, "other", 2)
        task = asyncio.create_task(store.delete("c"))
        while len(await names(store, "message/")) == 302:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

        assert await store.load("c") is None
        assert 2 < len(await names(store, "message/")) < 302
        await store.delete("other")
        assert await names(store) == []


DELETER = """
import asyncio, sys
from keepstate.adapters.pydantic_ai import KeepstateConversationStore, lines

lines._DELETED_AT_ONCE = 1

async def main():
    async with KeepstateConversationStore.from_url(sys.argv[1]) as store:
        print("began", flush=True)
        await store.delete("c")

asyncio.run(main())
"""


@pytest.mark.slow
async def test_a_deleter_that_is_killed_leaves_nothing_that_a_sweep_does_not_delete(shared_url: str) -> None:
    async with KeepstateConversationStore.from_url(shared_url) as store:
        await filled(store, "c", 1_000)
        process = subprocess.Popen(
            [sys.executable, "-c", DELETER, shared_url], stdout=subprocess.PIPE, env={**os.environ}
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"began\n"
        while await store.read_record("c") is not None:
            await asyncio.sleep(0.01)
        process.kill()
        process.communicate()

        assert process.returncode != 0
        assert await store.load("c") is None
        left = len(await names(store, "message/"))
        assert left > 0
        assert await store.sweep() == left
        assert await names(store) == []


async def test_erasing_a_scope_leaves_no_byte_of_it(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    async with KeepstateConversationStore.from_url(path, record=True) as store:
        secret = ModelRequest(parts=[UserPromptPart("the word is abracadabra")])
        await store.save(Conversation(conversation_id="c", messages=[secret]), scope="ann")
        await filled(store, "d", 2, "bob")

        erased = await store.erase("ann")

        assert erased.entries > 0
        assert [each.conversation_id for each in await store.list_conversations()] == ["d"]
    assert b"abracadabra" not in b"".join(each.read_bytes() for each in tmp_path.iterdir() if each.is_file())


async def test_an_erasure_that_is_interrupted_is_completed_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "_DELETED_AT_ONCE", 1)
    async with KeepstateConversationStore.from_url(tmp_path / "state.db") as store:
        messages: list[ModelMessage] = [ModelRequest(parts=[UserPromptPart("the word is abracadabra")])] * 60
        await store.save(Conversation(conversation_id="c", messages=messages), scope="ann")
        task = asyncio.create_task(store.erase("ann"))
        while await store.list_conversations(scope="ann"):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert await names(store, "message/")
        assert (await store.erase("ann")).entries > 0
        assert await names(store) == []
        assert (await store.erase("ann")).entries == 0
    assert b"abracadabra" not in b"".join(each.read_bytes() for each in tmp_path.iterdir() if each.is_file())


async def test_the_store_of_an_owner_is_dropped_as_a_whole(any_url: str) -> None:
    async with (
        KeepstateConversationStore.from_url(any_url, owner="ann") as ann,
        KeepstateConversationStore.from_url(any_url, owner="bob") as bob,
    ):
        await filled(ann, "c", 3)
        await filled(bob, "c", 5)

        assert (await ann.erase("ann")).spaces == 1
        assert await ann.load("c") is None
        found = await bob.load("c")
        assert found is not None
        assert len(found.messages) == 5


# ---- costs


class CountedStore(MemoryStore):
    """A store that counts its calls."""

    trips = 0

    async def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        self.trips += 1
        return await super().apply(batches)

    async def read(self, space: str, keys: Sequence[bytes], *, at_ms: int | None = None) -> Reading:
        self.trips += space != INDEX_SPACE  # which the background delivery looks for
        return await super().read(space, keys, at_ms=at_ms)

    async def scan(self, space: str, prefix: bytes, **options: Any) -> Page:
        self.trips += 1
        return await super().scan(space, prefix, **options)


@pytest.fixture
def counted() -> Iterator[CountedStore]:
    opened = CountedStore(runner=ThreadRunner())
    finish(opened.open())
    yield opened
    finish(opened.close())


async def trips(counted: CountedStore, work: Callable[[], Awaitable[T]]) -> tuple[int, T]:
    """Return the number of calls of the store, and the result of work."""
    before = counted.trips
    result = await work()
    return counted.trips - before, result


async def test_what_calls_cost_in_round_trips(counted: CountedStore) -> None:
    store = KeepstateConversationStore(counted)
    for n in range(300):
        await filled(store, f"c{n}", 2, "u" if n % 2 else None)
    talk = await filled(store, "long", 1_000)
    for n in range(2):
        talk.messages.append(said(5_000 + n))
        await store.save(talk)
    talk.messages.append(said(6_000))

    assert (await trips(counted, lambda: store.save(talk)))[0] == 3  # for the record, and a read and a batch
    assert (await trips(counted, lambda: store.load("long")))[0] == 4
    assert (await trips(counted, lambda: store.load("long", limit=20)))[0] == 3
    listed, records = await trips(counted, lambda: store.list_conversations(scope="u", limit=10))
    assert (listed, [each.conversation_id for each in records]) == (3, [f"c{n}" for n in range(299, 279, -2)])
    assert len(await store.list_conversations()) == 301
    assert len(await store.list_conversations(scope="u")) == 150


async def test_a_history_of_many_branches_is_read_in_few_round_trips(counted: CountedStore) -> None:
    store = KeepstateConversationStore(counted)
    talk = await filled(store, "c", 4)
    for n in range(150):
        talk = await store.branch("c", at=len(talk.messages) - 1, expected_revision=talk.revision)
        talk.messages += [said(10 + 2 * n), said(11 + 2 * n)]
        await store.save(talk)

    cost, found = await trips(counted, lambda: store.load("c"))
    assert found is not None
    assert found.messages == talk.messages
    assert len(await names(store, "line/")) == 151
    assert cost <= 6


# ---- values


async def test_values_come_back_as_pydantic_ai_serializes_them(any_url: str) -> None:
    messages: list[ModelMessage] = [
        ModelRequest(parts=[UserPromptPart(["look", BinaryContent(b"RIFF\0", media_type="audio/wav")])]),
        ModelResponse(parts=[ToolCallPart("read", {"path": "a"}, "call_1")]),
        ModelRequest(parts=[ToolReturnPart("read", {"raw": b"\0\xff", "at": WHEN}, "call_1")]),
    ]
    expected = ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(messages))
    async with KeepstateConversationStore.from_url(any_url) as store:
        await store.save(Conversation(conversation_id="c", messages=messages))

        found = await store.load("c")
        assert found is not None
        assert found.messages == expected
        part = found.messages[2].parts[0]
        assert isinstance(part, ToolReturnPart)
        assert base64.urlsafe_b64decode(part.content["raw"]) == b"\0\xff"


async def test_a_value_that_pydantic_ai_cannot_serialize_is_named_and_nothing_is_stored() -> None:
    class Odd:
        pass

    async with KeepstateConversationStore.from_url("memory://") as store:
        message = ModelRequest(parts=[ToolReturnPart("read", Odd(), "call_1")])
        with pytest.raises(InvalidError, match=r"entry '.*' of conversation 'c' cannot be stored.*Odd"):
            await store.save(Conversation(conversation_id="c", messages=[said(1), message]))

        assert await names(store) == []


async def test_wrong_entries_are_refused() -> None:
    async with KeepstateConversationStore.from_url("memory://") as store:
        entry = ConversationEntry(id="e", parent_id=None, message=said(1))
        record = ConversationRecord(conversation_id="c", head_id="e")
        with pytest.raises(InvalidError, match="the same id"):
            await store.write_record(record, new_entries=[entry, entry], expected_revision=None)
        await store.write_record(record, new_entries=[entry], expected_revision=None)
        other = ConversationRecord(conversation_id="d", head_id="e")
        with pytest.raises(InvalidError, match="'e' of conversation 'd' exists"):
            await store.write_record(other, new_entries=[entry], expected_revision=None)
        for unknown in (
            ConversationRecord(conversation_id="d", head_id="x"),
            ConversationRecord(conversation_id="d", head_id="e", branches=["x"]),
        ):
            with pytest.raises(ConversationConflict):
                await store.write_record(unknown, expected_revision=None)
        with pytest.raises(NotFoundError, match="entry 'x' does not exist"):
            await store.read_entry("x")
        with pytest.raises(LookupError):
            await store.read_history("x")
        with pytest.raises(InvalidError, match="limit"):
            await store.read_records(limit=-1)
        assert await store.read_records(limit=0) == []
        assert await store.read_history("e", limit=0) == await store.read_history(None) == []


async def test_a_recorded_store_shows_an_earlier_moment(tmp_path: Path) -> None:
    async with KeepstateConversationStore.from_url(tmp_path / "a.db", record=True, author="ann") as store:
        talk = await filled(store, "c", 2)
        talk.messages.append(said(9))
        await store.save(talk)

        async def before(ks: Keepstate) -> tuple[str | None, int]:
            space = ks.space("pydantic/main", record=True)
            moment = await space.at("main~1")
            commits = [commit async for commit in space.history.log()]
            return commits[0].author, len([name for name in moment if name.startswith("message/")])

        assert await store.call(before) == ("ann", 2)
