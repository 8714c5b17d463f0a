"""`KeepstateSessionStore` keeps the contract of adapters, and the promises of the Claude Agent SDK."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from claude_agent_sdk import (
    SessionKey,
    SessionStoreEntry,
    delete_session_via_store,
    fold_session_summary,
    fork_session_via_store,
    get_session_messages_from_store,
    list_sessions_from_store,
    project_key_for_directory,
    rename_session_via_store,
)
from claude_agent_sdk.testing import run_session_store_conformance

from keepstate.adapters.claude_agent import KeepstateSessionStore
from keepstate.testing.adapter_contract import IDS, AdapterContract

ID = "0b6f7a52-8f3e-4c8e-9d2a-1c5f0f6a7b10"


def key_of(session: str, project: str = "p", subpath: str | None = None) -> SessionKey:
    key: SessionKey = {"project_key": project, "session_id": session}
    return key if subpath is None else {**key, "subpath": subpath}


def line(n: int, **fields: Any) -> SessionStoreEntry:
    return cast("SessionStoreEntry", {"type": "user", "uuid": f"uuid/{n}", "n": n, **fields})


def said(n: int, text: str, parent: int | None = None) -> SessionStoreEntry:
    uuids = [None if at is None else f"00000000-0000-4000-8000-{at:012}" for at in (n, parent)]
    message = {"role": "user", "content": text}
    return line(
        n, uuid=uuids[0], parentUuid=uuids[1], sessionId=ID, timestamp="2026-01-01T00:00:00Z", message=message
    )


class TestSessionStore(AdapterContract):
    """A conversation is a session, and an item is a line with a uuid."""

    idempotent = True

    @pytest.fixture
    def url(self, any_url: str) -> str:
        return any_url

    def make(self, url: str) -> KeepstateSessionStore:
        self.at = url
        return KeepstateSessionStore(url)

    async def add(self, adapter: KeepstateSessionStore, id: str, items: Sequence[Any]) -> None:
        await adapter.append(key_of(id), list(items))

    async def read(self, adapter: KeepstateSessionStore, id: str) -> list[Any]:
        return await adapter.load(key_of(id)) or []

    def item(self, n: int) -> Any:
        return line(n)

    def rich_item(self) -> Any:
        return line(1, uuid="\ud83d", parts=[1.5, None, True, 2**70, {"ünï\n🦜\x00": "\ud83d"}], z=1, a=2)

    async def clear(self, adapter: KeepstateSessionStore, id: str) -> None:
        await adapter.delete(key_of(id))

    async def add_owned(self, adapter: Any, owner: str, id: str, items: Sequence[Any]) -> None:
        async with KeepstateSessionStore(self.at, owner=owner) as own:
            await self.add(own, id, items)

    async def read_owned(self, adapter: Any, owner: str, id: str) -> list[Any]:
        async with KeepstateSessionStore(self.at, owner=owner) as own:
            return await self.read(own, id)

    async def erase(self, adapter: KeepstateSessionStore, owner: str) -> None:
        assert (await adapter.erase(owner)).spaces == 1


async def test_the_contracts_of_the_sdk_hold(shared_url: str) -> None:
    async with KeepstateSessionStore.from_url(shared_url) as store:

        async def fresh() -> KeepstateSessionStore:
            async def drop(ks: Any) -> None:
                for name in [name async for name in ks.spaces("claude/")]:
                    await ks.drop(name)

            await store.call(drop)
            return store

        await run_session_store_conformance(fresh)


async def test_a_line_is_stored_once_and_one_without_uuid_each_time(any_url: str) -> None:
    async with KeepstateSessionStore.from_url(any_url) as store:
        title = cast("SessionStoreEntry", {"type": "title", "customTitle": "first"})
        batch = [line(1), title, line(2), line(1, changed=True)]
        await store.append(key_of("s"), batch)
        (before,) = await store.list_session_summaries("p")
        await store.append(key_of("s"), [line(1), line(2)])
        assert await store.list_session_summaries("p") == [before], "nothing was added, so nothing changed"
        await store.append(key_of("s"), [*batch, line(3)])

        assert await store.load(key_of("s")) == [line(1), title, line(2), title, line(3)]


async def test_a_summary_that_is_sent_again_does_not_go_back(any_url: str) -> None:
    async with KeepstateSessionStore.from_url(any_url) as store:
        old, new = line(1, customTitle="old"), line(2, customTitle="new")
        await store.append(key_of("s"), [old])
        await store.append(key_of("s"), [new])
        await store.append(key_of("s"), [old])

        (summary,) = await store.list_session_summaries("p")
        assert summary["data"] == fold_session_summary(None, key_of("s"), [old, new])["data"]


async def test_the_time_of_change_grows_with_each_append_of_any_writer(any_url: str) -> None:
    seen: list[int] = []

    async def write(store: KeepstateSessionStore, first: int) -> None:
        for n in range(first, first + 15):
            await store.append(key_of("s"), [line(n)])
            seen.append((await store.list_sessions("p"))[0]["mtime"])

    async with KeepstateSessionStore.from_url(any_url) as store:
        await asyncio.gather(write(store, 0))
        assert seen == sorted(set(seen)), "it did not grow strictly"
        await asyncio.gather(write(store, 100), write(store, 200))
        (session,) = await store.list_sessions("p")
        (summary,) = await store.list_session_summaries("p")
        assert session["mtime"] == summary["mtime"] == max(seen)
        assert session["mtime"] >= min(seen) + 44
        assert abs(session["mtime"] - datetime.now(UTC).timestamp() * 1000) < 60_000


async def test_any_text_is_a_project_a_session_and_a_subpath(any_url: str) -> None:
    async with KeepstateSessionStore.from_url(any_url) as store:
        for project in IDS[:4]:
            for session in IDS[-4:]:
                await store.append(key_of(session, project), [line(1, at=[project, session])])
                for subpath in IDS[2:6]:
                    await store.append(key_of(session, project, subpath), [line(1, at=subpath)])

        for project in IDS[:4]:
            found = await store.list_sessions(project)
            assert sorted(each["session_id"] for each in found) == sorted(IDS[-4:])
            for session in IDS[-4:]:
                assert sorted(await store.list_subkeys(key_of(session, project))) == sorted(IDS[2:6])  # type: ignore[arg-type]
                assert await store.load(key_of(session, project)) == [line(1, at=[project, session])]
                for subpath in IDS[2:6]:
                    assert await store.load(key_of(session, project, subpath)) == [line(1, at=subpath)]


async def test_deleted_and_ended_transcripts_are_swept_and_no_other(any_url: str) -> None:
    async with KeepstateSessionStore.from_url(any_url, ttl_s=1) as store:
        await store.append(key_of("ended"), [line(n) for n in range(5)])
        await store.append(key_of("ended", subpath="a"), [line(n) for n in range(2)])
        await asyncio.sleep(1.1)
        assert await store.load(key_of("ended")) is None
        assert await store.list_sessions("p") == []
    async with KeepstateSessionStore.from_url(any_url) as store:
        many = [line(n) for n in range(1_200)]
        await store.append(key_of("gone"), many)
        for n in range(950):
            await store.append(key_of("gone", subpath=str(n)), [line(n)])
        await store.append(key_of("kept"), many)
        await store.delete(key_of("gone"))
        assert await store.list_subkeys(key_of("gone")) == []  # type: ignore[arg-type]
        await store.append(key_of("gone"), [line(1)])

        assert await store.sweep() == 5 + 2 + 1_200 + 950
        assert await store.load(key_of("gone")) == [line(1)]
        assert await store.load(key_of("kept")) == many
        assert await store.sweep() == 0


async def test_the_sdk_reads_renames_forks_and_deletes_through_the_store(any_url: str, tmp_path: Any) -> None:
    directory = str(tmp_path)
    project = project_key_for_directory(directory)
    async with KeepstateSessionStore.from_url(any_url) as store:
        await store.append(key_of(ID, project), [said(1, "Plan a trip to Paris"), said(2, "By train", 1)])

        (info,) = await list_sessions_from_store(store, directory=directory)
        assert info.summary == "Plan a trip to Paris"
        messages = await get_session_messages_from_store(store, ID, directory=directory)
        assert len(messages) == 2
        await rename_session_via_store(store, ID, "Paris", directory=directory)
        fork = await fork_session_via_store(store, ID, directory=directory)
        infos = await list_sessions_from_store(store, directory=directory)
        assert {info.session_id for info in infos} == {ID, fork.session_id}
        assert "Paris" in {info.custom_title for info in infos}
        await delete_session_via_store(store, ID, directory=directory)
        assert [info.session_id for info in await list_sessions_from_store(store, directory=directory)] == [
            fork.session_id
        ]
