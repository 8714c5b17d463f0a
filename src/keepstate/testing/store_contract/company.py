"""Concurrent callers: no write is lost, and each caller gets its own answer (promises 1 to 3)."""

from __future__ import annotations

import asyncio

from keepstate.errors import InvalidError
from keepstate.stores.base import StoreBase
from keepstate.stores.protocol import Applied, Batch, Check, Conflict, Outcome, Put
from keepstate.testing.store_contract.stage import (
    Stage,
    applied,
    entry_of,
    only_async,
    outcome_of,
    revision_of,
    scanned,
    value_of,
)
from keepstate.values.key import stamp_suffix

COUNTER = b"\x02counter"
A = b"\x01a"


async def increment(store: StoreBase, space: str, times: int) -> int:
    """Increment the counter `times` times, each time under a check, and return the number of conflicts."""
    refusals = 0
    while times:
        entry = await entry_of(store, space, COUNTER)
        count, version = (int(entry.value), entry.version) if entry else (0, 0)
        batch = Batch(space, [Put(COUNTER, b"%d" % (count + 1))], [Check(COUNTER, version=version)])
        [outcome] = await store.apply([batch])
        if isinstance(outcome, Applied):
            times -= 1
        else:
            refusals += 1
    return refusals


class Company(Stage):
    """Promises to concurrent callers of one handle."""

    async def test_64_writers_each_get_their_own_revision(self, store: StoreBase, space: str) -> None:
        async def write(i: int) -> tuple[bytes, int]:
            key = b"\x01%02d" % i
            return key, (await applied(store, space, Put(key, b"%d" % i))).revision

        answers = await self.together(*(write(i) for i in range(64)))

        assert sorted(revision for _, revision in answers) == list(range(1, 65))
        assert sorted((entry.key, entry.version) for entry in await scanned(store, space, b"\x01")) == sorted(
            answers
        )

    async def test_each_caller_of_several_batches_gets_the_answers_of_its_own(
        self, store: StoreBase, space: str
    ) -> None:
        async def write(i: int) -> tuple[list[Outcome], list[bytes]]:
            keys = [b"\x01%02d/%d" % (i, part) for part in range(1 + i % 3)]
            missing = b"\x01missing/%02d" % i
            batches = [Batch(space, [Put(key, key)]) for key in keys]
            batches.insert(i % 2, Batch(space, [Put(missing, b"")], [Check(missing, version=i + 1)]))
            outcomes = await store.apply(batches)
            assert outcomes.pop(i % 2) == Conflict(missing, 0)
            return outcomes, keys

        answers = await self.together(*(write(i) for i in range(24)))

        versions = {entry.key: entry.version for entry in await scanned(store, space, b"\x01")}
        for outcomes, keys in answers:
            assert [outcome.revision for outcome in outcomes if isinstance(outcome, Applied)] == [
                versions.pop(key) for key in keys
            ]
        assert versions == {}

    async def test_increments_under_checks_lose_nothing(self, store: StoreBase, space: str) -> None:
        await self.together(*(increment(store, space, 15) for _ in range(6)))

        assert await value_of(store, space, COUNTER) == b"90"
        assert await revision_of(store, space) == 90

    async def test_writers_of_many_spaces_share_a_store(self, store: StoreBase, space: str) -> None:
        names = [f"{space}/{i}" for i in range(16)]

        await self.together(*(increment(store, name, 5) for name in names))

        assert [await value_of(store, name, COUNTER) for name in names] == [b"5"] * 16
        for name in names:
            await store.drop(name)

    async def test_one_batch_s_error_is_its_own(self, store: StoreBase, space: str) -> None:
        """Also where the store finds the error itself, in a flush that other callers share."""
        log = b"\x01log/"

        async def write(i: int) -> str:
            clash = [Put(log + stamp_suffix(revision, 60), b"") for revision in range(1, 61)]
            writes = [*clash, Put(log, b"", stamp=True)] if i == 7 else [Put(b"\x01%d" % i, b"")]
            return type(await outcome_of(store, space, *writes)).__name__

        kinds = await self.together(*(write(i) for i in range(16)))

        assert [i for i, kind in enumerate(kinds) if kind == InvalidError.__name__] == [7]
        assert kinds.count("Applied") == 15
        assert await revision_of(store, space) == 15

    @only_async
    async def test_cancelling_one_caller_gives_up_only_its_wait(self, store: StoreBase, space: str) -> None:
        writers = [
            asyncio.create_task(
                applied(store, space, Put(b"\x01%02d" % i, b"whole"), Put(b"\x02%02d" % i, b"whole"))
            )
            for i in range(24)
        ]
        await asyncio.sleep(0)
        for writer in writers[::3]:
            writer.cancel()
        answers = await asyncio.gather(*writers, return_exceptions=True)

        kept = [answer.revision for answer in answers if isinstance(answer, Applied)]
        await applied(store, space, Put(A, b"the store goes on"))
        assert len(kept) >= 16
        assert len(set(kept)) == len(kept)
        present = [entry.key[1:] for entry in await scanned(store, space, b"\x02")]
        assert {b"%02d" % i for i, answer in enumerate(answers) if isinstance(answer, Applied)} <= set(
            present
        )
        assert [entry.key[1:] for entry in await scanned(store, space, b"\x01") if entry.key != A] == present
        assert await revision_of(store, space) == len(present) + 1

    @only_async
    async def test_closing_waits_for_what_is_under_way(self, store: StoreBase, space: str) -> None:
        writers = [asyncio.create_task(applied(store, space, Put(b"\x01%02d" % i, b""))) for i in range(8)]
        await asyncio.sleep(0)

        await store.close()

        answers = await asyncio.gather(*writers)
        assert sorted(answer.revision for answer in answers) == list(range(1, 9))
