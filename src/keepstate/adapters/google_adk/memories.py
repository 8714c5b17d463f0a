"""`KeepstateMemoryService`: what users said, found by words, in a space for each user of an app.

A memory is a document, `memory/ID`. That of a deleted one is empty, so that its event is not added again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from keepstate.adapters.base import RecordingAdapter
from keepstate.engine.kernel.arguments import check_text
from keepstate.engine.space.space import Space, Transaction
from keepstate.errors import MissingExtraError
from keepstate.memories.words import WordIndex
from keepstate.names import segment

try:
    from google.adk.events.event import Event
    from google.adk.memory.base_memory_service import BaseMemoryService, SearchMemoryResponse
    from google.adk.memory.memory_entry import MemoryEntry
    from google.adk.platform import time as platform_time
    from google.adk.platform import uuid as platform_uuid
    from google.adk.sessions.session import Session
except ImportError as error:
    raise MissingExtraError.of("google-adk", "google-adk") from error

_FOUND: Final = 10
"""Memories that one search returns, as ADK's own services do."""
_AT_ONCE: Final = 400


class KeepstateMemoryService(RecordingAdapter, BaseMemoryService):
    """ADK's memory service on a keepstate store. Give it to a `Runner`.

    A memory is found by its words, without a model. Each search reads all memories of the user.

    Args:
        store: A store URL, the path of an SQLite file, an open store, or a handle on one.
        options: `tenant`, `author`, `encryption` and `record`; see `RecordingOptions`.

    Raises:
        InvalidError: An argument is wrong, or the URL names no store.
    """

    kind = "adk-memories"

    # ---- ADK's methods

    async def add_session_to_memory(self, session: Session) -> None:
        """Remember the events of a session that have content. What was remembered before stays."""
        await self.add_events_to_memory(
            app_name=session.app_name, user_id=session.user_id, events=session.events, session_id=session.id
        )

    async def add_events_to_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        events: Sequence[Event],
        session_id: str | None = None,
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Remember events that have content, in batches of 400; each once by its id.

        Args:
            app_name: The name of the app.
            user_id: The user.
            events: The events. One that was remembered before, or whose memory was deleted, is left out.
            session_id: The session, for the metadata `session_id` of the memories.
            custom_metadata: Values that search results have as their metadata.
        """
        metadata = {**(custom_metadata or {}), **({} if session_id is None else {"session_id": session_id})}
        memories = [
            MemoryEntry(
                id=event.id,
                content=event.content,
                author=event.author,
                timestamp=datetime.fromtimestamp(event.timestamp).isoformat(),
                custom_metadata=metadata,
            )
            for event in events
            if event.content is not None and event.content.parts
        ]
        await self._add(app_name, user_id, memories, replace=False)

    async def add_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        memories: Sequence[MemoryEntry],
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Remember entries, in batches of 400. An entry replaces the one with its id.

        Args:
            app_name: The name of the app.
            user_id: The user.
            memories: The entries. One without an id gets one, and one without a timestamp the present time.
            custom_metadata: Values for the metadata of all entries.
        """
        now = datetime.fromtimestamp(platform_time.get_time()).isoformat()
        made = [
            each.model_copy(
                update={
                    "id": each.id or platform_uuid.new_uuid(),
                    "timestamp": each.timestamp or now,
                    "custom_metadata": {**each.custom_metadata, **(custom_metadata or {})},
                }
            )
            for each in memories
        ]
        await self._add(app_name, user_id, made, replace=True)

    async def search_memory(self, *, app_name: str, user_id: str, query: str) -> SearchMemoryResponse:
        """Return at most ten memories that share words with a query, the best first.

        Rare words count more than frequent ones, and a memory that repeats a word counts more; see
        `keepstate.memories.words`. Of equal ones, the latest comes first.
        """

        async def work(target: Space) -> list[MemoryEntry]:
            index, kept = WordIndex(), dict[str, dict[str, Any]]()
            async for name, stored in target.documents.items(prefix="memory/"):
                if stored is not None:
                    kept[name] = stored
                    index.put(name, _text(stored))
            hits = index.nearest(check_text("query", query), _FOUND)
            hits.sort(key=lambda hit: kept[hit[0]]["timestamp"], reverse=True)
            hits.sort(key=lambda hit: -hit[1])
            return [MemoryEntry.model_validate(kept[name]) for name, _ in hits[:_FOUND]]

        return SearchMemoryResponse(memories=await self.space(app_name, owner=user_id).call(work))

    async def delete_memory(self, *, app_name: str, user_id: str, memory_id: str | None = None) -> None:
        """Forget a memory. Its event is not remembered again; `add_memory` with its id remembers it.

        The words stay in the log of the space until that is cut, and in its history if there is one. `erase`
        removes all of a user.
        """
        if not memory_id:
            return
        name = _name(memory_id)

        async def work(tx: Transaction) -> None:
            if await tx.documents.get(name) is not None:
                await tx.documents.put(name, None)

        await self.space(app_name, owner=user_id).transact(work, message=f"delete {memory_id}")

    async def _add(
        self, app_name: str, user_id: str, memories: Sequence[MemoryEntry], *, replace: bool
    ) -> None:
        space = self.space(app_name, owner=user_id)
        stored = {_name(each.id or ""): each.model_dump(mode="json", exclude_none=True) for each in memories}
        names = list(stored)
        for begin in range(0, len(names), _AT_ONCE):
            some = names[begin : begin + _AT_ONCE]

            async def work(tx: Transaction, some: Sequence[str] = some) -> None:
                found = {} if replace else await tx.documents.entries(*some)
                for name in some:
                    if name not in found:
                        await tx.documents.put(name, stored[name])

            await space.transact(work, message="remember")


def _name(id: str) -> str:
    return f"memory/{segment(id)}"


def _text(stored: Mapping[str, Any]) -> str:
    parts: list[dict[str, Any]] = stored["content"].get("parts", [])
    return " ".join(part["text"] for part in parts if "text" in part)
