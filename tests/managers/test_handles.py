"""Managers as handles: opened at the first call, shared, closed with the last, sent to other processes."""

from __future__ import annotations

import asyncio
import gc
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest

import keepstate
from keepstate import (
    AgentCheckpoint,
    AgentRecoveryManager,
    AgentStateStore,
    ClosedError,
    InvalidError,
    NotFoundError,
    StateConfig,
    StateManager,
    WorkflowState,
    WorkflowStateManager,
    sync,
)
from keepstate.opening import _registry  # pyright: ignore[reportPrivateUsage]


class Agent:
    """One that can be recovered."""

    id = "a"

    def restore_from_checkpoint(self, state: Any) -> None: ...


async def test_managers_of_one_url_share_a_store_that_the_last_closes(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    state, agents = StateManager(persistence=url), AgentStateStore(persistence=url)
    before = len(_registry)
    await state.save("k", 1)
    await agents.save_checkpoint(AgentCheckpoint("a", "c", 1))
    between = len(_registry) - before
    await state.close()
    after_one = len(_registry) - before
    still = await agents.list_agents()
    await agents.close()
    await agents.close()

    assert (between, after_one, len(_registry) - before, still) == (1, 1, 0, ["a"])
    with pytest.raises(ClosedError):
        await agents.list_agents()


async def test_two_managers_of_memory_without_a_name_see_the_same() -> None:
    async with StateManager(StateConfig(key_prefix="shared")) as one:
        await one.save("k", 1)
    async with StateManager(StateConfig(key_prefix="shared", backend="memory")) as other:
        assert await other.get("k") == 1
        await other.delete("k")


async def test_one_that_is_dropped_open_is_told_of() -> None:
    state = StateManager(persistence="memory://dropped")
    await state.save("k", 1)

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        del state
        gc.collect()
    assert [each.category for each in told] == [ResourceWarning]


async def test_a_manager_says_where_it_works_and_no_secret() -> None:
    state = StateManager(persistence="redis", redis_url="redis://user:secret@localhost:1/0")

    assert repr(state) == "<StateManager in <Keepstate redis://user@localhost:1/0 not open>>"
    async with keepstate.open("memory://") as ks:
        assert "Space 'run'" in repr(AgentStateStore(space=ks.space("run")))


async def test_a_manager_is_sent_as_its_place_and_options(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    state = StateManager(StateConfig(backend=url, key_prefix="p", shards=2))
    workflows = WorkflowStateManager(persistence=url, checkpoint_interval=3)
    state.subscribe("*", print)
    state.on_size_alert(limit_bytes=1, callback=lambda alert: None)
    await state.save("k", 1)
    await workflows.create(WorkflowState("w"))
    await state.drain()
    again: StateManager = pickle.loads(pickle.dumps(state))
    others: WorkflowStateManager = pickle.loads(pickle.dumps(workflows))

    assert await again.get("k") == 1 and again.config == state.config
    assert await others.list_workflows() == ["w"] and others.checkpoint_interval == 3
    for manager in (state, workflows, again, others):
        await manager.close()


async def test_who_recovers_is_sent_with_its_store_and_without_the_agents(tmp_path: Path) -> None:
    store = AgentStateStore(persistence=f"sqlite:///{tmp_path}/a.db")
    recovery = AgentRecoveryManager(store, max_recovery_attempts=7)
    agent = Agent()
    recovery.register(agent)
    await store.save_checkpoint(AgentCheckpoint("a", "c", 1))
    sent: tuple[AgentStateStore, AgentRecoveryManager] = pickle.loads(pickle.dumps((store, recovery)))

    with pytest.raises(NotFoundError, match="register"):
        await sent[1].recover("a")
    sent[1].register(agent)
    assert (await sent[1].recover("a")).attempts_left == 6
    for each in (store, sent[0]):
        await each.close()


async def test_a_manager_in_a_transaction_is_not_sent() -> None:
    async with keepstate.open("memory://x") as ks, ks.space("run").transaction() as tx:
        with pytest.raises(TypeError):
            pickle.dumps(AgentStateStore(space=tx))


def test_a_manager_works_in_the_loop_that_opened_it(tmp_path: Path) -> None:
    state = StateManager(persistence=f"sqlite:///{tmp_path}/a.db")
    with asyncio.Runner() as loop, asyncio.Runner() as other:
        loop.run(state.save("k", 1))

        with pytest.raises(ClosedError, match="event loop"):
            other.run(state.get("k"))
        loop.run(state.close())


def test_without_a_loop_the_same_managers_work_by_the_same_arguments(tmp_path: Path) -> None:
    with sync.open(f"sqlite:///{tmp_path}/a.db") as ks:
        run = ks.space("run", record=True)
        with run.transaction() as tx:
            sync.StateManager(space=tx).save("k", 1)
            sync.WorkflowStateManager(space=tx).create(WorkflowState("w"))
        with sync.StateManager(persistence=ks) as state, state.transaction() as inside:
            inside.save("own", 2)
        again: sync.StateManager = pickle.loads(pickle.dumps(sync.StateManager(space=run)))

        assert sync.StateManager(space=run).get("k") == 1 and run.revision() == 1
        assert sync.StateManager(persistence=ks).get("own") == 2
        assert again.get("k") == 1
        again.close()


def test_without_a_loop_coroutine_functions_are_refused_when_they_are_given() -> None:
    async def coroutine(*_: Any) -> None: ...

    class Agent:
        id = "a"
        restore_from_checkpoint = coroutine

    with sync.StateManager(persistence="memory://blocking") as state:
        for give in (
            lambda: state.subscribe("*", coroutine),
            lambda: state.update("k", coroutine),
            lambda: state.on_size_alert(limit_bytes=1, callback=coroutine),
        ):
            with pytest.raises(InvalidError, match="coroutine function"):
                give()
    with sync.AgentStateStore(persistence="memory://blocking") as agents:
        recovery = sync.AgentRecoveryManager(agents)
        with pytest.raises(InvalidError, match="coroutine function"):
            recovery.register(Agent())
        with pytest.raises(InvalidError, match="agent_store"):
            AgentRecoveryManager(agents)  # type: ignore[arg-type]


def test_what_cannot_be_held_weakly_is_told_what_it_lacks() -> None:
    class Slotted:
        __slots__ = ("id",)

        def __init__(self) -> None:
            self.id = "a"

        def restore_from_checkpoint(self, state: Any) -> None: ...

    with sync.AgentStateStore(persistence="memory://weak") as agents:
        recovery = sync.AgentRecoveryManager(agents)
        with pytest.raises(InvalidError, match="__weakref__"):
            recovery.register(Slotted())
        with pytest.raises(InvalidError, match="restore_from_checkpoint"):
            recovery.register(object())  # type: ignore[arg-type]


async def test_nothing_runs_beside_the_caller_unless_it_was_asked_for(tmp_path: Path) -> None:
    async with StateManager(StateConfig(backend=f"file:///{tmp_path}/f", ttl=60, save_interval=0)) as state:
        before = len(asyncio.all_tasks())
        await state.save("k", 1)
        saved = len(asyncio.all_tasks())
        state.subscribe("*", lambda *_: None)
        registered = len(asyncio.all_tasks())
        await state.get("k")

        assert before == saved == registered < len(asyncio.all_tasks())
        await state.close()
        assert len(asyncio.all_tasks()) <= before


async def test_a_configuration_that_asks_for_a_record_has_it_in_a_space_that_is_passed() -> None:
    async with keepstate.open("memory://") as ks:
        run, config = ks.space("run", author="ann"), StateConfig(record=True)
        async with StateManager(config, space=run) as state:
            await state.save("k", 1)
            await state.save("k", 2)

            assert [(each.value, each.author) for each in await state.history("k")] == [
                (2, "ann"),
                (1, "ann"),
            ]
        async with run.transaction() as tx:
            with pytest.raises(InvalidError, match=r"begin it on space\('run', record=True\)"):
                StateManager(config, space=tx)
        async with ks.space("run", record=True).transaction() as tx:
            await StateManager(config, space=tx).save("k", 3)
        assert [each.value for each in await StateManager(space=run).history("k")] == [3, 2, 1]


async def test_a_space_with_commits_of_its_own_and_no_record_tells_no_history() -> None:
    async with keepstate.open("memory://") as ks:
        run = ks.space("run")
        state = StateManager(space=run)
        assert await state.history("k") == []
        await state.save("k", 1)
        await run.history.commit({"other": 1})

        with pytest.raises(InvalidError, match="does not record changes"):
            await state.history("k")
