"""Finding: what `find` lists, in which order and by which filters, on every backend."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import keepstate
from keepstate.adapters.langgraph import KeepstateSaver
from keepstate.engine.index import delivery
from keepstate.engine.index.rows import Found
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.subjects import OUTBOXES, Subject
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import InvalidError
from keepstate.managers import (
    AgentCheckpoint,
    AgentCoordinationState,
    AgentStateStore,
    OrchestrationStateManager,
    TeamState,
    WorkflowState,
    WorkflowStateManager,
    WorkflowStatus,
)
from keepstate.names import INDEX_SPACE, stored_name
from keepstate.sessions import AgentStateMachine, Session, Threads
from tests.engine.conftest import Turned


async def shown(ks: Keepstate, **query: Any) -> list[tuple[str, str, str]]:
    return [(found.kind, found.id, found.state) for found in await ks.find(**query)]


async def fill(ks: Keepstate, space: Any = None) -> None:
    """Write one subject of each kind, each in its own space or all in one."""
    storage: dict[str, Any] = {"persistence": ks} if space is None else {"space": space}
    await Session("s1", user_id="ann", **storage).conversation.append({"role": "user", "content": "Hello"})
    await Threads(**storage).create("t1", metadata={"title": "Trip"})
    await AgentStateStore(**storage).save_checkpoint(AgentCheckpoint("a1", "c1", 1))
    workflows = WorkflowStateManager(**storage)
    await workflows.create(WorkflowState("w1", status=WorkflowStatus.RUNNING))
    await OrchestrationStateManager(**storage).create_team(TeamState("m1", metadata={"title": "Ops"}))
    await AgentStateMachine("o1", **storage).transition("new_task")


ALL_KINDS = {
    ("agent", "a1", "saved"),
    ("machine", "o1", "planning"),
    ("session", "s1", "open"),
    ("team", "m1", "open"),
    ("thread", "t1", "open"),
    ("workflow", "w1", "running"),
}


async def test_each_kind_is_found_with_its_state_owner_and_title(ks: Keepstate) -> None:
    await fill(ks)

    assert set(await shown(ks)) == ALL_KINDS
    found = {each.kind: each for each in await ks.find()}
    assert (found["session"].owner, found["thread"].title, found["team"].title) == ("ann", "Trip", "Ops")
    assert [each.space for each in await ks.find(kind="agent")] == ["agent/a1"]
    assert abs(found["team"].changed_at - datetime.now(UTC)) < timedelta(minutes=5)


async def test_subjects_in_a_shared_space_are_found_too(ks: Keepstate) -> None:
    await fill(ks, ks.space("all of them"))

    assert set(await shown(ks)) == ALL_KINDS
    assert {found.space for found in await ks.find()} == {"all of them"}


async def test_a_queue_is_found_by_its_kinds_with_the_time_at_which_it_goes_on(ks: Keepstate) -> None:
    queue = ks.space("pool").queue
    await queue.put("x", kind="mail")
    await queue.put("x", kind="report", delay_s=3600)

    assert await shown(ks, kind="queue", order="due") == [
        ("queue", "mail", "ready"),
        ("queue", "report", "waiting"),
    ]
    [task] = await queue.claim("worker", lease_s=60, kinds=["mail"])
    [found] = await ks.find(state="claimed")
    assert found.due_at is not None
    assert timedelta(0) < found.due_at - found.changed_at <= timedelta(seconds=61)
    await task.complete()
    assert await shown(ks) == [("queue", "report", "waiting")]


async def test_listings_filter_sort_and_continue(ks: Keepstate) -> None:
    for number in range(7):
        session = Session(f"s{number}", user_id="ann" if number % 2 else "bob", persistence=ks)
        await session.conversation.append({"role": "user", "content": "Hello"})
        await asyncio.sleep(0.002)
    await ks.space("pool").queue.put("x")

    newest = [found.id for found in await ks.find(kind="session")]
    assert newest == [f"s{number}" for number in reversed(range(7))]
    assert [found.id for found in await ks.find(kind="session", order="changed")] == newest[::-1]
    assert [found.id for found in await ks.find(owner="ann")] == ["s5", "s3", "s1"]
    third = (await ks.find(kind="session"))[4].changed_at
    assert [found.id for found in await ks.find(kind="session", changed_since=third)] == newest[:5]
    assert len(await ks.find(state="open", changed_since=third, order="changed")) == 5
    for query in ({}, {"state": "open"}, {"order": "changed"}, {"under": "session/"}, {"owner": "bob"}):
        whole, pages, after = await ks.find(**query), list[Found](), None
        while True:
            page = await ks.find(**query, after=after, limit=2)
            pages += page
            assert len(page) == 2 or page.next is None
            if (after := page.next) is None:
                break
        assert pages == list(whole)


async def test_only_spaces_of_a_name_are_listed(ks: Keepstate) -> None:
    for name in ("user/1", "user/1/deep", "user/10", "user"):
        await ks.space(name).queue.put("x", kind=name)

    assert {found.id for found in await ks.find(under="user/1")} == {"user/1", "user/1/deep"}
    assert {found.id for found in await ks.find(under="user/")} == {"user/1", "user/1/deep", "user/10"}


async def test_a_dropped_deleted_or_ended_subject_is_not_found(ks: Keepstate) -> None:
    await fill(ks)
    assert len(await ks.find()) == 6

    await ks.drop("machine/o1")
    await AgentStateStore(persistence=ks).delete("a1")
    await Session("s1", user_id="ann", persistence=ks).end()
    assert {found.kind for found in await ks.find()} == {"team", "thread", "workflow"}
    await AgentStateMachine("o1", persistence=ks).transition("new_task")
    assert "machine" in {found.kind for found in await ks.find()}


async def test_a_session_leaves_the_listing_when_its_time_is_over(ks: Keepstate) -> None:
    session = Session("s1", user_id="ann", persistence=ks, ttl_s=0.3)
    await session.conversation.append({"role": "user", "content": "Hello"})
    assert len(await ks.find()) <= 1

    async with asyncio.timeout(60):
        while await ks.find():
            await asyncio.sleep(0.05)


async def test_a_thread_of_langgraph_is_found(tmp_path: Path) -> None:
    async with keepstate.open(f"sqlite:///{tmp_path}/graph.db") as ks:
        saver = KeepstateSaver(ks)
        config: Any = {"configurable": {"thread_id": "g1", "checkpoint_ns": ""}}
        checkpoint: Any = {"v": 1, "id": "1", "ts": "", "channel_values": {}, "channel_versions": {}}
        await saver.aput(config, {**checkpoint, "versions_seen": {}}, {}, {})

        assert await shown(ks) == [("thread", "g1", "open")]


async def test_tenants_find_only_their_own(ks: Keepstate) -> None:
    await fill(ks.tenant("acme"))
    await ks.space("pool").queue.put("x")

    assert set(await shown(ks.tenant("acme"))) == ALL_KINDS
    assert {found.tenant for found in await ks.tenant("acme").find()} == {"acme"}
    assert await shown(ks) == [("queue", "", "ready")]
    assert await ks.tenant("other").find() == []
    assert [each.id for each in await ks.tenants()] == ["acme"]


async def test_another_process_sees_a_change_after_the_next_delivery(url: str) -> None:
    async with keepstate.open(url) as one, keepstate.open(url) as other:
        await one.space("pool").queue.put("x", kind="mail")
        assert await shown(other) == [("queue", "mail", "ready")]

        await one.space("pool").queue.put("x", kind="late")
        await other.deliver()  # unless the writer was faster
        assert set(await shown(other)) == {("queue", "mail", "ready"), ("queue", "late", "ready")}


async def test_a_writer_delivers_in_the_background(url: str) -> None:
    async with keepstate.open(url) as one, keepstate.open(url) as other:
        await one.space("pool").queue.put("x", kind="first")
        await one.find()

        await one.space("pool").queue.put("x", kind="second")
        async with asyncio.timeout(60):
            while len(await other.find()) < 2:
                await asyncio.sleep(0.02)


async def test_closing_a_handle_carries_its_last_writes(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "INTERVAL_S", 3_600)  # nothing is carried in the background
    async with keepstate.open(url) as other:
        for each in (other, other.tenant("acme")):
            await each.space("pool").queue.put("x", kind="mail")
            assert await shown(each) == [("queue", "mail", "ready")]

        async with keepstate.open(url) as short:
            await fill(short)
            await short.space("desk").approvals.ask("Pay?", id="p1")
            await fill(short.tenant("acme"))

        mail = "queue", "mail", "ready"
        assert set(await shown(other)) == {*ALL_KINDS, ("approval", "p1", "pending"), mail}
        assert set(await shown(other.tenant("acme"))) == {*ALL_KINDS, mail}


async def test_nothing_is_carried_without_an_index(ks: Keepstate) -> None:
    await ks.space("pool").queue.put("x")
    await asyncio.sleep(0.3)

    store = await ks.opened()
    assert (await store.read(stored_name(None, INDEX_SPACE), [])).revision == 0
    assert (await store.scan("pool", layout.OUTBOX)).entries


async def test_a_row_that_moves_while_it_is_listed_is_not_shown_twice(turned: Turned) -> None:
    ks = turned.ks
    for name in ("s1", "s2"):
        turned.clock.advance(10)
        await Session(name, persistence=ks).conversation.append({"role": "user", "content": "Hello"})
    await ks.find()
    store = await ks.opened()
    read = store.read

    async def crossed(space: str, keys: Any, **options: Any) -> Any:
        if keys and keys[0].startswith(layout.ROWS):  # its list was read
            del store.read  # type: ignore[attr-defined]
            turned.clock.advance(10)
            await Session("s1", persistence=ks).conversation.append({"role": "user", "content": "Again"})
            await ks.deliver()
        return await read(space, keys, **options)

    store.read = crossed  # type: ignore[method-assign]
    found, after = list[str](), None
    while True:
        page = await ks.find(order="changed", after=after, limit=1)
        found += [row.id for row in page]
        if (after := page.next) is None:
            break

    assert sorted(set(found)) == sorted(found)


async def test_changes_of_a_listing_are_watched(ks: Keepstate) -> None:
    await ks.find()

    async def first_position() -> str:
        async for change in ks.watch(kind="queue", timeout_s=60):
            return change.position
        raise AssertionError("the watch has ended")

    watching, number = asyncio.create_task(first_position()), 0
    while not watching.done():
        await ks.space("pool").queue.put("x", kind=f"probe {(number := number + 1)}")
        await ks.deliver()
        await asyncio.sleep(0.01)
    await ks.space("pool").queue.put("x", kind="report")
    await ks.deliver()
    [task] = await ks.space("pool").queue.claim("worker", lease_s=60, kinds=["report"])
    await ks.deliver()
    await task.complete()
    await ks.deliver()

    seen = list[tuple[str, str]]()
    async for change in ks.watch(kind="queue", after=await watching, timeout_s=0):
        said = change.kind, change.found.state
        if change.found.id == "report" and said not in seen[-1:]:
            seen.append(said)
    assert seen == [("added", "ready"), ("changed", "claimed"), ("removed", "claimed")]


async def test_a_watch_of_a_tenant_without_data_hears_of_its_first_subject(
    ks: Keepstate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other caller asks for the index, which the first space of the tenant makes worth having."""
    monkeypatch.setattr("keepstate.engine.index.index._LONGEST_WAIT_S", 0.1)

    async def first() -> str:
        async for change in ks.watch(timeout_s=60):
            return change.found.id
        raise AssertionError("the watch has ended")

    watching, number = asyncio.create_task(first()), 0
    while not watching.done():  # the watch may begin after some of them
        await ks.space("pool").queue.put("x", kind=f"report {(number := number + 1)}")
        await asyncio.sleep(0.05)

    assert (await watching).startswith("report ")


async def test_a_cursor_of_another_listing_is_rejected(ks: Keepstate) -> None:
    for kind in ("one", "two"):
        await ks.space("pool").queue.put("x", kind=kind)
    page = await ks.find(limit=1)

    with pytest.raises(InvalidError, match="another space"):
        await ks.find(kind="queue", after=page.next)


async def test_the_agents_of_a_team_are_no_agents_of_their_own(ks: Keepstate) -> None:
    agents = {id: AgentCoordinationState(id) for id in ("a1", "a2")}
    await OrchestrationStateManager(persistence=ks).create_team(TeamState("m1", agents))
    page = await (await ks.opened()).scan(stored_name(None, "team/m1"), OUTBOXES)

    assert [entry.key for entry in page.entries] == [Subject("team", "m1").outbox_key()]
    assert await shown(ks) == [("team", "m1", "open")]
