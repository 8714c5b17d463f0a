"""The whole state: exported, restored, of older versions, and at earlier moments."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest

from keepstate.errors import NotFoundError, StateConflictError, StateError
from keepstate.typed.key import KeyScope
from keepstate.typed.persisted import PersistedState
from keepstate.typed.ready_keys import RegisterKey
from tests.contracts.typed.keys import (
    Draft,
    FirstName,
    Goal,
    Notes,
    NumberedName,
    Plan,
    Socket,
    SplitName,
    Visits,
)
from tests.contracts.typed.stage import TypedStage, update


class WholeStateContract(TypedStage):
    """`export_persisted`, `restore_persisted`, upgrades, `at` and `diff`."""

    async def test_an_export_is_json_by_name_and_revision(self) -> None:
        state = await self.state()
        await state.commit(update(Visits, 1).update(Notes, ["a"]).update(Socket, 1))

        exported = state.export_persisted()

        assert exported == PersistedState(1, {"notes": ["a"], "visits": 1}, {"notes": 1, "visits": 1})
        assert json.loads(json.dumps(exported.extensions)) == exported.extensions

    async def test_an_export_restored_elsewhere_is_the_same(self) -> None:
        state = await self.state()
        await state.commit(update(Visits, 1).update(Notes, ["a"]).update(Draft, "d"))
        exported = state.export_persisted()
        other = await self.state(space=self.handle().space("elsewhere"))

        await other.restore_persisted(exported)

        assert other.export_persisted() == exported
        assert (other.revision, other.read(Draft)) == (1, "d")
        assert (await self.state(space=self.handle().space("elsewhere"))).export_persisted() == exported

    async def test_restoring_replaces_everything_and_goes_on_from_its_revision(self) -> None:
        state = await self.state()
        await state.commit(update(Visits, 1).update(Plan, "a"))
        await state.commit(update(Socket, 1))

        await state.restore_persisted(PersistedState(40, {"visits": 7}))

        assert (state.revision, state.read(Visits), state.read(Plan), state.read(Socket)) == (
            40,
            7,
            None,
            None,
        )
        assert await state.commit(update(Visits, 1)) == 41
        assert (await self.state()).export_persisted().extensions == {"visits": 8}

    async def test_unknown_values_are_kept_unless_said_otherwise(self) -> None:
        whole = PersistedState(3, {"visits": 1, "unheard": {"of": [1]}}, {"unheard": 4})
        state = await self.state(keys=[Visits])

        await state.restore_persisted(whole)

        assert state.export_persisted() == whole
        assert (await self.state(keys=[])).export_persisted() == whole

    async def test_unknown_values_are_skipped_or_refused_on_request(self) -> None:
        whole = PersistedState(3, {"visits": 1, "unheard": 1})
        state = await self.state(keys=[Visits])

        with pytest.raises(StateError, match="unheard") as refused:
            await state.restore_persisted(whole, unknown="error")
        assert refused.value.state_key == "unheard"
        assert (state.revision, state.read(Visits)) == (0, None)
        await state.restore_persisted(whole, unknown="skip")
        assert state.export_persisted().extensions == {"visits": 1}

    async def test_a_restore_that_fails_changes_nothing(self) -> None:
        state = await self.state()
        await state.commit(update(Visits, 1))
        wrong: list[Any] = [
            PersistedState(9, {"visits": 2, "notes": "no list"}),
            PersistedState(9, {"visits": 2, "notes": ["a"]}, {"notes": 5}),
            PersistedState(-1, {}),
            PersistedState(9, {"visits": (1,)}),
            {"revision": 1},
        ]

        for given in wrong:
            with pytest.raises(StateError):
                await state.restore_persisted(given)
        with pytest.raises(StateError):
            await state.restore_persisted(PersistedState(9, {}), unknown="drop")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

        assert (state.revision, state.read(Visits)) == (1, 1)
        assert await (await self.state()).refresh() == 1

    async def test_an_export_and_a_restore_of_one_scope_leave_the_other(self) -> None:
        state = await self.state()
        await state.commit(update(Visits, 1).update(Plan, "a").update(Draft, "d").update(Socket, 1))
        thread, run = (state.export_persisted(scope) for scope in (KeyScope.THREAD, KeyScope.RUN))
        assert (thread.extensions, thread.run_scoped) == ({"visits": 1, "plan": "a"}, [])
        assert (run.extensions, run.run_scoped) == ({"draft": "d"}, ["draft"])
        await state.commit(update(Visits, 9).update(Goal, "g").update(Draft, "later"))
        exclusive = state.begin_mutation().update(Plan, "late")

        await state.restore_persisted(thread, scope=KeyScope.THREAD)

        other = await self.state()
        assert (other.revision, other.read(Visits), other.read(Plan)) == (3, 1, "a")
        assert (other.read(Goal), other.read(Draft), state.read(Socket)) == (None, "later", None)
        with pytest.raises(StateConflictError):
            await state.commit(exclusive)
        whole = PersistedState(40, {**thread.extensions, "draft": "d"}, {"draft": 1}, ["draft"])
        await state.restore_persisted(whole, scope=KeyScope.RUN)
        assert (state.read(Draft), state.read(Visits), state.revision) == ("d", 1, 4)
        assert await (await self.state()).commit(update(Visits, 1)) == 5

    async def test_a_child_is_seeded_once_and_keeps_what_it_made_since(self) -> None:
        parent = await self.state()
        await parent.commit(update(Visits, 3).update(Plan, "a").update(Draft, "d"))
        seed = parent.export_persisted()
        child = await self.state(space=self.handle().space("child"))
        await child.commit(update(Notes, ["own"]))

        assert await child.seed(seed, scope=KeyScope.THREAD) == ["plan", "visits"]
        assert (child.revision, child.read(Visits), child.read(Draft)) == (2, 3, None)
        late = child.begin_mutation().update(Plan, "late")
        await child.commit(update(Visits, 1).update(Plan, "b"))
        assert await child.seed(seed) == ["draft"]  # a child that is resumed keeps its work
        assert (child.read(Visits), child.read(Plan), child.read(Draft)) == (4, "b", "d")
        assert await child.seed(seed) == [] and child.revision == 4

        assert await child.seed(seed, replace=True) == ["draft", "plan", "visits"]
        again = await self.state(space=self.handle().space("child"))
        assert (again.read(Visits), again.read(Plan), again.read(Notes)) == (3, "a", ["own"])
        with pytest.raises(StateConflictError):
            await child.commit(late)
        assert (await self.state()).export_persisted() == seed

    async def test_a_seed_that_cannot_be_read_changes_nothing(self) -> None:
        child = await self.state(keys=[Visits])
        with pytest.raises(StateError, match="visits"):
            await child.seed(PersistedState(1, {"visits": "many", "unheard": 1}))
        with pytest.raises(StateError, match="unheard"):
            await child.seed(PersistedState(1, {"visits": 1, "unheard": 1}), unknown="error")
        for wrong in ("thread", 1):
            given: Any = wrong
            with pytest.raises(StateError, match="scope"):
                child.export_persisted(given)
            for restore in (child.seed, child.restore_persisted):
                with pytest.raises(StateError, match="scope"):
                    await restore(PersistedState(1, {"visits": 1}), scope=given)
        assert child.revision == 0

        assert await child.seed(PersistedState(1, {"visits": 1, "unheard": 2})) == ["unheard", "visits"]
        assert child.export_persisted().extensions == {"visits": 1, "unheard": 2}

    async def test_a_seed_of_a_run_belongs_to_the_run_of_the_child(self) -> None:
        parent = await self.state()
        await parent.commit(update(Draft, "d").update(Visits, 1))
        run = self.run()
        await run.start_run("child", "r1")
        assert await run.state.seed(parent.export_persisted()) == ["draft", "visits"]
        assert (run.read(Draft), run.read(Visits)) == ("d", 1)
        await run.finish_run()

        await run.start_run("child", "r2")
        assert (run.read(Draft), run.read(Visits)) == (None, 1)
        await run.finish_run()

    async def test_a_batch_from_before_a_restore_is_refused_even_at_its_revision(self) -> None:
        state = await self.state()
        await state.commit(update(Visits, 1))
        before = state.begin_mutation().update(Visits, 1)
        await state.restore_persisted(PersistedState(1, {"visits": 100}))

        with pytest.raises(StateConflictError, match="restored"):
            await state.commit(before)

        assert state.read(Visits) == 100

    async def test_another_handle_notices_that_a_state_was_restored(self) -> None:
        state, other = await self.state(), await self.state()
        await state.commit(update(Visits, 1).update(Plan, "a"))
        await other.refresh()
        await state.restore_persisted(PersistedState(1, {"visits": 100}))

        assert await other.refresh() == 1
        assert (other.read(Visits), other.read(Plan)) == (100, None)

    async def test_what_is_committed_beside_a_restore_is_replaced_too(self) -> None:
        state, other = await self.state(), await self.state()
        await state.commit(update(Visits, 1))
        whole = state.export_persisted()
        await state.commit(update(Visits, 1))
        refresh = state._thread.refresh  # pyright: ignore[reportPrivateUsage]

        async def outrun() -> None:
            await refresh()
            await other.commit(update(Plan, "late"))

        state._thread.refresh = outrun  # type: ignore[method-assign]  # pyright: ignore[reportPrivateUsage]

        await state.restore_persisted(whole)

        assert (state.read(Visits), state.read(Plan)) == (1, None)
        fresh = await self.state()
        assert fresh.export_persisted() == whole
        assert await fresh.commit(fresh.begin_mutation().update(Plan, "next")) == 2

    async def test_what_a_restore_to_an_earlier_revision_does_not_reach_can_be_changed(self) -> None:
        state, run = await self.state(), self.run()
        await state.commit(update(Visits, 1))
        whole = state.export_persisted()
        await run.start_run("t", "r")
        for text in ("a", "b", "c"):
            await run.commit(update(Draft, text))

        await state.restore_persisted(whole)

        await run.state.refresh()
        late = run.state.begin_mutation().update(Draft, "late")
        await run.commit(run.state.begin_mutation().update(Draft, "d"))
        with pytest.raises(StateConflictError, match="'draft'"):
            await run.commit(late)
        assert (run.read(Draft), run.read(Visits)) == ("d", 1)

    async def test_a_thread_that_was_dropped_and_begun_anew_is_another_one(self) -> None:
        old, ks = await self.state(), self.handle()
        await old.commit(update(Visits, 1).update(Plan, "secret"))
        await old.commit(update(Visits, 1))
        late, counted = old.begin_mutation().update(Goal, "late"), old.begin_mutation().update(Visits, 1)
        await ks.drop("thread/t")
        new = await self.state()
        await new.commit(update(Goal, "new"))
        for _ in range(3):
            await new.commit(update(Visits, 1))

        await old.refresh()

        assert (old.revision, old.read(Visits), old.read(Plan)) == (4, 3, None)
        for batch in (late, counted):
            with pytest.raises(StateConflictError, match="recreated"):
                await old.commit(batch)
        assert old.export_persisted() == (await self.state()).export_persisted()

    async def test_what_was_computed_before_anything_was_there_applies_to_what_has_begun_since(self) -> None:
        one, other = await self.state(), await self.state()
        mine = one.begin_mutation().update(Visits, 1).update(Goal, "mine")
        late = one.begin_mutation().update(Plan, "late")
        await other.commit(other.begin_mutation().update(Visits, 1).update(Plan, "theirs"))

        with pytest.raises(StateConflictError, match="'plan'"):
            await one.commit(late)
        await one.commit(mine)

        assert (one.revision, one.read(Visits), one.read(Goal), one.read(Plan)) == (2, 2, "mine", "theirs")

    async def test_what_was_computed_before_a_state_was_put_there_is_refused(self) -> None:
        one, other = await self.state(), await self.state()
        late = one.begin_mutation().update(Goal, "late")
        await other.restore_persisted(PersistedState(0, {"goal": "seed", "visits": 5}))

        with pytest.raises(StateConflictError, match="restored"):
            await one.commit(late)

        assert (one.revision, one.read(Goal), one.read(Visits)) == (0, "seed", 5)
        await one.commit(update(Visits, 1))
        await other.refresh()
        assert (other.revision, other.read(Visits)) == (1, 6)

    # ---- older versions

    async def test_a_value_of_an_older_version_is_upgraded_when_it_is_read_and_changed(self) -> None:
        await (await self.state(keys=[FirstName])).commit(update(FirstName, "Ada Lovelace"))
        state = await self.state(keys=[SplitName])

        assert state.read(SplitName) == {"first": "Ada", "last": "Lovelace"}
        await state.commit(update(SplitName, "Augusta"))
        assert (await self.state(keys=[SplitName])).read(SplitName) == {
            "first": "Augusta",
            "last": "Lovelace",
        }
        assert state.export_persisted().versions == {"name": 2}

    async def test_an_export_of_an_older_version_is_restored_and_read(self) -> None:
        old = PersistedState(5, {"name": "Ada Lovelace"}, {"name": 1})
        state = await self.state(keys=[SplitName])

        await state.restore_persisted(old)

        assert state.read(SplitName) == {"first": "Ada", "last": "Lovelace"}
        assert state.export_persisted() == old

    async def test_a_value_of_which_nobody_says_the_version_is_upgraded_by_nobody(self) -> None:
        bare = PersistedState(5, {"name": "Ada Lovelace"})
        split, plain = await self.state(keys=[SplitName]), await self.state(keys=[FirstName])

        with pytest.raises(StateError, match="with `versions`") as refused:
            await split.restore_persisted(bare)
        assert (refused.value.state_key, split.revision) == ("name", 0)
        await plain.restore_persisted(bare)
        assert (plain.read(FirstName), plain.export_persisted()) == ("Ada Lovelace", bare)
        await split.refresh()
        with pytest.raises(StateError, match="with `versions`"):
            split.read(SplitName)

        await plain.commit(update(FirstName, "Ada"))
        await split.refresh()
        assert split.read(SplitName) == {"first": "Ada", "last": ""}

    async def test_an_export_goes_through_json_as_python_has_it(self) -> None:
        class Level(RegisterKey[float]):
            KEY = "level"
            SCOPE = KeyScope.THREAD

        state = await self.state(keys=[Level])
        await state.commit(update(Level, float("nan")))

        whole = PersistedState(**json.loads(json.dumps(asdict(state.export_persisted()))))
        await state.restore_persisted(whole)

        assert str(state.read(Level)) == "nan"

    async def test_a_value_that_no_longer_validates_tells_its_path_and_version(self) -> None:
        class Wrong(SplitName):
            @classmethod
            def upgrade(cls, raw: Any, from_version: int) -> Any:
                return {"first": 3}

        await (await self.state(keys=[FirstName])).commit(update(FirstName, "Ada"))

        cases: list[tuple[Any, str | None]] = [(NumberedName, None), (Wrong, "['first']")]
        for key, path in cases:
            state = await self.state(keys=[key])
            with pytest.raises(StateError, match="version 1") as refused:
                state.read(key)
            assert (refused.value.state_key, refused.value.stored_version) == ("name", 1)
            assert (refused.value.path or None) == path
            with pytest.raises(StateError, match="version 1"):
                await state.commit(update(key, 1))

    async def test_what_a_newer_version_wrote_is_refused(self) -> None:
        await (await self.state(keys=[SplitName])).commit(update(SplitName, "Ada"))
        state = await self.state(keys=[FirstName])

        with pytest.raises(StateError, match="newer") as refused:
            state.read(FirstName)

        assert refused.value.stored_version == 2

    # ---- earlier moments

    async def test_each_commit_of_a_recorded_thread_can_be_read_again(self) -> None:
        state = await self.state(record=True, author="agent")
        await state.commit(update(Visits, 1).update(Draft, "a"))
        await state.commit(update(Visits, 1).update(Plan, "p"), message="plan")
        await state.commit(update(Draft, "b"))

        then = await state.at("main~1")

        assert (then.revision, then.get(Visits), then.get(Draft), then.get(Plan)) == (2, 2, "a", "p")
        assert (await state.at("main#1")).get(Plan) is None

    async def test_a_diff_tells_which_keys_have_another_value(self) -> None:
        state = await self.state(record=True)
        await state.commit(update(Visits, 1).update(Draft, "a"))
        await state.commit(update(Visits, 2).update(Plan, "p"))
        await state.clear_run_scoped()

        told = await state.diff("main#1")

        assert [(each.key, each.old, each.new) for each in told] == [
            ("draft", "a", None),
            ("plan", None, "p"),
            ("visits", 1, 3),
        ]
        assert await state.diff("main", "main") == []

    async def test_the_past_and_what_is_watched_are_read_by_the_class_of_now(self) -> None:
        await (await self.state(keys=[FirstName], record=True)).commit(update(FirstName, "Ada Lovelace"))
        state = await self.state(keys=[SplitName])
        old, new = {"first": "Ada", "last": "Lovelace"}, {"first": "Augusta", "last": "Lovelace"}

        async with state.watch(SplitName, timeout_s=0) as changes:
            await state.commit(update(SplitName, "Augusta"))
            told = [(change.old, change.new) async for change in changes]

        assert told == [(old, new)]
        assert [(each.old, each.new) for each in await state.diff("main#1")] == [(old, new)]
        assert (await state.at("main#1")).get(SplitName) == old

    async def test_a_thread_that_is_not_recorded_has_no_past(self) -> None:
        state = await self.state()
        await state.commit(update(Visits, 1))

        with pytest.raises(NotFoundError):
            await state.at("main")
