"""The contract of adapters for the four stores of the Agent Framework, on every backend."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from agent_framework import AgentSession, Content, Message, WorkflowCheckpoint

from keepstate.adapters.agent_framework import (
    KeepstateCheckpointStorage,
    KeepstateHistoryProvider,
    KeepstateSessionStore,
)
from keepstate.testing.adapter_contract import AdapterContract
from tests.adapters.conftest import BACKENDS, url_of

RARE = ("file", "redis_cluster")
KINDS = [kind if kind not in RARE else pytest.param(kind, marks=pytest.mark.deep) for kind in BACKENDS]
"""The stores that messages and sessions are tried on. `make deep` tries the rare ones too."""


class TestCheckpoints(AdapterContract):
    """A conversation is a context, and each call adds a checkpoint with the items in its state."""

    @pytest.fixture
    def url(self, any_url: str) -> str:
        return any_url

    def make(self, url: str) -> KeepstateCheckpointStorage:
        return KeepstateCheckpointStorage(url)

    def item(self, n: int) -> Any:
        return {"n": n, "text": f"item {n}"}

    def rich_item(self) -> Any:
        return {
            "text": "naïve 🦜",
            "tuple": (1, ("a",)),
            "set": {1, 2},
            "data": b"\0\xff",
            "float": 0.1 + 0.2,
        }

    async def add(self, adapter: KeepstateCheckpointStorage, id: str, items: Sequence[Any]) -> None:
        await adapter.other(id).save(of_items(items))

    async def read(self, adapter: KeepstateCheckpointStorage, id: str) -> list[Any]:
        return await read_items(adapter.other(id))

    async def clear(self, adapter: KeepstateCheckpointStorage, id: str) -> None:
        await adapter.other(id).prune(workflow_name="flow", keep_last=0)

    async def add_owned(
        self, adapter: KeepstateCheckpointStorage, owner: str, id: str, items: Sequence[Any]
    ) -> None:
        await adapter.other(id, owner=owner).save(of_items(items))

    async def read_owned(self, adapter: KeepstateCheckpointStorage, owner: str, id: str) -> list[Any]:
        return await read_items(adapter.other(id, owner=owner))

    async def erase(self, adapter: KeepstateCheckpointStorage, owner: str) -> None:
        await adapter.erase(owner)


def of_items(items: Sequence[Any]) -> WorkflowCheckpoint:
    return WorkflowCheckpoint("flow", "hash", state={"items": [*items]})


async def read_items(storage: KeepstateCheckpointStorage) -> list[Any]:
    found = await storage.list_checkpoints(workflow_name="flow")
    return [item for checkpoint in found for item in checkpoint.state["items"]]


class TestMessages(AdapterContract):
    """A conversation is a session, and each call adds messages. A batch that is repeated is there once."""

    idempotent = True

    @pytest.fixture(params=KINDS)
    def url(self, request: pytest.FixtureRequest, tmp_path: Path) -> str:
        return url_of(request.param, request, tmp_path)

    def make(self, url: str) -> KeepstateHistoryProvider:
        return KeepstateHistoryProvider(url)

    def item(self, n: int) -> Any:
        return Message("user", [f"message {n}"], message_id=str(n)).to_dict()

    def rich_item(self) -> Any:
        call = Content.from_function_call("call_1", "look", arguments={"q": "naïve 🦜", "n": [1, 2.5, None]})
        properties = {"k": {"x": [1]}}
        return Message(
            "user", ["text\0", call], author_name="ann", additional_properties=properties
        ).to_dict()

    async def add(self, adapter: KeepstateHistoryProvider, id: str, items: Sequence[Any]) -> None:
        await adapter.save_messages(id, messages(items))

    async def read(self, adapter: KeepstateHistoryProvider, id: str) -> list[Any]:
        return [message.to_dict() for message in await adapter.get_messages(id)]

    async def clear(self, adapter: KeepstateHistoryProvider, id: str) -> None:
        await adapter.clear(id)

    async def add_owned(
        self, adapter: KeepstateHistoryProvider, owner: str, id: str, items: Sequence[Any]
    ) -> None:
        await adapter.save_messages(id, messages(items), state={"owner": owner})

    async def read_owned(self, adapter: KeepstateHistoryProvider, owner: str, id: str) -> list[Any]:
        return [message.to_dict() for message in await adapter.get_messages(id, state={"owner": owner})]

    async def erase(self, adapter: KeepstateHistoryProvider, owner: str) -> None:
        await adapter.erase(owner)


def messages(items: Sequence[Any]) -> list[Message]:
    return [Message.from_dict(item) for item in items]


class TestSessions(AdapterContract):
    """A conversation is a session, and each call changes a list in its state."""

    @pytest.fixture(params=KINDS)
    def url(self, request: pytest.FixtureRequest, tmp_path: Path) -> str:
        return url_of(request.param, request, tmp_path)

    def make(self, url: str) -> KeepstateSessionStore:
        return KeepstateSessionStore(url)

    def item(self, n: int) -> Any:
        return {"n": n}

    def rich_item(self) -> Any:
        return {"text": "naïve 🦜\0", "list": [1, 2.5, None, True], "deep": {"a": {"b": []}}}

    async def add(self, adapter: KeepstateSessionStore, id: str, items: Sequence[Any]) -> None:
        def change(session: AgentSession) -> None:
            session.state.setdefault("items", []).extend(items)

        await adapter.update(id, change)

    async def read(self, adapter: KeepstateSessionStore, id: str) -> list[Any]:
        session = await adapter.get(id)
        return [] if session is None else session.state["items"]

    async def clear(self, adapter: KeepstateSessionStore, id: str) -> None:
        await adapter.delete(id)

    async def add_owned(
        self, adapter: KeepstateSessionStore, owner: str, id: str, items: Sequence[Any]
    ) -> None:
        await self.add(adapter.of(owner), id, items)

    async def read_owned(self, adapter: KeepstateSessionStore, owner: str, id: str) -> list[Any]:
        return await self.read(adapter.of(owner), id)

    async def erase(self, adapter: KeepstateSessionStore, owner: str) -> None:
        await adapter.erase(owner)
