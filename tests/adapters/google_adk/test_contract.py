"""The services keep the contract of adapters. Items of a session are the parts of its events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.events.event import Event
from google.adk.sessions.session import Session
from google.genai import types

from keepstate.adapters.google_adk import (
    KeepstateArtifactService,
    KeepstateMemoryService,
    KeepstateSessionService,
)
from keepstate.testing.adapter_contract import AdapterContract

APP = "shop"
RICH = types.Part(
    function_response=types.FunctionResponse(
        id="1", name="look", response={"naïve 🦜": [1.5, None, {"deep": True}]}, parts=[]
    ),
    thought_signature=b"\0\xff",
)


class Sessions(AdapterContract):
    """On every backend. ADK strips ids, so ids are put between brackets."""

    options: ClassVar[dict[str, Any]] = {}

    @pytest.fixture
    def url(self, any_url: str) -> str:
        return any_url

    def make(self, url: str) -> KeepstateSessionService:
        return KeepstateSessionService(url, **self.options)

    def item(self, n: int) -> types.Part:
        return types.Part(text=f"part {n}")

    def rich_item(self) -> types.Part:
        return RICH

    async def add(self, adapter: KeepstateSessionService, id: str, items: Sequence[Any]) -> None:
        await self.add_owned(adapter, "ann", id, items)

    async def read(self, adapter: KeepstateSessionService, id: str) -> list[Any]:
        return await self.read_owned(adapter, "ann", id)

    async def clear(self, adapter: KeepstateSessionService, id: str) -> None:
        await adapter.delete_session(app_name=APP, user_id="ann", session_id=f"[{id}]")

    async def add_owned(
        self, adapter: KeepstateSessionService, owner: str, id: str, items: Sequence[Any]
    ) -> None:
        """Append one event; on a stale session, load it again, as the error says."""
        event = Event(author="user", content=types.Content(role="user", parts=list(items)))
        while True:
            session = await loaded(adapter, owner, f"[{id}]")
            try:
                await adapter.append_event(session, event)
            except StaleSessionError:
                continue
            return

    async def read_owned(self, adapter: KeepstateSessionService, owner: str, id: str) -> list[Any]:
        session = await adapter.get_session(app_name=APP, user_id=owner, session_id=f"[{id}]")
        return [] if session is None else [part for event in session.events for part in event.content.parts]

    async def erase(self, adapter: KeepstateSessionService, owner: str) -> None:
        await adapter.erase(owner)


async def loaded(adapter: KeepstateSessionService, user_id: str, id: str) -> Session:
    """Return a session, which is created if there is none, as a runner does."""
    key = {"app_name": APP, "user_id": user_id, "session_id": id}
    while True:
        found = await adapter.get_session(**key)
        if found is not None:
            return found
        try:
            return await adapter.create_session(**key)
        except AlreadyExistsError:
            continue


class TestSessions(Sessions):
    """With a space for each session."""


class TestSessionsOfOneSpace(Sessions):
    """With a space for each app."""

    options: ClassVar[dict[str, Any]] = {"space_per": "app"}


class TestArtifacts(AdapterContract):
    """On every backend. Items are versions of a file; those of one call are one version."""

    @pytest.fixture
    def url(self, any_url: str) -> str:
        return any_url

    def make(self, url: str) -> KeepstateArtifactService:
        return KeepstateArtifactService(url)

    def item(self, n: int) -> str:
        return f"line {n}"

    def rich_item(self) -> str:
        return "naïve 🦜\0"

    async def add(self, adapter: Any, id: str, items: Sequence[Any]) -> None:
        await self.add_owned(adapter, "ann", id, items)

    async def read(self, adapter: Any, id: str) -> list[Any]:
        return await self.read_owned(adapter, "ann", id)

    async def clear(self, adapter: Any, id: str) -> None:
        await adapter.delete_artifact(app_name=APP, user_id="ann", session_id="s", filename=id)

    async def add_owned(self, adapter: Any, owner: str, id: str, items: Sequence[Any]) -> None:
        await adapter.save_artifact(
            app_name=APP,
            user_id=owner,
            session_id="s",
            filename=id,
            artifact=types.Part.from_bytes(data="\n".join(items).encode(), mime_type="text/plain"),
        )

    async def read_owned(self, adapter: Any, owner: str, id: str) -> list[Any]:
        key = {"app_name": APP, "user_id": owner, "session_id": "s", "filename": id}
        lines: list[str] = []
        for version in await adapter.list_versions(**key):
            part = await adapter.load_artifact(**key, version=version)
            if part is not None:
                lines += part.inline_data.data.decode().split("\n")
        return lines

    async def erase(self, adapter: Any, owner: str) -> None:
        await adapter.erase(owner)


class TestMemories(AdapterContract):
    """On every backend. An item is an event. The documents are read, because a search returns ten at most."""

    ordered: ClassVar[bool] = False
    idempotent: ClassVar[bool] = True

    @pytest.fixture
    def url(self, any_url: str) -> str:
        return any_url

    def make(self, url: str) -> KeepstateMemoryService:
        return KeepstateMemoryService(url)

    def item(self, n: int) -> tuple[str, str]:
        return f"id {n}", f"text {n}"

    def rich_item(self) -> tuple[str, str]:
        return "rich", "naïve 🦜"

    async def add(self, adapter: Any, id: str, items: Sequence[Any]) -> None:
        await self.add_owned(adapter, id, "shop", items)

    async def read(self, adapter: Any, id: str) -> list[Any]:
        return await self.read_owned(adapter, id, "shop")

    async def clear(self, adapter: Any, id: str) -> None:
        await adapter.erase(id)

    async def add_owned(self, adapter: Any, owner: str, id: str, items: Sequence[Any]) -> None:
        events = [
            Event(author="user", id=each, content=types.Content(role="user", parts=[types.Part(text=text)]))
            for each, text in items
        ]
        await adapter.add_events_to_memory(app_name=id, user_id=owner, events=events)

    async def read_owned(self, adapter: Any, owner: str, id: str) -> list[Any]:
        async def work(space: Any) -> list[tuple[str, str]]:
            return [
                (stored["id"], stored["content"]["parts"][0]["text"])
                async for _, stored in space.documents.items(prefix="memory/")
            ]

        return await adapter.space(id, owner=owner).call(work)

    async def erase(self, adapter: Any, owner: str) -> None:
        await adapter.erase(owner)
