"""What a commit and a refresh read and write: what they touch, and nothing of what else is registered."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from types import new_class
from typing import Any

import pytest

from keepstate import AgentRun, KeyedState, KeyScope, MutationBatch, ProfileAccess, ProfileKey
from keepstate._runner import TaskRunner
from keepstate.engine.space.keepstate import Keepstate
from keepstate.names import INDEX_SPACE
from keepstate.opening import PassedStore, source_of
from keepstate.stores.memory import MemoryStore
from keepstate.stores.protocol import Applied, Batch, Reading
from tests.contracts.typed.keys import many


class Counting(MemoryStore):
    """Counts the keys that are read and written, the pages that are scanned, and how often it is asked."""

    def __init__(self) -> None:
        super().__init__(runner=TaskRunner())
        self.counts, self.asked = {"read": 0, "written": 0, "pages": 0}, 0

    async def read(self, space: str, keys: Sequence[bytes], *, at_ms: int | None = None) -> Reading:
        if space != INDEX_SPACE:  # which the background delivery looks for
            self.counts["read"] += len(keys)
            self.asked += 1
        return await super().read(space, keys, at_ms=at_ms)

    async def scan(self, *arguments: Any, **options: Any) -> Any:
        self.counts["pages"] += 1
        self.asked += 1
        return await super().scan(*arguments, **options)

    async def apply(self, batches: Sequence[Batch]) -> list[Any]:
        answers = await super().apply(batches)
        self.counts["written"] += sum(
            len(batch.writes)
            for batch, answer in zip(batches, answers, strict=True)
            if isinstance(answer, Applied)
        )
        return answers

    def taken(self) -> dict[str, int]:
        counts, self.counts = self.counts, dict.fromkeys(self.counts, 0)
        return counts


async def filled(store: Counting, registered: list[Any], **options: Any) -> KeyedState:
    await store.open()
    state = KeyedState(persistence=Keepstate(PassedStore(store, "async")), keys=registered, **options)
    for begin in range(0, len(registered), 500):
        batch = MutationBatch()
        for key in registered[begin : begin + 500]:
            batch.update(key, 1)
        await state.commit(batch)
    store.taken()
    return state


@pytest.mark.parametrize("count", [10, 1000])
def test_a_commit_reads_and_writes_what_it_touches_however_many_keys_are_registered(count: int) -> None:
    async def main() -> None:
        store, registered = Counting(), many(count)
        state = await filled(store, registered)

        await state.commit(state.begin_mutation().update(registered[0], 1).update(registered[5], 1))

        # Two values, the commit, and the outbox of the thread whose state it is.
        assert store.taken() == {"read": 3, "written": 4, "pages": 0}
        await store.close()

    asyncio.run(main())


def test_who_missed_some_commits_reads_what_they_changed() -> None:
    async def main() -> None:
        store, registered = Counting(), many(1000)
        state = await filled(store, registered)
        other = KeyedState(persistence=Keepstate(PassedStore(store, "async")), keys=registered)
        await other.refresh()
        for _ in range(50):
            batch = state.begin_mutation()
            for key in registered[:16]:
                batch.update(key, 1)
            await state.commit(batch)
        store.taken()

        await other.refresh()

        assert store.taken() == {"read": 17, "written": 0, "pages": 0}
        assert [other.read(key) for key in registered[:17]] == [51] * 16 + [1]
        await store.close()

    asyncio.run(main())


@pytest.mark.parametrize("count", [100, 1000])
@pytest.mark.parametrize("touched", [16, 64])
def test_two_who_commit_in_turn_read_what_both_touch_however_many_keys_there_are(
    count: int, touched: int
) -> None:
    async def main() -> None:
        store, registered = Counting(), many(count)
        one = await filled(store, registered)
        other = KeyedState(persistence=Keepstate(PassedStore(store, "async")), keys=registered)
        await other.refresh()
        for _ in range(3):
            batch = one.begin_mutation()
            for key in registered[:touched]:
                batch.update(key, 1)
            await one.commit(batch)
            store.taken()

            await other.commit(other.begin_mutation().update(registered[-1], 1))

            counts = store.taken()
            assert counts["pages"] == 0
            assert counts["read"] <= 2 * touched + 8
        await one.refresh()

        assert [state.read(registered[0]) for state in (one, other)] == [4, 4]
        assert [state.read(registered[-1]) for state in (one, other)] == [4, 4]
        assert one.export_persisted() == other.export_persisted()
        await store.close()

    asyncio.run(main())


def test_who_missed_many_commits_reads_what_they_changed() -> None:
    async def main() -> None:
        store, registered = Counting(), many(1000)
        state = await filled(store, registered)
        other = KeyedState(persistence=Keepstate(PassedStore(store, "async")), keys=registered)
        await other.refresh()
        for key in registered[:300]:
            await state.commit(state.begin_mutation().update(key, 1))
        store.taken()

        await other.refresh()

        assert store.taken() == {"read": 302, "written": 0, "pages": 0}
        assert [other.read(key) for key in registered] == [2] * 300 + [1] * 700
        await store.close()

    asyncio.run(main())


def test_who_missed_more_than_the_log_tells_reads_all_of_it_once() -> None:
    async def main() -> None:
        store, registered = Counting(), many(300)
        state = await filled(store, registered)
        other = KeyedState(persistence=Keepstate(PassedStore(store, "async")), keys=registered)
        await other.refresh()
        for _ in range(10):
            for begin in range(0, 300, 20):
                batch = state.begin_mutation()
                for key in registered[begin : begin + 20]:
                    batch.update(key, 1).update(key, 0)
                await state.commit(batch)
        for _ in range(10):
            batch = state.begin_mutation()
            for key in registered[:250]:
                batch.update(key, 0)
            await state.commit(batch)
        store.taken()

        await other.refresh()

        assert 0 < store.taken()["pages"] <= 6
        assert [other.read(key) for key in registered] == [11] * 300
        await store.close()

    asyncio.run(main())


def test_a_moment_is_read_without_what_others_keep_in_the_space() -> None:
    async def main() -> dict[int, dict[str, int]]:
        told: dict[int, dict[str, int]] = {}
        for foreign in (10, 2_000):
            store, registered = Counting(), many(3)
            await store.open()
            space = Keepstate(PassedStore(store, "async")).space("s", record=True)
            for begin in range(0, foreign, 500):
                async with space.transaction() as tx:
                    for number in range(begin, min(begin + 500, foreign)):
                        await tx.documents.put(f"foreign {number}", "x" * 200)
            state = KeyedState("t", space=space, keys=registered)
            for _ in range(2):
                await state.commit(MutationBatch().update(registered[0], 1))
            store.taken()

            then = await state.at("main~1")

            told[foreign] = store.taken()
            assert [then.get(key) for key in registered] == [1, None, None]
            assert (then.revision, state.read(registered[0])) == (1, 2)
            await store.close()
        return told

    told = asyncio.run(main())

    assert told[2_000]["read"] <= told[10]["read"] + 20
    assert told[2_000]["pages"] == told[10]["pages"]


def test_values_of_a_run_that_are_many_are_cleared_in_several_batches() -> None:
    async def main() -> None:
        run_scoped = many(1200, KeyScope.RUN)
        ks = Keepstate(source_of("memory://", "async"))
        async with ks, AgentRun(persistence=ks, keys=run_scoped) as run:
            await run.start_run("t", "r1")
            for begin in range(0, 1200, 600):
                batch = MutationBatch()
                for key in run_scoped[begin : begin + 600]:
                    batch.update(key, 1)
                await run.commit(batch)
            reader = KeyedState("t", persistence=ks, keys=run_scoped, run_id="r1")
            await reader.refresh()
            assert len(reader.export_persisted().extensions) == 1200
            await run.finish_run()

            await run.start_run("t", "r2")

            await reader.refresh()
            assert reader.export_persisted().extensions == {}
            assert [name async for name in ks.space("thread/t").documents.keys("typed/run/*")] == []

    asyncio.run(main())


def test_however_many_values_there_are_a_run_begins_in_a_few_round_trips() -> None:
    async def main() -> None:
        store = Counting()
        await store.open()
        run_scoped = many(100, KeyScope.RUN)
        async with AgentRun(persistence=Keepstate(PassedStore(store, "async")), keys=run_scoped) as run:
            await run.start_run("t", "r1")
            batch = MutationBatch()
            for key in run_scoped:
                batch.update(key, 1)
            await run.commit(batch)
            await run.finish_run()
            store.asked = 0

            await run.start_run("t", "r2")

            assert store.asked <= 12
            assert run.state.export_persisted().extensions == {}
        await store.close()

    asyncio.run(main())


def test_however_many_values_somebody_has_they_are_listed_and_cleared_in_a_few_round_trips() -> None:
    async def main() -> None:
        store = Counting()
        await store.open()
        access = ProfileAccess(persistence=Keepstate(PassedStore(store, "async")))
        for number in range(100):
            named = partial(dict.update, KEY=f"score {number:03}")
            await access.write(new_class("Score", (ProfileKey[int],), {}, named), "a", number)
        store.asked = 0

        assert [each.value for each in await access.list("a")] == list(range(100))
        assert await access.clear("a") == 100

        assert store.asked <= 6
        await store.close()

    asyncio.run(main())


def test_a_state_is_read_whole_though_others_never_stop_writing_it() -> None:
    async def main() -> None:
        store, registered = Counting(), many(1000)
        state = await filled(store, registered)
        is_over = False

        async def write() -> None:
            while not is_over:
                await state.commit(state.begin_mutation().update(registered[3], 1).update(registered[900], 1))

        writing = asyncio.create_task(write())
        for _ in range(5):
            other = KeyedState(persistence=Keepstate(PassedStore(store, "async")), keys=registered)
            await other.refresh()
            assert other.read(registered[3]) == other.read(registered[900])
        is_over = True
        await writing
        await store.close()

    asyncio.run(main())


def test_a_class_that_is_defined_again_as_in_a_notebook_is_the_same_key() -> None:
    async def main() -> None:
        first, second = many(1)[0], many(1)[0]
        async with KeyedState(keys=[first]) as state:
            await state.commit(state.begin_mutation().update(first, 1))
            await state.commit(state.begin_mutation().update(second, 1))

            assert state.read(second) == state.read(first) == 2

    asyncio.run(main())
