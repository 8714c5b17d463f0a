"""What a commit and a refresh read and write: what they touch, and nothing of what else is registered."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import new_class
from typing import Any

import pytest

from keepstate import CounterKey, KeyedState, KeyScope, MutationBatch
from keepstate._runner import TaskRunner
from keepstate.engine.keepstate import Keepstate
from keepstate.opening import PassedStore
from keepstate.stores.memory import MemoryStore
from keepstate.stores.protocol import Applied, Batch, Reading


class Counting(MemoryStore):
    """Counts the keys that are read and written, and the pages that are scanned."""

    def __init__(self) -> None:
        super().__init__(runner=TaskRunner())
        self.counts = {"read": 0, "written": 0, "pages": 0}

    async def read(self, space: str, keys: Sequence[bytes]) -> Reading:
        self.counts["read"] += len(keys)
        return await super().read(space, keys)

    async def scan(self, *arguments: Any, **options: Any) -> Any:
        self.counts["pages"] += 1
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


def keys(count: int) -> list[Any]:
    def named(number: int) -> Any:
        members = {"KEY": f"k{number}", "SCOPE": KeyScope.THREAD}
        return new_class(f"Key{number}", (CounterKey,), {}, lambda names: names.update(members))

    return [named(number) for number in range(count)]


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
        store, registered = Counting(), keys(count)
        state = await filled(store, registered)

        await state.commit(state.begin_mutation().update(registered[0], 1).update(registered[5], 1))

        assert store.taken() == {"read": 3, "written": 3, "pages": 0}
        await store.close()

    asyncio.run(main())


def test_who_missed_some_commits_reads_what_they_changed() -> None:
    async def main() -> None:
        store, registered = Counting(), keys(1000)
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


def test_who_missed_more_reads_all_of_it_once() -> None:
    async def main() -> None:
        store, registered = Counting(), keys(300)
        state = await filled(store, registered)
        other = KeyedState(persistence=Keepstate(PassedStore(store, "async")), keys=registered)
        await other.refresh()
        for key in registered:
            await state.commit(state.begin_mutation().update(key, 1))
        store.taken()

        await other.refresh()

        assert store.taken()["pages"] <= 6
        assert [other.read(key) for key in registered] == [2] * 300
        await store.close()

    asyncio.run(main())


def test_a_state_is_read_whole_though_others_never_stop_writing_it() -> None:
    async def main() -> None:
        store, registered = Counting(), keys(1000)
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
        first, second = keys(1)[0], keys(1)[0]
        async with KeyedState(keys=[first]) as state:
            await state.commit(state.begin_mutation().update(first, 1))
            await state.commit(state.begin_mutation().update(second, 1))

            assert state.read(second) == state.read(first) == 2

    asyncio.run(main())
