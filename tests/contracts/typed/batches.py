"""Batches: what applies, to what, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from keepstate.errors import ClosedError, InvalidError, NotLoadedError, StateConflictError, StateError
from keepstate.typed.batch import MutationBatch
from keepstate.typed.changes import CommitEvent
from keepstate.typed.key import AnyKey
from keepstate.typed.registry import Keys
from keepstate.typed.state import KeyedState
from tests.contracts.typed import keys
from tests.contracts.typed.keys import (
    Draft,
    Evens,
    Forgetful,
    Goal,
    Notes,
    Plan,
    Seen,
    Socket,
    Visits,
    many,
)
from tests.contracts.typed.stage import TypedStage, update


class BatchContract(TypedStage):
    """`snapshot`, `begin_mutation`, `commit`, hooks, and others who commit too."""

    async def test_a_closed_state_commits_nothing_also_where_the_store_stays_open(self) -> None:
        state = await self.state()
        await state.commit(update(Visits, 1))
        await state.close()

        with pytest.raises(ClosedError):
            await state.commit(update(Visits, 1))
        with pytest.raises(ClosedError):
            await state.refresh()
        assert (await self.state()).read(Visits) == 1

    async def test_a_batch_is_one_revision_however_many_updates_it_has(self) -> None:
        state = await self.state()

        revision = await state.commit(
            state.begin_mutation().update(Visits, 1).update(Visits, 2).update(Plan, "a")
        )

        assert revision == state.revision == state.snapshot().revision == 1
        assert (state.read(Visits), state.read(Plan)) == (3, "a")

    async def test_a_batch_unsets_a_key_and_later_updates_begin_at_the_default(self) -> None:
        state = await self.state()
        await state.commit(update(Visits, 5).update(Plan, "a").update(Notes, ["n"]).update(Socket, 7))

        revision = await state.commit(
            state.begin_mutation().unset(Visits).update(Visits, 2).unset(Plan).update(Notes, ["m"])
        )
        await state.commit(MutationBatch().unset(Socket).unset(Goal))  # one is not stored, one is absent

        other = await self.state()
        assert revision == 2 and other.revision == 3
        assert (other.read(Visits), other.read(Plan), other.read(Notes)) == (2, None, ["n", "m"])
        assert (state.read(Visits), state.read(Plan), state.read(Socket)) == (2, None, None)
        assert not state.snapshot().ext.contains(Plan)
        await state.commit(update(Plan, "b").unset(Plan))
        assert (await self.state()).read(Plan) is None

    async def test_a_removal_fits_with_no_parallel_update_of_its_key(self) -> None:
        state = await self.state()
        await state.commit(update(Visits, 5))
        batch, late = state.begin_mutation().unset(Visits), state.begin_mutation().unset(Visits)
        for one, two in ((batch, update(Visits, 1)), (update(Visits, 1), batch), (batch, late)):
            with pytest.raises(StateError, match="visits") as refused:
                state.merge_parallel(one, two)
            assert refused.value.state_key == "visits"
        assert state.merge_parallel(batch, update(Notes, ["n"])).touched_keys == {"visits", "notes"}

        await (await self.state()).commit(update(Visits, 1))
        with pytest.raises(StateConflictError) as conflict:
            await state.commit(batch)
        assert conflict.value.state_key == "visits" and state.read(Visits) == 6

    async def test_an_untouched_key_has_no_value_whatever_its_default(self) -> None:
        state = await self.state()

        assert state.snapshot().get(Visits) is None
        assert Visits.default() == 0

    async def test_an_empty_batch_changes_nothing_and_is_not_judged(self) -> None:
        state, told = await self.state(), list[CommitEvent]()
        await state.commit(update(Visits, 1))
        state.add_hook(told.append)

        assert await state.commit(MutationBatch(base_revision=99)) == 1
        assert told == []

    async def test_updates_apply_in_their_order(self) -> None:
        state = await self.state()

        await state.commit(update(Notes, ["a"]).update(Notes, ["b", "c"]).update(Notes, []))

        assert state.read(Notes) == ["a", "b", "c"]

    async def test_what_is_read_is_a_copy(self) -> None:
        state = await self.state()
        await state.commit(update(Notes, ["a"]))
        snapshot = state.snapshot()
        read = snapshot.get(Notes)
        assert read is not None
        read.append("mine")

        assert snapshot.get(Notes) == state.read(Notes) == ["a"]

    async def test_a_snapshot_stays_as_it_is(self) -> None:
        state = await self.state()
        before = state.snapshot()

        await state.commit(update(Visits, 1))

        assert (before.revision, before.get(Visits), state.read(Visits)) == (0, None, 1)

    async def test_an_update_is_as_it_was_when_it_was_given(self) -> None:
        state, given = await self.state(), ["a"]
        batch = update(Notes, given)
        given.append("later")

        await state.commit(batch)

        assert state.read(Notes) == ["a"]

    async def test_unknown_keys_are_refused_before_anything_applies(self) -> None:
        state = await self.state(keys=[Visits])

        with pytest.raises(StateError, match="'plan' is not registered") as refused:
            await state.commit(update(Visits, 1).update(Plan, "a"))

        assert refused.value.state_key == "plan"
        assert (state.revision, state.read(Visits)) == (0, None)

    async def test_apply_may_refuse_and_then_nothing_of_the_batch_applies(self) -> None:
        state = await self.state()

        with pytest.raises(ValueError, match="3 is odd") as refused:
            await state.commit(update(Visits, 1).update(Evens, 2).update(Evens, 3))

        assert "evens" in refused.value.__notes__[0]
        assert (await state.refresh(), state.read(Visits), state.read(Evens)) == (0, None, None)

    async def test_an_apply_that_returns_nothing_is_refused(self) -> None:
        state = await self.state()

        with pytest.raises(StateError, match="Return the new value"):
            await state.commit(update(Visits, 1).update(Forgetful, 1))

        assert state.read(Visits) is None

    async def test_a_value_of_another_type_is_refused_and_nothing_applies(self) -> None:
        state, wrong = await self.state(), update(Visits, 1.5)

        with pytest.raises(StateError, match="visits") as refused:
            await state.commit(update(Plan, "a").extend(wrong))

        assert refused.value.state_key == "visits"
        assert state.read(Plan) is None

    async def test_a_batch_on_an_older_revision_is_refused_if_its_exclusive_key_was_changed(self) -> None:
        state = await self.state()
        late = state.begin_mutation().update(Plan, "late")
        await state.commit(state.begin_mutation().update(Plan, "first"))

        with pytest.raises(StateConflictError, match="'plan'") as refused:
            await state.commit(late)

        assert refused.value.state_key == "plan"
        assert (state.revision, state.read(Plan)) == (1, "first")

    async def test_it_applies_if_only_others_were_changed(self) -> None:
        state = await self.state()
        late = state.begin_mutation().update(Plan, "late").update(Visits, 1)
        await state.commit(state.begin_mutation().update(Goal, "first").update(Visits, 1))

        await state.commit(late)

        assert (state.revision, state.read(Plan), state.read(Visits)) == (2, "late", 2)

    async def test_a_batch_of_no_base_applies_to_whatever_there_is(self) -> None:
        state = await self.state()
        await state.commit(update(Plan, "first"))

        await state.commit(update(Plan, "second"))

        assert state.read(Plan) == "second"

    async def test_a_base_that_the_state_has_not_come_to_is_refused(self) -> None:
        state = await self.state()

        with pytest.raises(StateConflictError):
            await state.commit(MutationBatch(base_revision=7).update(Visits, 1))

    async def test_what_is_no_batch_is_refused(self) -> None:
        state = await self.state()
        wrong: Any = {"visits": 1}

        with pytest.raises(InvalidError):
            await state.commit(wrong)

    async def test_a_state_that_was_not_read_says_so(self) -> None:
        state = KeyedState("t", persistence=self.url, keys=[Visits], _mode=self.mode_name)
        self._closing.append(state)

        with pytest.raises(NotLoadedError):
            state.snapshot()
        assert await state.commit(update(Visits, 1)) == 1

    # ---- others

    async def test_another_handle_reads_what_was_committed(self) -> None:
        state, other = await self.state(), await self.state()
        await state.commit(update(Notes, ["a"]))

        assert other.read(Notes) is None
        assert await other.refresh() == 1
        assert other.read(Notes) == (await self.state()).read(Notes) == ["a"]

    async def test_commutative_updates_of_two_are_both_kept_without_a_retry(self) -> None:
        one, other = await self.state(), await self.state()
        mine, theirs = one.begin_mutation().update(Visits, 1), other.begin_mutation().update(Visits, 1)

        assert await one.commit(mine) == 1
        assert await other.commit(theirs) == 2
        assert other.read(Visits) == 2

    async def test_of_two_exclusive_updates_one_is_refused_and_can_be_computed_again(self) -> None:
        one, other = await self.state(), await self.state()
        mine, theirs = one.begin_mutation().update(Plan, "a"), other.begin_mutation().update(Plan, "b")
        await one.commit(mine)

        with pytest.raises(StateConflictError):
            await other.commit(theirs)

        assert other.read(Plan) == "a"
        assert await other.commit(other.begin_mutation().update(Plan, "b")) == 2

    async def test_no_update_of_many_at_once_is_lost(self) -> None:
        states = [await self.state() for _ in range(4)]

        async def work(state: KeyedState, number: int) -> None:
            for step in range(8):
                batch = state.begin_mutation().update(Visits, 1).update(Seen, {f"{number}/{step}"})
                await state.commit(batch)

        await self.together(*[work(state, number) for number, state in enumerate(states)])

        assert await states[0].refresh() == 32
        assert states[0].read(Visits) == 32
        assert states[0].read(Seen) == {f"{number}/{step}" for number in range(4) for step in range(8)}

    async def test_tasks_and_threads_share_a_state(self) -> None:
        state = await self.state()

        await self.together(*[state.commit(update(Visits, 1)) for _ in range(12)])

        assert (state.revision, state.read(Visits)) == (12, 12)

    async def test_who_commits_knows_what_others_have_changed(self) -> None:
        one, other = await self.state(), await self.state()
        await one.commit(update(Goal, "found"))

        await other.commit(update(Visits, 1))

        assert (other.read(Goal), other.revision) == ("found", 2)

    async def test_who_missed_more_than_the_head_names_knows_it_all_after_a_commit_or_a_refresh(self) -> None:
        keys = many(80)
        options: dict[str, Any] = {"keys": [Visits, Draft], "plugins": [Keys(keys, "many")]}
        one, other, third = [await self.state(**options) for _ in range(3)]
        for begin in (0, 20, 40):
            batch = MutationBatch().update(Draft, f"from {begin}")
            for key in keys[begin : begin + 40]:
                batch.update(key, 1)
            await one.commit(batch)
        await one.uninstall_plugin("many")
        await one.install_plugin(Keys(keys, "many"))
        await one.commit(update(keys[7], 5))

        await other.commit(update(Visits, 1))
        await third.refresh()

        assert other.export_persisted() == third.export_persisted()
        assert other.export_persisted().extensions == {"visits": 1, "draft": "from 40", "key 7": 5}

    async def test_threads_in_one_space_are_apart(self) -> None:
        space = self.handle().space("shared")
        names = ["1", "10", "a/b", "a%2Fb", "%", "t ä :"]
        states = [KeyedState(name, space=space, keys=[Visits], _mode=self.mode_name) for name in names]
        for number, state in enumerate(states):
            await state.commit(update(Visits, number + 1))

        assert [await state.refresh() for state in states] == [1] * len(names)
        assert [state.read(Visits) for state in states] == [1, 2, 3, 4, 5, 6]

    async def test_ids_that_are_too_long_are_refused_when_they_are_given(self) -> None:
        space = self.handle().space("shared")

        for options in (
            {"thread_id": "x" * 300},
            {"thread_id": ""},
            {"run_id": "/" * 200},
            {"run_id": "é" * 300},
        ):
            arguments: dict[str, Any] = {"thread_id": "t", **options}
            with pytest.raises(InvalidError):
                KeyedState(**arguments, space=space, _mode=self.mode_name)

    # ---- transactions

    async def test_in_a_transaction_a_commit_joins_it(self) -> None:
        space = self.handle().space("shared")
        async with space.transaction() as tx:
            inside = await self.state(space=tx)
            await inside.commit(inside.begin_mutation().update(Visits, 1))
            await inside.commit(inside.begin_mutation().update(Visits, 1).update(Plan, "a"))
            await tx.documents.put("beside", True)
            assert inside.read(Visits) == 2

        state = await self.state(space=space)
        assert (state.revision, state.read(Visits), state.read(Plan)) == (2, 2, "a")
        assert await space.revision() == 1

    async def test_the_space_of_a_thread_holds_the_state_of_that_thread(self) -> None:
        state, space = await self.state(), self.handle().space("thread/t")
        await state.commit(update(Visits, 1))
        async with space.transaction() as tx:
            inside = await self.state(space=tx)
            assert inside.read(Visits) == 1
            await inside.commit(update(Visits, 1))
            await tx.documents.put("beside", True)

        assert (await state.refresh(), state.read(Visits)) == (2, 2)
        assert (await self.state(space=space)).read(Visits) == 2

    async def test_of_a_transaction_that_fails_nothing_is_kept_in_memory_either(self) -> None:
        space = self.handle().space("shared")
        states: list[KeyedState] = []

        async def fail() -> None:
            async with space.transaction() as tx:
                states.append(await self.state(space=tx, keys=[Visits, keys.Socket]))
                assert await states[0].commit(update(Visits, 1).update(keys.Socket, 1)) == 1
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()

        state = states[0]
        assert (state.revision, state.read(Visits), state.read(keys.Socket)) == (0, None, None)
        assert await space.revision() == 0

    async def test_hooks_and_watching_have_no_place_in_a_transaction(self) -> None:
        async with self.handle().space("shared").transaction() as tx:
            state = await self.state(space=tx)

            with pytest.raises(InvalidError):
                state.add_hook(print)
            with pytest.raises(InvalidError):
                async with state.watch(Visits):
                    pass

    # ---- hooks and watching

    async def test_hooks_are_told_afterwards_in_their_order(self) -> None:
        state, told = await self.state(), list[tuple[str, CommitEvent]]()
        state.add_hook(lambda event: told.append(("first", event)))
        state.add_hook(lambda event: told.append(("second", event)))

        await state.commit(update(Visits, 1).update(Visits, 1))
        await state.commit(update(Plan, "a"))

        assert [name for name, _ in told] == ["first", "second"] * 2
        assert [(e.previous_revision, e.new_revision, e.op_count) for _, e in told[1:3]] == [
            (0, 1, 2),
            (1, 2, 1),
        ]
        assert [event.snapshot.get(Plan) for _, event in told] == [None, None, "a", "a"]

    async def test_a_hook_that_fails_harms_nobody(self, caplog: pytest.LogCaptureFixture) -> None:
        state, told = await self.state(), list[CommitEvent]()

        def fails(event: CommitEvent) -> None:
            raise ValueError("hook")

        state.add_hook(fails)
        state.add_hook(told.append)

        assert await state.commit(update(Visits, 1)) == 1
        assert len(told) == 1
        assert "fails" in caplog.text

    async def test_a_refused_batch_is_told_to_nobody(self) -> None:
        state, told = await self.state(), list[CommitEvent]()
        state.add_hook(told.append)

        with pytest.raises(ValueError, match="odd"):
            await state.commit(update(Evens, 1))

        assert told == []

    async def test_watching_a_key_tells_each_change_whoever_makes_it(self) -> None:
        state, other = await self.state(), await self.state()
        async with state.watch(Visits, timeout_s=0) as changes:
            await other.commit(update(Visits, 1))
            await other.commit(update(Plan, "a"))
            await state.commit(update(Visits, 4))
            told = [change async for change in changes]

        assert [(each.key, each.old, each.new, each.revision) for each in told] == [
            ("visits", None, 1, 1),
            ("visits", 1, 5, 3),
        ]

    async def test_what_is_not_stored_cannot_be_watched(self) -> None:
        state = await self.state()

        for key in list[AnyKey]([keys.Socket, keys.FirstName]):
            with pytest.raises(StateError):
                async with state.watch(key):
                    pass

    # ---- the lives of values

    async def test_run_scoped_values_are_cleared_and_thread_scoped_ones_stay(self) -> None:
        state = await self.state()
        await state.commit(update(Draft, "a").update(Visits, 1))

        await state.clear_run_scoped()

        assert (state.read(Draft), state.read(Visits), state.revision) == (None, 1, 2)
        assert (await self.state()).read(Draft) is None

    async def test_clearing_what_is_clear_is_no_revision(self) -> None:
        state = await self.state()
        await state.commit(update(Visits, 1))

        await state.clear_run_scoped()

        assert state.revision == 1

    async def test_an_exclusive_update_of_what_was_cleared_since_is_refused(self) -> None:
        state = await self.state()
        await state.commit(update(Draft, "a"))
        late = state.begin_mutation().update(Draft, "b")
        await state.clear_run_scoped()

        with pytest.raises(StateConflictError):
            await state.commit(late)

    async def test_runs_have_values_of_their_own(self) -> None:
        one, other = await self.state(run_id="1"), await self.state(run_id="2")
        await one.commit(update(Draft, "one").update(Visits, 1))
        await other.commit(update(Draft, "other"))

        assert (await one.refresh(), one.read(Draft), other.read(Draft), other.read(Visits)) == (
            2,
            "one",
            "other",
            1,
        )

    async def test_two_handles_on_one_run_know_of_its_values(self) -> None:
        one, other = await self.state(run_id="1"), await self.state(run_id="1")
        await one.commit(update(Draft, "a"))
        await one.commit(update(Visits, 1))

        assert await other.refresh() == 2
        assert (other.read(Draft), other.read(Visits)) == ("a", 1)

    async def test_what_is_not_persistent_stays_in_this_memory_and_takes_part_in_all_or_nothing(self) -> None:
        state = await self.state()
        await state.commit(update(keys.Socket, 1))
        with pytest.raises(ValueError, match="odd"):
            await state.commit(update(keys.Socket, 1).update(Evens, 1))

        assert state.read(keys.Socket) == 1
        assert (await self.state()).read(keys.Socket) is None
        assert await state.refresh() == 1
        assert state.read(keys.Socket) == 1
