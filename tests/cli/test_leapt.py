"""A store whose clocks were wrong together: `doctor` finds it, and `repair` brings a copy back."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

import keepstate as ks_package
from keepstate._clock import SYSTEM_CLOCK
from keepstate._runner import TaskRunner
from keepstate.stores.base import StoreBase
from keepstate.stores.file import FileStore
from keepstate.stores.sqlite import SqliteStore
from keepstate.testing.clocks import ManualClock
from tests.cli.conftest import Keepstate

DECADES_MS = 73 * 365 * 86_400_000


def _store(kind: str, path: Path, clock: ManualClock) -> StoreBase:
    made = {"sqlite": SqliteStore, "file": FileStore}[kind]
    store: StoreBase = made(path, runner=TaskRunner(), clock=clock)
    return store


async def _leap(store: StoreBase, clock: ManualClock) -> None:
    """Write before and after both clocks leap."""
    async with ks_package.open(await store.open()) as ks:
        run = ks.space("run")
        async with run.transaction() as tx:
            for number in range(100):  # each write since sweeps some of these, and no later ones
                await tx.documents.put(f"many/{number}", number, ttl_s=60)
            await tx.documents.put("before", 1, ttl_s=3600)
        await run.documents.put("lasting", 2)
        await ks.space("other").documents.put("x", 1)
        clock.advance(DECADES_MS)
        await run.documents.put("since", 3, ttl_s=3600)
        await run.queue.put("now", id="now")
        await run.queue.put("later", id="later", delay_s=600)
    await store.close()


@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_a_store_that_leapt_is_found_and_comes_back(kind: str, keepstate: Keepstate, tmp_path: Path) -> None:
    clock = ManualClock(SYSTEM_CLOCK.now_ms())
    path = tmp_path / "leapt"
    asyncio.run(_leap(_store(kind, path, clock), clock))
    source, new = f"{kind}:///{path}", f"sqlite:///{tmp_path}/new.db"

    told = keepstate("doctor", "--json", "--url", source)
    repaired = keepstate("repair", source, new)
    after = keepstate("doctor", "--json", "--url", new)

    (risk,) = [finding for finding in told.json()["findings"] if finding["subject"] == "time"]
    assert (told.code, risk["well"]) == (1, False)
    assert "'run' by 26644 days" in risk["text"] or "'run' by 26645 days" in risk["text"], risk
    assert "since revision 3, which moved its time from " in risk["text"], risk
    assert repaired.code == 0, repaired.out
    assert (after.code, after.json()["well"]) == (0, True)

    async def found() -> tuple[list[str], list[str], float, int]:
        async with ks_package.open(new) as ks:
            run = ks.space("run")
            names = [name async for name in run.documents.keys("*") if not name.startswith("many/")]
            ready = [task.id for task in await run.queue.list("ready")]
            (later,) = await run.queue.list("waiting")
            now_ms = (await ks.store.read("run", [])).now_ms
            return names, ready, later.due_at.timestamp(), now_ms

    names, ready, due_s, now_ms = asyncio.run(found())
    assert names == ["before", "lasting", "since"]
    assert ready == ["now"]
    assert 0 < due_s - now_ms / 1000 <= 600
    assert abs(now_ms / 1000 - time.time()) < 60


@pytest.mark.parametrize("is_reopened", [False, True])
@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_times_of_before_the_leap_stay_though_they_are_ahead_of_it(
    kind: str, is_reopened: bool, keepstate: Keepstate, tmp_path: Path
) -> None:
    clock = ManualClock(SYSTEM_CLOCK.now_ms())
    path, year_s = tmp_path / "leapt", 365 * 86_400

    async def leap() -> None:
        async with ks_package.open(await _store(kind, path, clock).open()) as ks:
            run = ks.space("run")
            await run.documents.put("before", 1, ttl_s=9 * year_s)
            await run.queue.put("before", id="before", delay_s=9 * year_s)
            await run.queue.put("between", id="between", delay_s=year_s)
            clock.advance(3 * year_s * 1000)
            await run.documents.put("since", 2, ttl_s=9 * year_s)
            await run.queue.put("since", id="since", delay_s=9 * year_s)
            await ks.store.close()
        if is_reopened and kind == "file":  # written anew, so that the leap stands in a snapshot
            await (await FileStore(path, format="json", runner=TaskRunner(), clock=clock).open()).close()

    asyncio.run(leap())
    source, new = f"{kind}:///{path}", f"sqlite:///{tmp_path}/new.db"

    assert keepstate("repair", source, new).code == 0

    async def years() -> tuple[dict[str, int], dict[str, int]]:
        async with ks_package.open(new) as ks:
            run, now_s = ks.space("run"), time.time()
            found = {task.id: task.due_at.timestamp() for task in await run.queue.list("waiting")}
            entries = [e for e in (await ks.store.scan("run", bytes((2,)))).entries if e.expires_at_ms]
            left = {
                ("since" if b"since" in e.key else "before"): (e.expires_at_ms or 0) / 1000 for e in entries
            }
            return (
                {name: round((at_s - now_s) / year_s) for name, at_s in left.items()},
                {name: round((at_s - now_s) / year_s) for name, at_s in found.items()},
            )

    left, due = asyncio.run(years())
    assert left == {"before": 9, "since": 9}
    assert due == {"before": 9, "between": 1, "since": 9}


@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_time_that_crept_ahead_shortens_nothing_that_was_written_before(
    kind: str, keepstate: Keepstate, tmp_path: Path
) -> None:
    """Both clocks went wrong together, 59 minutes at each write, so that no write was a leap."""
    clock = ManualClock(SYSTEM_CLOCK.now_ms())
    path, day_s = tmp_path / "crept", 86_400

    async def creep() -> None:
        async with ks_package.open(await _store(kind, path, clock).open()) as ks:
            run = ks.space("run")
            await run.documents.put("before", 1, ttl_s=30 * day_s)
            await run.queue.put("before", id="before", delay_s=20 * day_s)
            for number in range(200):
                clock.advance(59 * 60_000)
                await run.documents.put("k", number)
            await run.documents.put("since", 1, ttl_s=30 * day_s)
            await run.queue.put("since", id="since", delay_s=20 * day_s)
            await ks.store.close()

    asyncio.run(creep())
    source, new = f"{kind}:///{path}", f"sqlite:///{tmp_path}/new.db"

    told = keepstate("doctor", "--json", "--url", source)
    assert keepstate("repair", source, new).code == 0

    async def days() -> list[tuple[str, int]]:
        async with ks_package.open(new) as ks:
            run, now_s = ks.space("run"), time.time()
            left = [(t.id, t.due_at.timestamp() - now_s) for t in await run.queue.list("waiting")]
            for name in ("before", "since"):
                entry = await run.documents.entry(name)
                assert entry is not None and entry.expires_at is not None
                left.append((name, entry.expires_at.timestamp() - now_s))
            return [(name, round(left_s / day_s)) for name, left_s in left]

    (risk,) = [finding for finding in told.json()["findings"] if finding["subject"] == "time"]
    assert risk["well"] is False
    assert "since revision" not in risk["text"], "the first write of the space is not the cause"
    assert sorted(asyncio.run(days())) == [("before", 20), ("before", 30), ("since", 20), ("since", 30)]
