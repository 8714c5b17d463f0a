"""One writer a file, however many handles of either colour a process has."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from pathlib import Path

import pytest

from keepstate._finish import finish
from keepstate._runner import TaskRunner, ThreadRunner
from keepstate.errors import StoreUnavailableError
from keepstate.stores.base import StoreBase
from keepstate.stores.protocol import Applied, Batch, Check, Outcome, Put
from keepstate.stores.sqlite import SqliteStore
from keepstate.stores.sqlite.files import FileLock
from tests.stores.sqlite.conftest import Opens

COUNTER, A = b"\x02counter", b"\x01a"


async def increment(store: StoreBase, times: int) -> None:
    while times:
        entry = (await store.read("s", [COUNTER])).entries[0]
        number, version = (int(entry.value), entry.version) if entry else (0, 0)
        batch = Batch("s", [Put(COUNTER, b"%d" % (number + 1))], [Check(COUNTER, version=version)])
        [outcome] = await store.apply([batch])
        times -= isinstance(outcome, Applied)


def test_both_modes_share_a_file_and_lose_nothing(path: Path, opened: Opens) -> None:
    blocking = opened(durability="normal")
    threads = [threading.Thread(target=lambda: finish(increment(blocking, 40))) for _ in range(2)]

    async def tasks() -> None:
        async with asyncio.TaskGroup() as group:
            store = await SqliteStore(path, durability="normal", runner=TaskRunner()).open()
            increments = [group.create_task(increment(store, 20)) for _ in range(4)]
            await asyncio.gather(*increments)
            await store.close()

    for thread in threads:
        thread.start()
    asyncio.run(tasks())
    for thread in threads:
        thread.join()

    entry = finish(blocking.read("s", [COUNTER])).entries[0]
    assert entry is not None
    assert int(entry.value) == entry.version == 160


def test_a_commit_wakes_the_other_mode_at_once(path: Path, opened: Opens) -> None:
    blocking = opened()

    async def hear() -> None:
        store = await SqliteStore(path, runner=TaskRunner()).open()
        listener = store.listen(["s"])
        await listener.wait(0.2)  # the first round of listening ends in a hint of its own
        waiting = asyncio.create_task(listener.wait(3600))  # without a hint it waits until the guard ends it
        await asyncio.to_thread(finish, blocking.apply([Batch("s", [Put(A, b"")])]))
        await asyncio.wait_for(waiting, 60)
        listener.close()
        await store.close()

    asyncio.run(hear())


def test_a_cancelled_open_leaves_nothing_open(path: Path, opened: Opens) -> None:
    """The thread that opens goes on, and lets go of what it opened: another durability is free to choose."""

    async def cancel() -> None:
        lock = FileLock(str(path))
        lock.acquire(1)
        runner = TaskRunner()
        opening = asyncio.create_task(SqliteStore(path, runner=runner).open())
        await asyncio.sleep(0.01)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        lock.release()
        lock.close()
        runner.close()
        for thread in threading.enumerate():
            if thread.name.startswith("keepstate"):
                thread.join()

    asyncio.run(cancel())

    assert finish(opened(durability="normal").read("s", [])).revision == 0


def test_a_cancelled_write_is_whole_or_not_there(path: Path, opened: Opens) -> None:
    async def cancel() -> list[Outcome | BaseException]:
        store = await SqliteStore(path, runner=TaskRunner()).open()
        keys = [b"\x01%d" % i for i in range(20)]
        writes = [
            asyncio.create_task(store.apply([Batch("s", [Put(key + end, b"") for end in (b"/a", b"/b")])]))
            for key in keys
        ]
        await asyncio.sleep(0)
        for write in writes[::2]:
            write.cancel()
        done = await asyncio.gather(*writes, return_exceptions=True)
        await store.close()
        return [answer if isinstance(answer, BaseException) else answer[0] for answer in done]

    outcomes = asyncio.run(cancel())

    found = finish(opened().scan("s", b"\x01")).entries
    assert [type(outcome) for outcome in outcomes[1::2]] == [Applied] * 10
    assert {type(outcome) for outcome in outcomes[::2]} == {asyncio.CancelledError}
    assert len([entry for entry in found if entry.key.endswith(b"/a")]) == len(found) / 2


def test_a_dropped_handle_keeps_the_file_usable(opened: Opens, path: Path) -> None:
    with pytest.warns(ResourceWarning, match="dropped while open"):
        drop_open(path)

    [outcome] = finish(opened().apply([Batch("s", [Put(A, b"")])]))

    assert isinstance(outcome, Applied)


def drop_open(path: Path) -> None:
    finish(SqliteStore(path, runner=ThreadRunner()).open())
    gc.collect()


def test_a_busy_lock_ends_no_handle(path: Path, opened: Opens) -> None:
    store = opened(wait_s=0.02)
    lock = FileLock(str(path))
    lock.acquire(1)

    with pytest.raises(StoreUnavailableError):
        finish(store.drop("s"))
    lock.release()
    lock.close()

    assert isinstance(finish(store.apply([Batch("s", [Put(A, b"")])]))[0], Applied)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="the system does not list what is open")
def test_dropped_handles_leave_nothing_open_and_lose_nothing(tmp_path: Path) -> None:
    def dropped(path: Path) -> None:
        held = [finish(SqliteStore(path, runner=ThreadRunner()).open())]
        finish(held[0].apply([Batch("s", [Put(b"\x02doc", b"kept")])]))
        held.clear()
        with pytest.warns(ResourceWarning, match="dropped while open"):
            gc.collect()

    dropped(tmp_path / "first.db")
    before = len(os.listdir("/proc/self/fd"))
    for number in range(3):
        dropped(tmp_path / f"{number}.db")
    after = len(os.listdir("/proc/self/fd"))

    assert after == before
    store = finish(SqliteStore(tmp_path / "1.db", runner=ThreadRunner()).open())
    (entry,) = finish(store.read("s", [b"\x02doc"])).entries
    assert entry is not None
    assert entry.value == b"kept"
    finish(store.close())
