"""Positions that outlive a process: they go on where they stand, or tell that their history is gone."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import keepstate
from keepstate.engine.kernel.positions import Positions
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space
from keepstate.errors import CompactedError, ConflictError, HistoryLostError, InvalidError, PrunedError
from keepstate.stores.memory import MemoryStore
from keepstate.stores.urls import StoreUrl
from keepstate.stores.wrappers.encrypted import KeyRing
from keepstate.values import limits
from tests.processes import PROCESSES, run
from tests.tally import Tally

WRAPPED = ("encrypted", "tiered", "warm")
KINDS = ("file", "sqlite", "redis", "valkey", "postgres", *WRAPPED)
Back = Callable[[], None]
KEPT, LOST, STRANGERS = 3, 4, 9


def process(url: str, command: str, **arguments: Any) -> Any:
    """Return what a process of its own answers."""
    ended = run(PROCESSES / "use_positions.py", url, command, json.dumps(arguments))
    return json.loads(ended.stdout)


# ---- backups of each kind of store


def copied(url: str) -> Back:
    """Copy a file that nobody has open; what is returned puts the copy back."""
    path = Path("/" + StoreUrl.parse(url).path.lstrip("/"))
    copy = path.with_name("backup")
    shutil.copy(path, copy)

    def put_back() -> None:
        for beside in path.parent.glob(f"{path.name}*"):
            beside.unlink()
        shutil.copy(copy, path)

    return put_back


def dumped(url: str) -> Back:
    """Dump all keys of a Redis server."""
    redis = pytest.importorskip("redis")
    with redis.Redis.from_url(url.replace("valkey", "redis")) as server:
        keys = {key: server.dump(key) for key in server.scan_iter()}

    def put_back() -> None:
        with redis.Redis.from_url(url.replace("valkey", "redis")) as server:
            server.flushdb()
            for key, value in keys.items():
                server.restore(key, 0, value)

    return put_back


def tables(url: str) -> Back:
    """Copy all tables of a PostgreSQL schema into another one."""
    psycopg = pytest.importorskip("psycopg")
    names = ("space", "entry", "log", "retry")
    with psycopg.connect(url, autocommit=True) as server:
        server.execute("CREATE SCHEMA backup")
        for name in names:
            server.execute(f"CREATE TABLE backup.{name} AS TABLE keepstate.{name}")

    def put_back() -> None:
        with psycopg.connect(url) as server:
            for name in names:
                server.execute(f"DELETE FROM keepstate.{name}")
                server.execute(
                    f"INSERT INTO keepstate.{name} OVERRIDING SYSTEM VALUE SELECT * FROM backup.{name}"
                )

    return put_back


def backup(url: str) -> Back:
    """Back up the store, under its wrappers; a warm tier keeps what it has."""
    url = (url.partition("+")[2] or url).partition("?")[0]
    if url.startswith("redis"):
        return dumped(url)
    return tables(url) if url.startswith("postgres") else copied(url)


@pytest.fixture(params=[*KINDS[:-1], pytest.param("warm", marks=pytest.mark.server)])
def kept_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store that outlives processes."""
    if request.param == "file":
        return f"file:///{tmp_path}/store.journal"
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    if request.param in ("encrypted", "tiered"):
        return f"{request.param}+sqlite:///{tmp_path}/store.db"
    if request.param == "warm":
        warm = quote(request.getfixturevalue("redis_url"), safe="")
        return f"tiered+{request.getfixturevalue('postgres_url')}?warm={warm}"
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.mark.slow
@pytest.mark.searched
@pytest.mark.parametrize("strangers", [0, LOST, STRANGERS])
def test_a_position_tells_another_process_that_its_history_is_gone(
    kept_url: str, strangers: int, tally: Tally
) -> None:
    process(kept_url, "write", first=0, count=KEPT, author="kept")
    early = process(kept_url, "cursors")
    put_back = backup(kept_url)
    process(kept_url, "write", first=0, count=LOST, author="lost")
    keeping = process(kept_url, "keep")
    late, keeping["cursors"] = len(keeping["cursors"]), [*early, *keeping["cursors"]]

    put_back()
    process(kept_url, "write", first=0, count=strangers, author="strangers")

    told = process(kept_url, "go_on", **keeping)
    theirs = [f"strangers/{number}" for number in range(strangers)]
    kept = [["kept/1", "kept/2", *theirs], ["kept/2", *theirs], theirs]
    assert told["told"] == [*([each, each] for each in kept), *[["history_lost", "history_lost"]] * LOST]
    assert told["put"] == ("history_lost" if strangers == LOST else "conflict")
    assert told["profile"] == [told["put"]] * 2
    assert told["listed"] == [*kept, *["history_lost"] * late]
    tally("Other processes: positions after lost history", positions=2 * LOST + late + 2, misreported=0)


async def test_a_cursor_goes_on_in_another_handle_also_where_its_task_has_gone(shared_url: str) -> None:
    async with keepstate.open(shared_url) as ks:
        space = ks.space("run")
        for number in range(5):
            await space.queue.put(number, id=f"t{number}")
        page = await space.queue.list("ready", limit=2)
        await space.queue.discard("t1")
        await space.queue.put(5, id="t5")

    async with keepstate.open(shared_url) as ks:
        rest = await ks.space("run").queue.list("ready", after=page[-1].cursor)

    assert [task.id for task in rest] == ["t2", "t3", "t4", "t5"]


async def test_a_cursor_is_of_one_space_and_one_listing(ks: Keepstate) -> None:
    space, other = ks.space("a"), ks.space("b")
    for each in (space, other):
        await each.queue.put(1, id="t")
    await space.documents.put("d", 1)
    async with space.documents.watch(after=0, timeout_s=0) as changes:
        watch = (await anext(changes)).position
    (task,) = await space.queue.list("ready")

    for queue, state in ((other.queue, "ready"), (space.queue, "done")):
        with pytest.raises(InvalidError, match="`after` is a cursor of a listing, but of another space"):
            await queue.list(state, after=task.cursor)  # type: ignore[arg-type]  # a name of the row
    with pytest.raises(InvalidError, match="`after` is a position of a watch; give a cursor of a listing"):
        await space.queue.list("ready", after=watch)
    with pytest.raises(InvalidError, match="`after` is a cursor of a listing; give a position of a watch"):
        await keys_after(space, task.cursor or "")
    found = await space.queue.get("t")
    assert found is not None and found.cursor is None


async def test_a_cursor_below_the_log_is_compacted_for_another_handle(shared_url: str) -> None:
    async with keepstate.open(shared_url) as ks:
        space = ks.space("run")
        await space.queue.put(1, id="t")
        (task,) = await space.queue.list("ready")
        for start in range(0, limits.LOG_REVISIONS + 1_000, 500):
            await write_objects(space, start, 500)
        assert await space.queue.list("ready", after=task.cursor) == []

    async with keepstate.open(shared_url) as ks:
        with pytest.raises(CompactedError, match="List again from the start"):
            await ks.space("run").queue.list("ready", after=task.cursor)


async def test_a_cursor_costs_the_process_that_gave_it_no_read_more(ks: Keepstate) -> None:
    space = ks.space("run")
    for number in range(4):
        await space.queue.put(number, id=f"t{number}")
    store = await space.executor.store()
    asked: list[int] = []
    changes = store.changes

    async def counted(space: str, after: int, *, limit: int = 1024) -> Any:
        asked.append(after)
        return await changes(space, after, limit=limit)

    store.changes = counted  # type: ignore[method-assign]
    page = await space.queue.list("ready", limit=2)
    await space.queue.put(4, id="t4")

    rest = await space.queue.list("ready", after=page[-1].cursor)

    assert [task.id for task in rest] == ["t2", "t3", "t4"]
    assert asked == []


class LosingMemory(MemoryStore):
    """A store in memory that can lose its history, and counts the losses as the stores on servers do."""

    lost = 0

    def losses(self, space: str) -> int:
        return self.lost

    def lose(self, space: str) -> None:
        """Forget the space, as a server does that comes back with an older state."""
        del self._heap.spaces[space]
        self._heap._nonce = b"another!"
        self.lost += 1


async def test_a_cursor_is_compared_again_once_its_store_has_lost_history() -> None:
    store = await LosingMemory(runner="async").open()
    async with keepstate.open(store) as ks:
        space = ks.space("run")
        for number in range(4):
            await space.queue.put(number, id=f"t{number}")
        page = await space.queue.list("ready", limit=2)
        store.lose("run")
        for number in range(9):
            await space.queue.put(number, id=f"theirs{number}")

        with pytest.raises(HistoryLostError):
            await space.queue.list("ready", after=page[-1].cursor)
    await store.close()


async def test_a_position_in_memory_is_of_one_life(tmp_path: Path) -> None:
    told: list[tuple[str, str | None]] = []
    for _ in range(2):
        async with keepstate.open("memory://") as ks:
            space = ks.space("run")
            await space.documents.put("a", 1)
            await space.events.append({"n": 1}, id="e")
            async with space.documents.watch(after=0, timeout_s=0) as changes:
                told.append(((await anext(changes)).position, (await space.events.read())[0].position))
            if len(told) == 2:
                with pytest.raises(HistoryLostError):
                    await keys_after(space, told[0][0])


async def test_a_printed_version_is_of_one_value(ks: Keepstate) -> None:
    space, other = ks.space("a"), ks.space("b")
    for each in (space, other):
        for key in ("d", "e"):
            await each.documents.put(key, 1)
    entry = await space.documents.entry("d")
    assert entry is not None and entry.printed_version is not None
    printed: str = pickle.loads(pickle.dumps(entry)).printed_version

    for place, key in ((space, "e"), (other, "d")):
        with pytest.raises(InvalidError, match="but of another space"):
            await place.documents.put(key, 2, expected_version=printed)
    with pytest.raises(InvalidError, match=r"'3', which is not a printed version\. Give the `pri") as refused:
        await space.documents.put("d", 2, expected_version="3")
    assert f"has {len(printed)} characters and begins with {printed[:2]!r}" in str(refused.value)
    assert "position" not in str(refused.value)

    version = await space.documents.put("d", 2, expected_version=printed)

    with pytest.raises(ConflictError) as conflict:
        await space.documents.put("d", 3, expected_version=printed)
    assert conflict.value.actual == version
    async with space.transaction() as tx:
        await tx.documents.put("d", 4)
        own = await tx.documents.entry("d")
        assert own is not None and own.printed_version is None


# ---- within one history


async def keys_after(space: Space, after: str | int) -> list[str]:
    async with space.documents.watch(after=after, timeout_s=0) as changes:
        return [change.key async for change in changes]


async def test_a_watch_goes_on_behind_each_change_and_behind_itself(space: Space) -> None:
    for name in "abcd":
        await space.documents.put(name, 1)

    async with space.documents.watch(after=0, timeout_s=0) as changes:
        first = changes.position
        positions = [change.position async for change in changes]

    assert await keys_after(space, first) == list("abcd")
    assert [await keys_after(space, position) for position in positions] == [
        ["b", "c", "d"],
        ["c", "d"],
        ["d"],
        [],
    ]
    assert changes.position == positions[-1]


async def test_documents_changed_together_come_again_until_all_were_given(space: Space) -> None:
    async with space.transaction() as tx:
        for name in "abc":
            await tx.documents.put(name, 1)
    await space.documents.put("d", 1)

    async with space.documents.watch(after=0, timeout_s=0) as changes:
        positions: list[str] = []
        reached: list[int] = []
        async for change in changes:
            positions.append(change.position)
            reached.append(changes.revision)

    assert reached == [0, 0, 1, 2]
    told = [await keys_after(space, position) for position in positions]
    assert told == [["a", "b", "c", "d"], ["a", "b", "c", "d"], ["d"], []]


async def test_a_watch_that_starts_now_has_a_position_before_anything_has_changed(space: Space) -> None:
    await space.documents.put("a", 1)
    async with space.documents.watch(timeout_s=0) as changes:
        position = changes.position

    await space.documents.put("b", 1)

    assert await keys_after(space, position) == ["b"]


async def test_events_go_on_behind_a_position_also_where_the_stream_is_truncated(space: Space) -> None:
    stream = space.events.stream("s")
    for number in range(5):
        await stream.append({"n": number})
    events = await stream.read()
    await stream.truncate(events[2].number or 0)

    rest = await stream.read(after=events[2].position)

    assert [event.data["n"] for event in rest] == [3, 4]
    assert [event.position for event in rest] == [event.position for event in events[3:]]
    assert await stream.read(after=events[4].position) == []
    with pytest.raises(PrunedError):
        await stream.read(after=events[1].position)


async def test_a_position_below_the_log_is_compacted(space: Space) -> None:
    await space.documents.put("a", 1)
    async with space.documents.watch(after=0, timeout_s=0) as changes:
        position = (await anext(changes)).position
    for start in range(0, limits.LOG_REVISIONS + 1_000, 500):
        await write_objects(space, start, 500)

    with pytest.raises(CompactedError):
        await keys_after(space, position)


async def write_objects(space: Space, start: int, count: int) -> None:
    from keepstate.stores.protocol import Batch, Put

    executor = space.executor
    store = await executor.store()
    for first in range(start, start + count, 100):
        keys = (b"\x01n%d" % number for number in range(first, first + 100))
        await store.apply([Batch(executor.stored_name, [Put(key, b"")]) for key in keys])


async def test_texts_that_are_not_this_places_are_refused(ks: Keepstate) -> None:
    space, other = ks.space("a"), ks.space("b")
    for each in (space, other):
        await each.documents.put("d", 1)
        await each.events.append({"n": 1}, stream="s")
    async with space.documents.watch(after=0, timeout_s=0) as changes:
        watch = (await anext(changes)).position
    event = (await space.events.read(stream="s"))[0].position or ""

    other_end = watch[:-1] + ("B" if watch.endswith("A") else "A")
    for wrong in ("", "1", "é", watch[:-1], other_end, "A" + watch, event[:20], watch.upper()):
        with pytest.raises(InvalidError, match="is not a position; give a position of a watch"):
            await keys_after(space, wrong)
        with pytest.raises(InvalidError, match="is not a position; give the position of an event"):
            await space.events.read(stream="s", after=wrong)
    with pytest.raises(InvalidError, match="is the position of an event; give a position of a watch"):
        await keys_after(space, event)
    with pytest.raises(InvalidError, match="is a position of a watch; give the position of an event"):
        await space.events.read(stream="s", after=watch)
    with pytest.raises(InvalidError, match=r"of another space.* in space 'b'"):
        await keys_after(other, watch)
    for place, stream in ((other, "s"), (space, "t")):
        with pytest.raises(InvalidError, match="but of another space"):
            await place.events.read(stream=stream, after=event)


async def test_a_position_of_a_space_whose_name_goes_on_as_a_stream_is_of_that_space_only(
    ks: Keepstate,
) -> None:
    store = await ks.opened()
    one, other = (Positions(store, name, name) for name in ("a", "a\0b"))

    assert one.target(b"b\0c") != other.target(b"c")


async def test_positions_of_an_encrypted_store_are_keyed(tmp_path: Path) -> None:
    """Two stores with the same content, under one key, tell different digests of it."""
    told: list[str] = []
    for name in ("one", "two"):
        url = f"sqlite:///{tmp_path}/{name}.db"
        async with keepstate.open(url, encryption=KeyRing(bytes(32))) as ks:
            space = ks.space("run")
            await space.events.append({"n": 1}, id="e")
            (event,) = await space.events.read()
            told.append(event.position or "")
            assert await space.events.read(after=event.position) == []

    assert told[0] != told[1]
    async with keepstate.open(f"sqlite:///{tmp_path}/two.db", encryption=KeyRing(bytes(32))) as ks:
        with pytest.raises(InvalidError, match="but of another space"):
            await ks.space("run").events.read(after=told[0])


async def test_positions_hold_after_all_values_are_sealed_under_another_key(tmp_path: Path) -> None:
    url, old, new = f"sqlite:///{tmp_path}/store.db", bytes(32), bytes([1]) * 32
    async with keepstate.open(url, encryption=KeyRing(old)) as ks:
        space = ks.space("run")
        await space.documents.put("d", 1)
        await space.queue.put(1, id="t")
        await space.queue.put(2, id="u")
        entry, (task, _) = await space.documents.entry("d"), await space.queue.list("ready")
        assert entry is not None and entry.printed_version is not None
    async with keepstate.open(url, encryption=KeyRing(new, old)) as ks:
        assert await ks.rotate() > 0

    async with keepstate.open(url, encryption=KeyRing(new)) as ks:
        space = ks.space("run")
        assert [task.id for task in await space.queue.list("ready", after=task.cursor)] == ["u"]
        assert await space.documents.put("d", 2, expected_version=entry.printed_version) > entry.version
