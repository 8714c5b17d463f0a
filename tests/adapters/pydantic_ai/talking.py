"""Conversations of Pydantic AI to store, and a random run of operations on a store of them."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from pydantic_ai.conversation import Conversation, ConversationTypeAdapter
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    UserPromptPart,
)
from pydantic_ai.tools import DeferredToolRequests
from pydantic_ai.usage import RunUsage

if TYPE_CHECKING:  # the Pydantic AI of the oldest harness does not have it
    from pydantic_ai.conversation_store import ConversationStore

STEPS: Final = 60
WHEN: Final = datetime(2026, 1, 2, tzinfo=UTC)
SCOPES: Final = (None, "u1", "u2")
KINDS: Final = (
    *("load", "load", "save", "save", "save", "save again", "restore", "rewrite", "long"),
    *("fork", "fork", "branch", "branch", "branch at", "delete", "list", "entries"),
)


def said(n: int) -> ModelMessage:
    """Return the message of a number; those of other numbers are not equal to it."""
    if n % 2:
        return ModelResponse(parts=[TextPart(f"a{n}")], timestamp=WHEN)
    return ModelRequest(parts=[UserPromptPart(f"q{n}", timestamp=WHEN)], timestamp=WHEN)


def text_of(message: ModelMessage) -> str:
    """Return the text of a message that `said` made."""
    part = message.parts[0]
    assert isinstance(part, UserPromptPart | TextPart)
    return str(part.content)


class RandomRun:
    """The same random operations on any store: with equal stores, all answers are equal."""

    def __init__(self, store: ConversationStore, seed: int) -> None:
        self.store, self.chance = store, random.Random(seed)
        self.loaded: dict[str, Conversation] = {}

    async def step(self) -> tuple[str, Any]:
        """Do the next operation; return its name, and its answer or the name of its error."""
        kind = self.chance.choice(KINDS)
        id, other = f"c{self.chance.randrange(4)}", f"f{self.chance.randrange(3)}"
        number, scope = self.chance.randrange(100), self.chance.choice(SCOPES)
        id = self.chance.choice((id, id, other))
        do: Callable[[str, str, int, str | None], Awaitable[Any]] = getattr(self, kind.replace(" ", "_"))
        try:
            return f"{kind} {id} {other} {number} {scope}", await do(id, other, number, scope)
        except (UserError, LookupError) as error:
            return f"{kind} {id} {other} {number} {scope}", type(error).__name__

    async def load(self, id: str, other: str, number: int, scope: str | None) -> Any:
        found = await self.store.load(id, limit=None if number % 3 else number % 5, scope=scope)
        if found is None:
            self.loaded.pop(id, None)
            return None
        self.loaded[id] = found
        return self._told(found)

    async def save(self, id: str, other: str, number: int, scope: str | None) -> Any:
        talk = self.loaded.setdefault(id, Conversation(conversation_id=id))
        talk.messages.extend(said(number + each) for each in range(1 + number % 3))
        talk.usage = talk.usage + RunUsage(requests=1)
        talk.deferred_tool_requests = (
            DeferredToolRequests(
                approvals=[ToolCallPart("pay", {"n": number}, "call")], metadata={"call": {}}
            )
            if number % 7 == 0
            else None
        )
        return [text_of(entry.message) for entry in await self.store.save(talk, scope=scope)]

    async def save_again(self, id: str, other: str, number: int, scope: str | None) -> Any:
        talk = self.loaded.get(id)
        return None if talk is None else len(await self.store.save(talk))

    async def restore(self, id: str, other: str, number: int, scope: str | None) -> Any:
        """Save a conversation that was serialized, which has forgotten what is stored."""
        if (talk := self.loaded.get(id)) is None:
            return None
        back = ConversationTypeAdapter.validate_json(ConversationTypeAdapter.dump_json(talk))
        back.messages.append(said(number))
        self.loaded[id] = back
        return len(await self.store.save(back))

    async def rewrite(self, id: str, other: str, number: int, scope: str | None) -> Any:
        talk = await self.store.load(id)
        if talk is None:
            return None
        talk.messages = [said(number), *talk.messages[number % 4 :]]
        return len(await self.store.save(replace(talk)))

    async def long(self, id: str, other: str, number: int, scope: str | None) -> Any:
        talk = await self.store.load(id) or Conversation(conversation_id=id)
        talk.messages.extend(said(each) for each in range(number // 2))
        return len(await self.store.save(talk))

    async def fork(self, id: str, other: str, number: int, scope: str | None) -> Any:
        entries = await self.store.load_entries(id)
        at = entries[number % len(entries)].id if entries else None
        forked = await self.store.fork(id, new_conversation_id=other, from_entry=at, scope=scope)
        self.loaded[other] = forked
        return self._told(forked)

    async def branch(self, id: str, other: str, number: int, scope: str | None) -> Any:
        record = await self.store.read_record(id)
        entries = await self.store.load_entries(id)
        if record is None or not entries:
            return None
        ends = [entries[number % len(entries)].id, *record.branches]
        self.loaded[id] = await self.store.branch(
            id, from_entry=ends[number % len(ends)], expected_revision=record.revision
        )
        return self._told(self.loaded[id])

    async def branch_at(self, id: str, other: str, number: int, scope: str | None) -> Any:
        talk = self.loaded.get(id)
        revision = None if talk is None else talk.revision
        branched = await self.store.branch(id, at=number % 4, expected_revision=revision, scope=scope)
        self.loaded[id] = branched
        return self._told(branched)

    async def delete(self, id: str, other: str, number: int, scope: str | None) -> Any:
        return await self.store.delete(id, scope=scope)

    async def list(self, id: str, other: str, number: int, scope: str | None) -> Any:
        records = await self.store.list_conversations(scope=scope, limit=number % 6 or None)
        return [
            (each.conversation_id, each.scope, len(each.branches), each.forked_from, each.usage)
            for each in records
        ]

    async def entries(self, id: str, other: str, number: int, scope: str | None) -> Any:
        entries = await self.store.load_entries(id, limit=number % 9 or None, scope=scope)
        if not entries:
            return entries
        before = [None, *(entry.id for entry in entries)]
        assert [entry.parent_id for entry in entries][1:] == before[1:-1]
        assert await self.store.read_entry(entries[-1].id) == entries[-1]
        return [(text_of(entry.message), entry.parent_id is None) for entry in entries]

    def _told(self, talk: Conversation) -> Any:
        texts = [text_of(message) for message in talk.messages]
        return texts, talk.usage, talk.deferred_tool_requests, talk.new_message_index
