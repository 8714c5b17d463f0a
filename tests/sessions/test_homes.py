"""The home of a subject is one place, whether reached by `persistence=` or by `space=`, on every backend."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from typing import Any

import msgspec
import pytest

import keepstate
from keepstate import (
    AgentCheckpoint,
    AgentSnapshot,
    AgentStateMachine,
    AgentStateStore,
    BoundedState,
    KeyedState,
    KnowledgeStateManager,
    OrchestrationStateManager,
    ProfileAccess,
    ProfileKey,
    Session,
    Sessions,
    SourceState,
    SpeechStateManager,
    StateConfig,
    StateManager,
    SyncStatus,
    TeamState,
    Threads,
    ToolExecution,
    ToolExecutionStatus,
    ToolStateManager,
    ValidatedState,
    VersionedState,
    WorkflowState,
    WorkflowStateManager,
    sync,
)
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import InvalidError
from keepstate.names import escape
from tests.typed.keys import Person

ID = "a/b~1 %ü"
"""An id of which each part is escaped where it is not the name of a space."""
AT = datetime(2026, 1, 2, tzinfo=UTC)
EXECUTION = "execution-3"


class Count(msgspec.Struct):
    number: int = 0


class Locale(ProfileKey[str]):
    KEY = "locale"


@dataclass(frozen=True)
class Row:
    """One class: the home of its subject, how an object of it writes there, and how another reads it back."""

    home: str
    make: Callable[..., Any]
    write: Callable[[Any], Awaitable[object]]
    read: Callable[[Any], Awaitable[object]]
    listed: Callable[[Any], Awaitable[list[str]]] | None = None
    """Names all subjects of which something is there."""

    @property
    def prefix(self) -> str:
        """What names begin with in another space."""
        kind, _, id = self.home.partition("/")
        return f"{kind}/{escape(id)}/"


def said(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


async def talk(session: Session) -> None:
    await session.conversation.append(said("hello"))
    await session.task.put({"goal": "g"})
    await session.update({"n": 1})


async def heard(session: Session) -> object:
    messages = [message async for message in session.conversation.messages()]
    return messages, await session.task.get(), await session.get_state()


async def _machine(machine: AgentStateMachine) -> object:
    await machine.refresh()
    return machine.current_state, {**machine.data}, [made.event for made in await machine.history()]


async def _commit(state: KeyedState) -> None:
    await state.refresh()
    batch = state.begin_mutation()
    batch.update(Person, "ann")
    await state.commit(batch)


async def _committed(state: KeyedState) -> object:
    await state.refresh()
    return state.snapshot().get(Person), state.revision


async def _save_agent(agents: AgentStateStore) -> None:
    await agents.save_snapshot(AgentSnapshot(ID, AT, memory_state={"n": 1}))
    await agents.save_checkpoint(AgentCheckpoint(ID, "c", 1, {"n": 2}))


async def _found_team(teams: OrchestrationStateManager) -> None:
    await teams.create_team(TeamState(ID))
    await teams.enqueue_task(ID, {"id": "t", "priority": "high"})


async def _team(teams: OrchestrationStateManager) -> object:
    return await teams.get_team(ID), await teams.get_task(ID, "t")


async def _speeches(speech: SpeechStateManager) -> list[str]:
    return [session.session_id for session in await speech.list_sessions()]


ROWS = {
    "Session": Row(f"session/{ID}", lambda **w: Session(ID, **w), talk, heard),
    "ValidatedState": Row(
        f"session/{ID}",
        lambda **w: ValidatedState(ID, Count, **w),
        lambda state: state.put(Count(7)),
        lambda state: state.get(),
    ),
    "VersionedState": Row(
        f"versions/{ID}",
        lambda **w: VersionedState(ID, **w),
        lambda state: state.checkpoint({"plan": ["search"]}),
        lambda state: state.get_state(),
    ),
    "BoundedState": Row(
        f"context/{ID}",
        lambda **w: BoundedState(ID, **w),
        lambda state: state.add_message(said("hello")),
        lambda state: state.get_context(),
    ),
    "AgentStateMachine": Row(
        f"machine/{ID}",
        lambda **w: AgentStateMachine(ID, **w),
        lambda machine: machine.transition("new_task", goal="g"),
        _machine,
    ),
    "Threads": Row(
        f"thread/{ID}",
        Threads,
        lambda threads: threads.create(ID, messages=[{**said("hello"), "id": "m"}]),
        lambda threads: threads.messages.retrieve(ID, "m"),
    ),
    "KeyedState": Row(
        f"thread/{ID}",
        lambda **w: KeyedState(ID, keys=[Person], **w),
        _commit,
        _committed,
    ),
    "ProfileAccess": Row(
        "profile/agent::x",
        ProfileAccess,
        lambda access: access.write(Locale, value="de", agent="x"),
        lambda access: access.read(Locale, agent="x"),
    ),
    "StateManager": Row(
        "state/user",
        lambda **w: StateManager(StateConfig(key_prefix="user"), **w),
        lambda state: state.save("plan", {"n": 1}),
        lambda state: state.get("plan"),
    ),
    "AgentStateStore": Row(
        f"agent/{ID}",
        AgentStateStore,
        _save_agent,
        lambda agents: agents.get_checkpoint(ID, "c"),
        lambda agents: agents.list_agents(),
    ),
    "WorkflowStateManager": Row(
        f"workflow/{ID}",
        WorkflowStateManager,
        lambda workflows: workflows.create(WorkflowState(ID, total_steps=2)),
        lambda workflows: workflows.get(ID),
        lambda workflows: workflows.list_workflows(),
    ),
    "OrchestrationStateManager": Row(
        f"team/{ID}",
        OrchestrationStateManager,
        _found_team,
        _team,
        lambda teams: teams.list_teams(),
    ),
    "KnowledgeStateManager": Row(
        f"kb/{ID}",
        KnowledgeStateManager,
        lambda bases: bases.update_source_state(SourceState("wiki", ID, SyncStatus.SYNCED, AT)),
        lambda bases: bases.get_source(ID, "wiki"),
        lambda bases: bases.list_knowledge_bases(),
    ),
    "SpeechStateManager": Row(
        f"speech/{ID}",
        SpeechStateManager,
        lambda speech: speech.create_session("call", session_id=ID),
        lambda speech: speech.get_session(ID),
        _speeches,
    ),
    "ToolStateManager": Row(
        f"tools/{sha256(EXECUTION.encode()).digest()[0] % 16}",
        ToolStateManager,
        lambda tools: tools.start_execution(
            ToolExecution(EXECUTION, "search", ToolExecutionStatus.RUNNING, AT, {"q": 1})
        ),
        lambda tools: tools.get_execution(EXECUTION),
    ),
}


@pytest.fixture(params=ROWS)
def row(request: pytest.FixtureRequest) -> Row:
    return ROWS[request.param]


@pytest.mark.parametrize("way", ["persistence", "space", "transaction"])
async def test_a_home_is_one_place_however_it_is_reached(way: str, row: Row, ks: Keepstate) -> None:
    home = ks.space(row.home)
    if way == "transaction":
        async with home.transaction() as tx:
            await row.write(row.make(space=tx))
    else:
        await row.write(row.make(**({"persistence": ks} if way == "persistence" else {"space": home})))

    found = [await row.read(row.make(**where)) for where in ({"persistence": ks}, {"space": home})]
    async with home.transaction() as tx:
        found.append(await row.read(row.make(space=tx)))
    assert found[0] not in (None, {}, []) and found == [found[0]] * 3
    assert [name async for name in ks.spaces()] == [row.home]
    keys = [key async for key in home.documents.keys("*")]
    assert keys
    if not row.home.startswith("profile/"):  # profiles are named alike in all spaces
        assert not [key for key in keys if key.startswith(row.prefix)]
    if row.listed is not None:
        for where in ({"persistence": ks}, {"space": home}):
            assert await row.listed(row.make(**where)) == [row.home.partition("/")[2]]


async def test_in_another_space_each_name_begins_with_the_subject(row: Row, ks: Keepstate) -> None:
    shared = ks.space("run/1")
    await row.write(row.make(space=shared))

    assert [name async for name in ks.spaces()] == ["run/1"]
    keys = [key async for key in shared.documents.keys("*")]
    assert keys and all(key.startswith(row.prefix) for key in keys)
    assert await row.read(row.make(space=shared)) not in (None, {}, [])
    if row.listed is not None:
        assert await row.listed(row.make(space=shared)) == [row.home.partition("/")[2]]


async def test_a_guest_in_a_home_is_listed_and_its_host_only_if_it_holds_something(ks: Keepstate) -> None:
    home = ks.space("agent/host")
    await AgentStateStore(space=home).save_checkpoint(AgentCheckpoint("guest", "c", 1))

    assert await AgentStateStore(space=home).list_agents() == ["guest"]
    await AgentStateStore(space=home).save_checkpoint(AgentCheckpoint("host", "c", 1))
    assert sorted(await AgentStateStore(space=home).list_agents()) == ["guest", "host"]
    await Session("s", space=ks.space("session/s")).update({"n": 1})
    assert await Sessions(space=ks.space("session/s")).ids() == ["s"]


async def test_deleting_by_one_way_deletes_for_the_other(ks: Keepstate) -> None:
    for write_by, delete_by in (("persistence", "space"), ("space", "persistence")):
        ways: dict[str, Any] = {"persistence": ks, "space": ks.space(f"agent/{ID}")}
        await _save_agent(AgentStateStore(**{write_by: ways[write_by]}))
        await ks.space("agent/other").documents.put("kept", 1)
        assert await AgentStateStore(**{delete_by: ways[delete_by]}).delete(ID)

        for way, where in ways.items():
            agents = AgentStateStore(**{way: where})
            assert await agents.latest_snapshot(ID) is None and await agents.list_checkpoints(ID) == []
        assert [name async for name in ks.spaces("agent/")] == ["agent/other"]


async def test_the_user_of_a_session_in_its_home_is_in_a_home_of_its_own(ks: Keepstate) -> None:
    home = ks.space("session/s")
    by_space, by_store = (
        Session("s", user_id="u", **where) for where in ({"space": home}, {"persistence": ks})
    )
    await by_space.user.update_preferences({"seat": "aisle"})
    await by_space.update({"n": 1})

    assert await by_store.user.get_preferences() == {"seat": "aisle"}
    assert [name async for name in ks.spaces()] == ["session/s", "user/u"]
    assert (await by_store.at()).user_id == "u"  # recorded by both ways
    async with home.transaction() as tx:
        inside = Session("s", user_id="u", space=tx)
        assert await inside.get_state() == {"n": 1}
        with pytest.raises(InvalidError, match=r"'user/u'.*not part of this transaction"):
            await inside.user.get_preferences()
    async with by_space.transaction() as turn:
        with pytest.raises(InvalidError, match=r"'user/u'.*not part of this transaction"):
            await turn.user.get_preferences()


async def test_a_session_joins_a_transaction_with_queue_and_events(ks: Keepstate) -> None:
    home, session = ks.space("session/s"), Session("s", persistence=ks)
    await session.conversation.append(said("Book a flight"))

    with pytest.raises(ZeroDivisionError):
        async with home.transaction() as tx:
            await Session("s", space=tx).conversation.append(said("lost"))
            await tx.queue.put({"search": "NYC"})
            await tx.events.append({"lost": True})
            raise ZeroDivisionError
    async with home.transaction() as tx:
        await Session("s", space=tx).conversation.append({"role": "assistant", "content": "I search"})
        await tx.queue.put({"search": "NYC"})
        await tx.events.append({"kind": "searching"})

    assert await session.conversation.count() == 2
    tasks = await home.queue.claim("worker", lease_s=60)
    assert [task.payload for task in tasks] == [{"search": "NYC"}]
    assert [event.data for event in await home.events.read()] == [{"kind": "searching"}]


async def test_a_space_and_a_handle_that_are_exchanged_are_told(row: Row) -> None:
    async with keepstate.open("memory://") as ks:
        space = ks.space("elsewhere")

        with pytest.raises(InvalidError, match="pass it as `space`"):
            row.make(persistence=space)
        with pytest.raises(InvalidError, match="pass it as `persistence`, or one of its spaces"):
            row.make(space=ks)
        async with space.transaction() as tx:
            with pytest.raises(InvalidError, match=r"\(Transaction\); pass it as `space`"):
                row.make(persistence=tx)


@pytest.mark.parametrize("make", [partial(sync.Session, "s"), sync.StateManager])
def test_a_blocking_space_and_handle_that_are_exchanged_are_told(make: Callable[..., Any]) -> None:
    with sync.open("memory://") as ks:
        space = ks.space("elsewhere")

        with pytest.raises(InvalidError, match="pass it as `space`"):
            make(persistence=space)
        with pytest.raises(InvalidError, match="pass it as `persistence`, or one of its spaces"):
            make(space=ks)
        with space.transaction() as tx, pytest.raises(InvalidError, match="pass it as `space`"):
            make(persistence=tx)
