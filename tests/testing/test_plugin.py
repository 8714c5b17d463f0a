from __future__ import annotations

import asyncio
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import keepstate
import keepstate.sync
from keepstate.errors import ClosedError, ConflictError, InvalidError, OutcomeUnknownError, UnsupportedError
from keepstate.testing.clocks import StoreClock
from keepstate.testing.faulty_memory import StoreForTests


def test_what_expires_and_is_leased_follows_the_clock(
    keepstate_store: StoreForTests, keepstate_clock: StoreClock
) -> None:
    with keepstate_store.open_blocking() as ks:
        run = ks.space("run/1")
        run.documents.put("page", "x", ttl_s=3600)
        run.queue.put({"page": 1}, id="page/1")
        assert run.queue.claim("worker-1", lease_s=60)

        keepstate_clock.advance(59)
        assert not run.queue.claim("worker-2", lease_s=60)
        keepstate_clock.advance(2)
        assert run.queue.claim("worker-2", lease_s=60)

        keepstate_clock.set(datetime(2026, 1, 1, 1, tzinfo=UTC))
        assert run.documents.get("page") is None
    assert keepstate_clock.now() == datetime(2026, 1, 1, 1, tzinfo=UTC)


def test_advancing_the_clock_wakes_who_waits(
    keepstate_store: StoreForTests, keepstate_clock: StoreClock
) -> None:
    async def story() -> list[str]:
        async with keepstate_store.open() as ks:
            queue = ks.space("run/1").queue
            await queue.put({"page": 1}, id="page/1", delay_s=86_400)
            waiting = asyncio.create_task(queue.claim("worker", lease_s=60, wait_s=600))
            while not waiting.done():
                await asyncio.sleep(0.01)
                keepstate_clock.advance(3600)
            return [task.id for task in await waiting]

    assert asyncio.run(story()) == ["page/1"]
    assert keepstate_clock.now() >= datetime(2026, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf")])
def test_the_clock_refuses_what_is_no_duration(keepstate_clock: StoreClock, seconds: float) -> None:
    with pytest.raises(InvalidError, match="from 0, or use set"):
        keepstate_clock.advance(seconds)


def test_the_clock_refuses_a_moment_without_zone(keepstate_clock: StoreClock) -> None:
    with pytest.raises(InvalidError, match="no time zone"):
        keepstate_clock.set(datetime(2026, 1, 1))


def test_the_clock_may_go_back(keepstate_store: StoreForTests, keepstate_clock: StoreClock) -> None:
    with keepstate_store.open_blocking() as ks:
        ks.space("s").documents.put("a", 1, ttl_s=60)
        keepstate_clock.set(keepstate_clock.now() - timedelta(days=1))

        assert ks.space("s").documents.get("a") == 1


def test_a_crash_keeps_what_was_acknowledged_and_ends_the_process(keepstate_store: StoreForTests) -> None:
    async def story() -> None:
        before = keepstate_store.open()
        run = before.space("run/1")
        await run.documents.put("plan", {"step": 1})
        lease = await run.leases.acquire("writer", ttl_s=60)
        assert lease is not None
        keepstate_store.crash()

        with pytest.raises(ClosedError, match="crashed by the test"):
            await run.documents.put("plan", {"step": 2})
        await before.close()
        async with keepstate_store.open() as after:
            assert await after.space("run/1").documents.get("plan") == {"step": 1}
            with pytest.raises(ConflictError):
                await after.space("run/1").leases.acquire("writer", ttl_s=60)

    asyncio.run(story())


def test_a_crashed_worker_s_task_goes_to_the_next(
    keepstate_store: StoreForTests, keepstate_clock: StoreClock
) -> None:
    with keepstate_store.open_blocking() as ks:
        ks.space("run/1").queue.put({"page": 1}, id="page/1")
        assert ks.space("run/1").queue.claim("worker-1", lease_s=60)
        keepstate_store.crash()
    with keepstate_store.open_blocking() as ks:
        assert not ks.space("run/1").queue.claim("worker-2", lease_s=60)
        keepstate_clock.advance(61)
        (task,) = ks.space("run/1").queue.claim("worker-2", lease_s=60)
        assert task.attempt == 2


def test_a_lost_reply_is_asked_for_again_and_the_write_is_applied_once(
    keepstate_store: StoreForTests,
) -> None:
    with keepstate_store.open_blocking() as ks:
        counts = ks.space("run/1").documents
        counts.put("n", 0)
        keepstate_store.lose_next_reply()

        assert counts.update("n", lambda n: n + 1) == 1
        assert counts.get("n") == 1
        assert keepstate_store.unused_faults() == []


def test_a_reply_that_is_lost_for_good_leaves_the_outcome_open(keepstate_store: StoreForTests) -> None:
    with keepstate_store.open_blocking() as ks:
        run = ks.space("run/1")
        keepstate_store.lose_next_reply(for_good=True)

        with pytest.raises(OutcomeUnknownError) as caught:
            run.documents.put("plan", 1)
        assert caught.value.token is not None
        assert run.outcome(caught.value.token) is not None
        assert run.documents.get("plan") == 1


def test_a_transaction_meets_the_ordered_conflict(keepstate_store: StoreForTests) -> None:
    with keepstate_store.open_blocking() as ks:
        run = ks.space("run/1")
        run.documents.put("plan", {"step": 1})
        keepstate_store.conflict_next()

        with pytest.raises(ConflictError), run.transaction() as tx:
            tx.documents.put("plan", {"step": tx.documents.get("plan")["step"] + 1})
        assert run.documents.get("plan") == {"step": 1}


def test_an_update_calls_its_function_again_with_what_the_other_writer_wrote(
    keepstate_store: StoreForTests,
) -> None:
    async def story() -> list[int]:
        seen = list[int]()

        def more(n: int) -> int:
            seen.append(n)
            return n + 1

        async with keepstate_store.open() as ks:
            counts = ks.space("run/1").documents
            await counts.put("n", 0)
            keepstate_store.conflict_next(lambda other: other.space("run/1").documents.put("n", 41))
            assert await counts.update("n", more) == 42
        return seen

    assert asyncio.run(story()) == [0, 41]


def test_a_blocking_update_meets_a_writer_of_the_same_mode(keepstate_store: StoreForTests) -> None:
    with keepstate_store.open_blocking() as ks:
        counts = ks.space("run/1").documents
        keepstate_store.conflict_next(lambda other: other.space("run/1").documents.put("n", 41))

        assert counts.update("n", lambda n: n + 1, default=0) == 42


def test_a_conflict_that_cannot_be_made_up_asks_for_the_writer(keepstate_store: StoreForTests) -> None:
    with keepstate_store.open_blocking() as ks:
        run = ks.space("run/1")
        keepstate_store.conflict_next()

        with pytest.raises(UnsupportedError, match="pass the writer"), run.transaction() as tx:
            assert tx.documents.get("lock") is None
            tx.documents.put("plan", 1)
        assert run.documents.get("plan") is None


def test_a_conflict_over_an_absent_key_gets_there_first(keepstate_store: StoreForTests) -> None:
    with keepstate_store.open_blocking() as ks:
        run = ks.space("run/1")
        keepstate_store.conflict_next()

        with pytest.raises(ConflictError), run.transaction() as tx:
            assert tx.documents.get("plan") is None
            tx.documents.put("plan", {"step": 1})
        assert run.documents.get("plan") == {"step": 1}


def test_code_that_opens_the_url_itself_shares_the_store(keepstate_store: StoreForTests) -> None:
    with keepstate.sync.open(keepstate_store.url) as ks, keepstate_store.open_blocking() as other:
        ks.space("run/1").documents.put("plan", 1)

        assert other.space("run/1").documents.get("plan") == 1


PLUGIN_TEST = """
def test_nothing_written(keepstate_store):
    keepstate_store.conflict_next()

def test_each_test_has_a_store_of_its_own_1(keepstate_store):
    with keepstate_store.open_blocking() as ks:
        assert ks.space("s").documents.get("a") is None
        ks.space("s").documents.put("a", 1)

def test_each_test_has_a_store_of_its_own_2(keepstate_store):
    with keepstate_store.open_blocking() as ks:
        assert ks.space("s").documents.get("a") is None
"""


def test_an_installed_keepstate_gives_its_fixtures_and_refuses_a_fault_that_tested_nothing(
    tmp_path: Path,
) -> None:
    (tmp_path / "test_app.py").write_text(PLUGIN_TEST)

    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "test_app.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert "3 passed, 1 error" in ran.stdout
    assert "Ordered and not happened: conflict_next()" in ran.stdout
