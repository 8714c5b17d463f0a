"""Abilities that only some stores have: mixins, to be named before `StoreContract`.

```python
class TestSqlite(Clocked, Persists, SharedAcrossProcesses, StoreContract):
    def make_store(self, tmp_path):
        return SqliteStore(path=tmp_path / "keepstate.db", runner=self.runner(), clock=self.clock)
```
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Protocol

import pytest

from keepstate.errors import CompactedError, OutcomeUnknownError
from keepstate.stores.base import SWEPT_BY_FLUSH, StoreBase
from keepstate.stores.protocol import ABSENT, Applied, Change, Check, Conflict, Delete, Durability, Put
from keepstate.testing.clocks import ManualClock
from keepstate.testing.store_contract.company import COUNTER, increment
from keepstate.testing.store_contract.hints import AN_HOUR_S
from keepstate.testing.store_contract.logs import SLACK, fill_log
from keepstate.testing.store_contract.stage import (
    LONG_MS,
    Stage,
    applied,
    changed,
    entry_of,
    outcome_of,
    put_away,
    refused,
    revision_of,
    scanned,
    value_of,
)
from keepstate.values import limits

A, B = b"\x01a", b"\x01b"
DOC, OBJECT = b"\x02doc", b"\x00object"
LOG = b"\x01log/"


class Clocked(Stage):
    """A store on the process's clock: `make_store` passes it `self.clock`, and no test waits."""

    clock: ManualClock
    schedules = 30

    @pytest.fixture(autouse=True)
    def turnable_clock(self) -> None:
        """Give the test a clock of its own."""
        self.clock = ManualClock()

    async def pass_time(self, ms: int) -> None:
        """Advance the clock."""
        self.clock.advance(ms)

    async def test_an_entry_expires_in_the_millisecond_that_it_says(
        self, store: StoreBase, space: str
    ) -> None:
        await applied(store, space, Put(A, b"1", ttl_ms=10))

        self.clock.advance(9)
        assert await value_of(store, space, A) == b"1"
        self.clock.advance(1)
        assert await value_of(store, space, A) is None

    async def test_a_space_s_time_never_goes_back(self, store: StoreBase, space: str) -> None:
        first = await applied(store, space, Put(A, b"1", ttl_ms=LONG_MS))
        self.clock.turn_back(3_600_000)

        second = await applied(store, space, Put(B, b"2", ttl_ms=10))

        assert second.now_ms == (await store.read(space, [])).now_ms == first.now_ms
        entry = await entry_of(store, space, B)
        assert entry is not None
        assert entry.expires_at_ms == first.now_ms + 10

    async def test_what_expired_stays_expired_when_the_clock_is_set_back(
        self, store: StoreBase, space: str
    ) -> None:
        await applied(store, space, Put(A, b"1", ttl_ms=10))
        self.clock.advance(10)
        await applied(store, space, checks=[Check(A, version=ABSENT)])
        await applied(store, space, Put(B, b"this flush removes it"))
        self.clock.turn_back(3_600_000)

        assert await value_of(store, space, A) is None

    async def test_a_kept_refusal_is_forgotten_after_an_hour(self, store: StoreBase, space: str) -> None:
        await refused(store, space, Put(B, b"1"), checks=[Check(A, version=1)], token=b"t", retry_of=0)
        self.clock.advance(3_600_000 - 1)
        assert await refused(store, space, Put(B, b"1"), token=b"t") == Conflict(A, 0)

        self.clock.advance(1)

        await applied(store, space, Put(B, b"1"), token=b"t")


class Persists(Stage):
    """A store that persists: a later handle finds everything that an earlier one left."""

    async def reopened(self, store: StoreBase, tmp_path: Path) -> StoreBase:
        """Close the handle and return a new one."""
        await store.close()
        return await self.make_store(tmp_path).open()

    async def test_reopening_finds_entries_with_their_facts(
        self, store: StoreBase, space: str, tmp_path: Path
    ) -> None:
        await applied(store, space, Put(A, b"1"), Put(DOC, bytes(range(256))), Put(OBJECT, b"{}"))
        await applied(store, space, Put(LOG, b"", stamp=True))
        await applied(store, space, Put(A, b"", ttl_ms=LONG_MS), Delete(B))
        sections = (b"\x00", b"\x01", b"\x02")
        before = [await scanned(store, space, section) for section in sections]

        again = await self.reopened(store, tmp_path)

        assert [await scanned(again, space, section) for section in sections] == before
        assert await revision_of(again, space) == 3
        done = await applied(again, space, Put(B, b"3"), checks=[Check(A, version=3), Check(A, created=1)])
        assert done.revision == 4
        await put_away(again, space)
        await again.close()

    async def test_reopening_finds_log_tokens_and_refusals(
        self, store: StoreBase, space: str, tmp_path: Path
    ) -> None:
        await applied(store, space, Put(DOC, b"1"), Put(A, b""), token=b"t")
        await applied(store, space, Put(DOC, b"2"))
        await refused(store, space, Put(B, b""), at=0, token=b"u", retry_of=0)
        log, nonces = await changed(store, space), (await store.changes(space, 0)).nonces

        again = await self.reopened(store, tmp_path)

        assert await changed(again, space) == log
        assert (await again.changes(space, 0)).nonces == nonces
        assert (await applied(again, space, Put(DOC, b"1"), token=b"t")).revision == 1
        assert await refused(again, space, Put(B, b""), token=b"u") == Conflict(None, 2)
        await put_away(again, space)
        await again.close()

    async def test_reopening_finds_the_floor(self, store: StoreBase, space: str, tmp_path: Path) -> None:
        last = limits.LOG_REVISIONS + SLACK
        await fill_log(store, space, last)

        again = await self.reopened(store, tmp_path)

        with pytest.raises(CompactedError) as caught:
            await again.changes(space, 0)
        floor = caught.value.floor or 0
        assert 0 < floor <= SLACK
        assert (await again.changes(space, floor, limit=1)).items[0].revision == floor + 1
        assert (await again.changes(space, last)).upto == last
        await put_away(again, space)
        await again.close()

    async def test_reopening_finds_a_log_that_was_trimmed(
        self, store: StoreBase, space: str, tmp_path: Path
    ) -> None:
        await applied(store, space, Put(DOC, b"1"), token=b"t")
        await applied(store, space, Put(DOC, b"2"))
        await applied(store, space, Put(DOC, b"3"))
        await store.trim(space)
        log, nonces = await changed(store, space, 2), (await store.changes(space, 2)).nonces

        again = await self.reopened(store, tmp_path)

        assert [(change.revision, change.old) for change in log] == [(3, b"2")]
        assert await changed(again, space, 2) == log
        assert (await again.changes(space, 2)).nonces == nonces
        with pytest.raises(CompactedError):
            await again.changes(space, 1)
        assert (await applied(again, space, Put(DOC, b"4"))).revision == 4
        await put_away(again, space)
        await again.close()

    async def test_reopening_finds_what_was_dropped_gone_and_its_count_kept(
        self, store: StoreBase, space: str, tmp_path: Path
    ) -> None:
        await applied(store, space, Put(A, b"1"))
        await store.drop(space)

        again = await self.reopened(store, tmp_path)

        assert await again.spaces(space) == []
        assert await value_of(again, space, A) is None
        assert (await applied(again, space, Put(A, b"3"))).revision == 3
        await put_away(again, space)
        await again.close()

    async def test_reopening_finds_odd_names_and_keys(
        self, store: StoreBase, space: str, tmp_path: Path
    ) -> None:
        names = [space + end for end in ("\x00", "😀", "{}", "A", "a", "..", "/")]
        key = b"\x01" + bytes(range(256))
        for name in names:
            await applied(store, name, Put(key, name.encode()))

        again = await self.reopened(store, tmp_path)

        assert await again.spaces(space) == sorted(names, key=str.encode)
        assert [await value_of(again, name, key) for name in names] == [name.encode() for name in names]
        await put_away(again, *names)
        await again.close()


class KeepsTime(Persists):
    """A store that stores its time: a later handle whose clock is behind continues from the stored time.

    Put it after `Clocked`.
    """

    clock: ManualClock

    async def test_a_clock_behind_revives_nothing_that_had_expired(
        self, store: StoreBase, space: str, tmp_path: Path
    ) -> None:
        many = [Put(b"\x01many/%02d" % number, b"", ttl_ms=5) for number in range(2 * SWEPT_BY_FLUSH)]
        await applied(store, space, Put(A, b"1", ttl_ms=10), Put(DOC, b"2", ttl_ms=10), *many)
        self.clock.advance(20)
        done = await applied(store, space, Put(B, b"the flush sweeps others, which expired before"))
        again = await self.reopened(store, tmp_path)
        self.clock.turn_back(3_600_000)

        assert await refused(again, space, Put(B, b""), checks=[Check(A, version=1)]) == Conflict(A, 0)
        assert await refused(again, space, Put(B, b""), checks=[Check(DOC, created=1)]) == Conflict(DOC, 0)
        assert await value_of(again, space, A) is None
        after = await applied(again, space, Put(DOC, b"3", ttl_ms=10), checks=[Check(DOC, version=ABSENT)])
        entry = await entry_of(again, space, DOC)
        assert entry is not None
        assert (entry.created, entry.expires_at_ms) == (after.revision, done.now_ms + 10)
        await put_away(again, space)
        await again.close()

    async def test_a_change_over_an_expired_entry_is_told_after_reopening(
        self, store: StoreBase, space: str, tmp_path: Path
    ) -> None:
        await applied(store, space, Put(DOC, b"old", ttl_ms=10))
        self.clock.advance(10)
        await applied(store, space, Put(DOC, b"new"))
        await applied(store, space, Put(DOC, b"newer"))

        again = await self.reopened(store, tmp_path)

        assert await changed(again, space, 1) == [
            Change(2, DOC, False, b"old", b"new", expired=True),
            Change(3, DOC, False, b"new", b"newer"),
        ]
        await put_away(again, space)
        await again.close()


class Shared(Stage):
    """Several handles of this process on one store."""

    async def test_a_second_handle_sees_what_the_first_wrote_at_once(
        self, store: StoreBase, space: str, tmp_path: Path
    ) -> None:
        second = await self.make_store(tmp_path).open()
        for i in range(10):
            writer, reader = (store, second) if i % 2 else (second, store)

            done = await applied(writer, space, Put(A, b"%d" % i))

            reading = await reader.read(space, [A])
            assert reading.revision == done.revision
            assert [entry and entry.value for entry in reading.entries] == [b"%d" % i]
        await second.close()

    async def test_two_handles_lose_no_increment(self, store: StoreBase, space: str, tmp_path: Path) -> None:
        second = await self.make_store(tmp_path).open()

        await self.together(*(increment(handle, space, 20) for handle in (store, second, store, second)))

        assert await value_of(store, space, COUNTER) == await value_of(second, space, COUNTER) == b"80"
        assert await revision_of(second, space) == 80
        await second.close()

    async def test_a_second_handle_hears_of_the_first_s_changes(
        self, store: StoreBase, space: str, tmp_path: Path
    ) -> None:
        second = await self.make_store(tmp_path).open()
        listener = second.listen([space])

        async def follow() -> int:
            upto = 0
            while upto < 5:
                await listener.wait(AN_HOUR_S)
                upto = (await second.changes(space, upto)).upto
            return upto

        async def write() -> int:
            for i in range(5):
                await applied(store, space, Put(A, b"%d" % i))
            return 5

        assert await self.together(follow(), write()) == [5, 5]
        listener.close()
        await second.close()

    async def test_closing_one_handle_leaves_the_other_working(
        self, store: StoreBase, space: str, tmp_path: Path
    ) -> None:
        second = await self.make_store(tmp_path).open()
        await applied(second, space, Put(A, b"1"))
        await second.close()

        await applied(store, space, Put(B, b"2"), checks=[Check(A, version=1)])

        assert await revision_of(store, space) == 2


class WorkerProcess(Protocol):
    """A process that works on the store, such as a `subprocess.Popen`."""

    @property
    def returncode(self) -> int | None: ...

    def poll(self) -> int | None: ...

    def communicate(self, *, timeout: float) -> tuple[str, str]: ...


class SharedAcrossProcesses(Shared):
    """Several processes on one store, which each opens by its URL."""

    def store_url(self, store: StoreBase) -> str:
        """Return the URL by which another process opens the store, where `store.url` is not enough."""
        return store.url

    def start_process(self, store: StoreBase, space: str, times: int) -> WorkerProcess:
        """Start a process that opens the store and increments the space's counter."""
        worker = "keepstate.testing.store_contract.incrementer"
        command = [sys.executable, "-m", worker, self.store_url(store), space, str(times)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    async def test_the_store_says_that_it_is_shared(self, store: StoreBase) -> None:
        assert store.capabilities.shared
        assert store.capabilities.durability is not Durability.NONE or store.retries

    async def test_processes_lose_no_increment(self, store: StoreBase, space: str) -> None:
        workers = [self.start_process(store, space, 40) for _ in range(3)]

        await increment(store, space, 40)
        for worker in workers:
            _, complaint = worker.communicate(timeout=60)
            assert worker.returncode == 0, complaint

        assert await value_of(store, space, COUNTER) == b"160"
        assert await revision_of(store, space) == 160

    async def test_changes_of_another_process_are_heard_and_none_is_missing(
        self, store: StoreBase, space: str
    ) -> None:
        listener = store.listen([space])
        worker = self.start_process(store, space, 30)

        seen: list[int] = []
        upto = 0
        while upto < 30 and worker.poll() in (None, 0):
            await listener.wait(10)  # the process may have failed, and is looked at again
            changes = await store.changes(space, upto)
            seen += [change.revision for change in changes.items]
            upto = changes.upto

        _, complaint = worker.communicate(timeout=60)
        listener.close()
        assert worker.returncode == 0, complaint
        assert seen == list(range(1, 31))


class LosesReplies(Stage):
    """A store whose answers can get lost: no batch is lost, and no batch applies twice."""

    def lose(self, store: StoreBase, *, requests: int = 0, replies: int = 0) -> None:
        """Make the store's next requests vanish before it sees them, then replies after it applied them."""
        raise NotImplementedError(f"{type(self).__name__} does not say how its store loses replies")

    @pytest.mark.parametrize("replies", [1, 2])
    async def test_a_lost_reply_applies_once(self, store: StoreBase, space: str, replies: int) -> None:
        await applied(store, space, Put(LOG, b"0", stamp=True))
        self.lose(store, replies=replies)

        done = await applied(store, space, Put(LOG, b"1", stamp=True))

        assert done.revision == 2
        assert [entry.value for entry in await scanned(store, space, LOG)] == [b"0", b"1"]

    async def test_a_lost_request_is_sent_again(self, store: StoreBase, space: str) -> None:
        await applied(store, space, Put(A, b"1"))
        self.lose(store, requests=1)

        await applied(store, space, Put(A, b"2"), checks=[Check(A, version=1)])

        assert await value_of(store, space, A) == b"2"
        assert await revision_of(store, space) == 2

    async def test_a_lost_refusal_is_found_again(self, store: StoreBase, space: str) -> None:
        await applied(store, space, Put(A, b"1"))
        self.lose(store, replies=1)

        assert await refused(store, space, Put(A, b"2"), checks=[Check(A, version=7)]) == Conflict(A, 1)
        assert await revision_of(store, space) == 1

    async def test_a_lost_request_of_a_retry_forgets_nothing_of_the_first_attempt(
        self, store: StoreBase, space: str
    ) -> None:
        await applied(store, space, Put(A, b"1"), token=b"first")
        await store.drop(space)  # the log no longer tells of it
        await applied(store, space, Put(A, b"3"))
        self.lose(store, requests=1)

        retried = await outcome_of(store, space, Put(B, b"again"), token=b"first", retry_of=0)

        assert isinstance(retried, OutcomeUnknownError)
        assert await entry_of(store, space, B) is None

    async def test_a_lost_reply_of_many_batches_applies_each_once(self, store: StoreBase, space: str) -> None:
        await applied(store, space, Put(A, b"1"))
        self.lose(store, requests=1, replies=1)

        outcomes = await self.together(
            *(outcome_of(store, space, Put(LOG, b"%d" % i, stamp=True)) for i in range(12))
        )

        assert sorted(outcome.revision for outcome in outcomes if isinstance(outcome, Applied)) == list(
            range(2, 14)
        )
        assert sorted(int(entry.value) for entry in await scanned(store, space, LOG)) == list(range(12))

    async def test_increments_lose_nothing_while_replies_get_lost(self, store: StoreBase, space: str) -> None:
        for _ in range(6):
            self.lose(store, requests=1, replies=1)
            await increment(store, space, 3)

        assert await value_of(store, space, COUNTER) == b"18"
        assert await revision_of(store, space) == 18
