"""Memories are found by words, each event once, and a deleted one does not come back."""

from __future__ import annotations

from typing import Any

from google.adk.memory.memory_entry import MemoryEntry
from google.adk.sessions.session import Session
from google.genai import types

from keepstate.adapters.google_adk import KeepstateMemoryService
from tests.adapters.google_adk.events import said

Who = dict[str, Any]


async def found(memories: KeepstateMemoryService, query: str, user_id: str = "ann") -> list[str]:
    response = await memories.search_memory(app_name="shop", user_id=user_id, query=query)
    return ["".join(part.text or "" for part in each.content.parts or []) for each in response.memories]


async def test_a_session_is_remembered_once_by_the_ids_of_its_events(any_url: str, who: Who) -> None:
    events = [said("I live in Oslo", timestamp=1.0), said("I like tea"), said()]
    session = Session(**who, id="1", events=events)
    async with KeepstateMemoryService(any_url) as memories:
        await memories.add_session_to_memory(session)
        session.events.append(said("I moved to Rome"))
        await memories.add_session_to_memory(session)
        response = await memories.search_memory(**who, query="Where in OSLO?")

        assert [each.id for each in response.memories] == [events[0].id, session.events[-1].id][:1]
        assert response.memories[0].content == events[0].content
        assert response.memories[0].author == "user"
        assert response.memories[0].timestamp is not None
        assert response.memories[0].timestamp.startswith("1970-01-01T")
        assert response.memories[0].custom_metadata == {"session_id": "1"}
        assert await found(memories, "rome") == ["I moved to Rome"]
        assert sorted(await found(memories, "i")) == ["I like tea", "I live in Oslo", "I moved to Rome"]
        assert await found(memories, "oslo", "bob") == await found(memories, "paris") == []
        assert await found(memories, "") == []


async def test_the_best_ten_are_returned_and_of_equal_ones_the_latest(who: Who) -> None:
    events = [said(f"note {n}", timestamp=float(n * 86_400)) for n in range(20)]
    async with KeepstateMemoryService("memory://") as memories:
        await memories.add_events_to_memory(**who, events=[*events, said("a note of a note in tea")])

        assert await found(memories, "note tea") == ["a note of a note in tea"] + [
            f"note {n}" for n in range(19, 10, -1)
        ]


async def test_words_are_found_in_scripts_without_spaces_and_in_any_case(who: Who) -> None:
    async with KeepstateMemoryService("memory://") as memories:
        await memories.add_events_to_memory(**who, events=[said("私はPythonを使う"), said("STRASSE")])

        assert await found(memories, "python") == await found(memories, "使") == ["私はPythonを使う"]
        assert await found(memories, "straße") == ["STRASSE"]
        assert await found(memories, "thon") == []


async def test_a_deleted_memory_is_not_remembered_again_unless_it_is_given(any_url: str, who: Who) -> None:
    event = said("my secret")
    async with KeepstateMemoryService(any_url) as memories:
        await memories.add_events_to_memory(**who, events=[event], session_id="1")
        await memories.delete_memory(**who, memory_id=event.id)
        await memories.delete_memory(**who, memory_id="none")
        await memories.delete_memory(**who)
        await memories.add_session_to_memory(Session(**who, id="1", events=[event]))
        assert await found(memories, "secret") == []
        entry = MemoryEntry(id=event.id, content=types.Content(parts=[types.Part(text="not so secret")]))
        await memories.add_memory(**who, memories=[entry], custom_metadata={"by": "ann"})
        await memories.add_memory(
            **who, memories=[entry.model_copy(update={"id": None, "timestamp": "soon"})]
        )
        response = await memories.search_memory(**who, query="secret")

        assert [each.timestamp == "soon" for each in response.memories] == [True, False]
        assert response.memories[1].id == event.id
        assert response.memories[1].custom_metadata == {"by": "ann"}
        assert response.memories[0].id not in (None, event.id)


async def test_nothing_of_an_erased_user_is_found(any_url: str) -> None:
    async with KeepstateMemoryService(any_url) as memories:
        for user in ("ann", "an"):
            await memories.add_events_to_memory(app_name="shop", user_id=user, events=[said("tea")])
        await memories.erase("ann")

        assert (await found(memories, "tea"), await found(memories, "tea", "an")) == ([], ["tea"])
