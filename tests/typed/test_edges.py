"""Sizes, calls inside calls, damage, and errors that are not to be taken for others."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import keepstate
from keepstate import (
    AgentRun,
    CommitEvent,
    ConflictError,
    CorruptError,
    InvalidError,
    KeyedState,
    MaximumKey,
    MutationBatch,
    PersistedState,
    ProfileAccess,
    ProfileKey,
    StateError,
    StateKey,
    StateMap,
    StateScope,
    Store,
    sync,
)
from keepstate.names import escape
from keepstate.typed.layout import Names
from tests.contracts.typed.keys import KEYS, Evens, Notes, Plan, Visits, many


async def test_a_value_over_a_mebibyte_is_kept(tmp_path: Path) -> None:
    url, text = f"sqlite:///{tmp_path}/state.db", "x" * (3 << 20)
    async with KeyedState(persistence=url, keys=KEYS) as state:
        await state.commit(state.begin_mutation().update(Notes, [text]))
        await state.commit(state.begin_mutation().update(Notes, ["y"]))
    async with KeyedState(persistence=url, keys=KEYS) as again:
        assert again.read(Notes) == [text, "y"]


async def test_what_one_batch_cannot_hold_is_refused_whole() -> None:
    keys = many(1100)
    batch = MutationBatch()
    for each in keys:
        batch.update(each, 1)
    async with KeyedState(keys=keys) as state:
        with pytest.raises(InvalidError):
            await state.commit(batch)
        with pytest.raises(InvalidError):
            await state.restore_persisted(PersistedState(1, {each.KEY: 1 for each in keys}))

        assert (state.revision, state.export_persisted().extensions) == (0, {})
        await state.restore_persisted(PersistedState(1, {each.KEY: 1 for each in keys[:990]}))
        assert len(state.export_persisted().extensions) == 990


async def test_a_batch_is_committed_as_it_was_when_it_was_given() -> None:
    async with KeyedState(keys=KEYS) as state:
        holding, may_go_on = asyncio.Event(), asyncio.Event()

        async def holds(event: CommitEvent) -> None:
            holding.set()
            await may_go_on.wait()

        state.add_hook(holds)
        first = asyncio.create_task(state.commit(MutationBatch().update(Visits, 1)))
        await holding.wait()
        batch = MutationBatch().update(Visits, 1)
        second = asyncio.create_task(state.commit(batch))
        await asyncio.sleep(0)
        batch.update(Visits, 100)
        may_go_on.set()
        await asyncio.gather(first, second)

        assert state.read(Visits) == 2


async def test_a_hook_may_commit() -> None:
    async with KeyedState(keys=KEYS) as state:

        async def follows(event: CommitEvent) -> None:
            if event.new_revision < 3:
                await state.commit(MutationBatch().update(Visits, 1))

        state.add_hook(follows)
        await state.commit(MutationBatch().update(Visits, 1))

        assert (state.revision, state.read(Visits)) == (3, 3)


def test_a_hook_may_commit_in_blocking_use() -> None:
    with sync.KeyedState(keys=KEYS) as state:

        def follows(event: CommitEvent) -> None:
            if event.new_revision < 3:
                state.commit(MutationBatch().update(Visits, 1))

        state.add_hook(follows)
        state.commit(MutationBatch().update(Visits, 1))

        assert (state.revision, state.read(Visits)) == (3, 3)


async def test_a_conflict_that_apply_raises_is_the_caller_s_and_not_tried_again() -> None:
    calls: list[int] = []

    class Contested(StateKey[int, int]):
        KEY = "contested"

        @classmethod
        def apply(cls, value: int, update: int) -> int:
            calls.append(update)
            raise ConflictError("mine")

    async with KeyedState(keys=[Contested]) as state:
        with pytest.raises(ConflictError, match="mine"):
            await state.commit(MutationBatch().update(Contested, 1))

    assert calls == [1]


async def test_an_update_that_apply_changes_is_whole_again_when_it_is_tried_again() -> None:
    class Log(StateKey[list[int], list[int]]):
        KEY = "log"

        @classmethod
        def apply(cls, value: list[int], update: list[int]) -> list[int]:
            update.extend(value)
            return update

    async with keepstate.open("memory://") as ks:
        states = [KeyedState(persistence=ks, keys=[Log]) for _ in range(4)]
        batches = [MutationBatch().update(Log, [number]) for number in range(4)]
        await asyncio.gather(*[state.commit(batch) for state, batch in zip(states, batches, strict=True)])
        await states[0].refresh()

        assert sorted(states[0].read(Log) or []) == [0, 1, 2, 3]
        assert [next(iter(batch)).update for batch in batches] == [[0], [1], [2], [3]]


async def test_a_default_that_is_one_object_is_given_to_each_as_a_copy() -> None:
    shared: list[str] = []

    class Log(StateKey[list[str], str]):
        KEY = "log"

        @classmethod
        def default(cls) -> list[str]:
            return shared

        @classmethod
        def apply(cls, value: list[str], update: str) -> list[str]:
            value.append(update)
            return value

    class Words(ProfileKey[list[str]]):
        KEY = "words"

        @classmethod
        def default(cls) -> list[str]:
            return shared

    def added(words: list[str]) -> list[str]:
        words.append("w")
        return words

    async with KeyedState(keys=[Log]) as alice, KeyedState(keys=[Log]) as bob, ProfileAccess() as access:
        await alice.commit(MutationBatch().update(Log, "a"))
        await bob.commit(MutationBatch().update(Log, "b"))
        StateMap().get_or_insert_default(Log).append("m")
        (await access.read(Words, "alice")).append("r")
        assert await access.update(Words, "alice", added) == ["w"]

        assert (alice.read(Log), bob.read(Log), shared) == (["a"], ["b"], [])


async def test_tasks_that_read_in_tasks_of_their_own_lose_no_update_to_one_another() -> None:
    class Count(ProfileKey[int]):
        KEY = "count"

    async with ProfileAccess() as access:
        await access.write(Count, "a", 0)
        have_read = asyncio.Barrier(3)

        async def add() -> int:
            refused = 0
            for step in range(4):
                while True:
                    count = await asyncio.wait_for(access.read(Count, "a"), 60)
                    if (step, refused) == (0, 0):
                        await have_read.wait()
                    try:
                        await access.write(Count, "a", count + 1)
                        break
                    except ConflictError:
                        refused += 1
                        assert refused < 100
            return refused

        refused = await asyncio.gather(add(), add(), add())

        assert await access.read(Count, "a") == 12
        assert any(refused)


async def test_a_document_that_holds_no_such_record_is_damage() -> None:
    async with keepstate.open("memory://") as ks:
        await ks.space("thread/t").documents.put("typed/thread/visits", {"value": 1})
        with pytest.raises(CorruptError, match="typed/thread/visits"):
            await KeyedState("t", persistence=ks, keys=KEYS).refresh()
        await ks.space("thread/u").documents.put("typed/head", {"revision": "one"})
        with pytest.raises(CorruptError, match="typed/head"):
            await KeyedState("u", persistence=ks, keys=KEYS).refresh()


async def test_a_plugin_that_fails_to_register_changes_nothing() -> None:
    class Breaks:
        def register(self, registrar: Any) -> None:
            registrar.register_key(Plan)
            raise ZeroDivisionError

    async with KeyedState() as state:
        with pytest.raises(ZeroDivisionError):
            await state.install_plugin(Breaks())
        with pytest.raises(StateError):
            await state.commit(MutationBatch().update(Plan, "a"))


async def test_where_state_is_kept_is_said_once() -> None:
    async with keepstate.open("memory://") as ks:
        space = ks.space("s")
        wrong: list[dict[str, Any]] = [
            {"space": space, "persistence": ks},
            {"space": space, "record": True},
            {"space": ks},
            {"persistence": "no url"},
            {"persistence": space},
        ]
        for options in wrong:
            with pytest.raises(InvalidError):
                KeyedState(**options)
        for options in ({"on_conflict": "ignore"}, {"reruns": 0}):
            with pytest.raises(InvalidError):
                AgentRun(**options)


async def test_in_a_space_that_was_passed_an_owner_may_be_longer_than_the_name_of_a_space() -> None:
    owner = "u" * 300
    async with keepstate.open("memory://") as ks, ProfileAccess(space=ks.space("s")) as access:
        assert await access.list(owner) == []
    async with keepstate.open("memory://") as ks, ProfileAccess(persistence=ks) as access:
        with pytest.raises(InvalidError):
            await access.list(owner)


async def test_what_was_passed_in_open_stays_open() -> None:
    async with keepstate.open("memory://") as ks:
        store: Store = (await ks, ks.store)[1]
        for persistence in (ks, store):
            async with KeyedState(persistence=persistence, keys=KEYS) as state:
                await state.commit(MutationBatch().update(Visits, 1))
            async with AgentRun(persistence=persistence, keys=KEYS) as run:
                await run.start_run("t", "r")
            async with ProfileAccess(persistence=persistence) as access:
                assert await access.list("nobody") == []

        assert await ks.space("s").revision() == 0


async def test_a_path_is_an_sqlite_file(tmp_path: Path) -> None:
    async with KeyedState(persistence=tmp_path / "state.db", keys=KEYS) as state:
        await state.commit(MutationBatch().update(Visits, 1))

    assert (tmp_path / "state.db").exists()


async def test_a_process_that_is_killed_leaves_a_run_that_can_be_taken_over(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/state.db"
    first = AgentRun(persistence=url, keys=KEYS, lease_ttl_s=1)
    await first.start_run("t", "r")
    await first.step(lambda ctx: MutationBatch().update(Visits, 1))
    held = first._held  # pyright: ignore[reportPrivateUsage]
    assert held is not None
    await held.heartbeat._work.stop()  # pyright: ignore[reportPrivateUsage]

    async with AgentRun(persistence=url, keys=KEYS) as second:
        record = await second.start_run("t", "r", resume=True, wait_s=60)

        assert (record.steps, second.read(Visits)) == (1, 1)
    await first.close()


async def test_a_tool_may_take_longer_than_the_lease() -> None:
    async def slow(ctx: Any) -> MutationBatch:
        await asyncio.sleep(1.3)
        return MutationBatch().update(Visits, 1)

    ks = keepstate.open("memory://")
    async with ks, AgentRun(persistence=ks, keys=KEYS, lease_ttl_s=1) as run:
        await run.start_run("t", "r")

        await run.step(slow)

        assert run.read(Visits) == 1
        assert await ks.space("thread/t").leases.holder("typed/runs/r") == "unknown"


async def test_tools_that_are_coroutine_functions_objects_and_plain_functions_go_together() -> None:
    class Tool:
        name = "object"

        async def __call__(self, ctx: Any) -> str:
            return "object"

    async def coroutine(ctx: Any) -> str:
        return "coroutine"

    def later(ctx: Any) -> Any:
        return coroutine(ctx)

    async with AgentRun(keys=KEYS) as run:
        await run.start_run("t", "r")
        step = await run.step(Tool(), coroutine, lambda ctx: "plain", later)

        assert step.values == ["object", "coroutine", "plain", "coroutine"]


async def test_a_cancelled_step_commits_nothing() -> None:
    async with AgentRun(keys=KEYS) as run:
        await run.start_run("t", "r")
        begun = asyncio.Event()

        async def hangs(ctx: Any) -> None:
            begun.set()
            await asyncio.sleep(60)

        step = asyncio.create_task(run.step(hangs, lambda ctx: MutationBatch().update(Visits, 1)))
        await begun.wait()
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step

        assert (run.read(Visits), run.record.steps) == (None, 0)
        await run.step(lambda ctx: MutationBatch().update(Evens, 2))


async def test_a_step_that_is_cancelled_once_it_was_applied_is_counted() -> None:
    ks = keepstate.open("memory://")
    async with ks, AgentRun(persistence=ks, keys=KEYS) as run:
        await run.start_run("t", "r")
        applied = asyncio.Event()

        async def hangs(event: CommitEvent) -> None:
            if not applied.is_set():
                applied.set()
                await asyncio.sleep(60)

        run.state.add_hook(hangs)
        step = asyncio.create_task(run.step(lambda ctx: MutationBatch().update(Visits, 1), messages=["a"]))
        await applied.wait()
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step

        await run.step(lambda ctx: MutationBatch().update(Visits, 1), messages=["b"])

        assert (run.read(Visits), run.record.steps, run.record.messages) == (2, 2, 2)
        assert len(await run.messages()) == 2


async def test_a_maximum_refuses_what_no_number_is_higher_than() -> None:
    class Top(MaximumKey[float]):
        KEY = "top"

    async with KeyedState(keys=[Top]) as state:
        with pytest.raises(StateError, match="NaN"):
            await state.commit(MutationBatch().update(Top, 1.0).update(Top, float("nan")))
        await state.commit(MutationBatch().update(Top, 2.0))

        assert state.read(Top) == 2.0


async def test_scopes_are_text() -> None:
    class Locale(ProfileKey[str]):
        KEY = "locale"

    wrong: list[Any] = [3, "", "lone \ud800"]
    for text in wrong:
        with pytest.raises(InvalidError):
            StateScope.new(text)
        with pytest.raises(InvalidError):
            await ProfileAccess().read(Locale, text)


@pytest.mark.parametrize("text", ["a/b", "a%2Fb", "%", "a%252Fb", "//"])
def test_a_segment_has_no_slash_and_another_text_another_segment(text: str) -> None:
    others = {escape(other) for other in ("a/b", "a%2Fb", "%", "a%252Fb", "//") if other != text}

    assert "/" not in escape(text)
    assert escape(text) not in others


def test_a_name_leads_back_to_its_slot() -> None:
    names = Names("thread/t%2F1/")

    assert names.slot(names.document("thread/a/b", "r"), "r") == "thread/a/b"
    assert names.slot(names.document("run/x", "r/1"), "r/1") == "run/x"
    assert names.slot(names.document("run/x", "r"), "other") is None
    assert names.slot(names.head, "r") is None


async def test_a_number_refuses_what_is_none_by_the_name_of_its_key() -> None:
    class Top(MaximumKey[int]):
        KEY = "top"

    async with KeyedState(keys=[Visits, Top]) as state:
        wrong: Any
        for wrong in ("x", None, [1]):
            with pytest.raises(StateError, match=r"'.*visits' got the update .*Pass an int"):
                await state.commit(MutationBatch().update(Visits, wrong))
            with pytest.raises(StateError, match=r"'top' got the update .*Pass a number"):
                await state.commit(MutationBatch().update(Top, 1).update(Top, wrong))

        assert (state.read(Visits), state.read(Top)) == (None, None)


async def test_fields_of_a_later_version_stay_in_the_records_of_a_thread() -> None:
    async with keepstate.open("memory://") as ks:
        space = ks.space("thread/t")
        async with AgentRun(persistence=ks, keys=KEYS) as run:
            await run.start_run("t", "r")
            await run.commit(MutationBatch().update(Notes, ["a"]))
        heads = ["typed/head", "typed/runs/r"]
        for name in heads:
            await space.documents.put(name, {**await space.documents.get(name), "since_then": [1]})

        async with KeyedState("t", persistence=ks, keys=KEYS) as state:
            await state.commit(state.begin_mutation().update(Notes, ["b"]))
            stored = await space.documents.get("typed/head")
            assert (stored["since_then"], stored["revision"]) == ([1], state.revision)
        async with AgentRun(persistence=ks, keys=KEYS) as again:
            await again.start_run("t", "r", resume=True)
            await again.commit(MutationBatch().update(Notes, ["c"]))
            await again.finish_run()

        for name in heads:
            assert (await space.documents.get(name))["since_then"] == [1]
