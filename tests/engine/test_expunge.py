"""Expunging a prefix of a shared space: all of it goes, everywhere, and nothing else does."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import keepstate
from keepstate import TaskSpec
from keepstate._runner import TaskRunner
from keepstate.engine.kernel import layout
from keepstate.engine.space import expunge as expunging
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space
from keepstate.errors import CompactedError, InvalidError, NotFoundError, PrunedError
from keepstate.stores.memory import MemoryHeap, MemoryStore
from keepstate.stores.protocol import Batch, Changes, Entry, Outcome, Page, Reading, Sizes, Store
from keepstate.stores.wrappers.encrypted import KeyRing
from keepstate.stores.wrappers.wrapper import StoreWrapper
from tests.engine.conftest import Turned, url_of
from tests.engine.dumps import Dump
from tests.engine.test_erasure import NOT_REACHED, archived

ANN, BOB = "session/ANN", "session/BOB"
KINDS = ("memory", "file", "sqlite", "redis", "postgres")


@cache
def large(who: str) -> bytes:
    """Return a value that is stored in parts, each of which has the name."""
    source = random.Random(who)
    return b"".join(who.encode() + source.randbytes(30) for _ in range(50_000))


async def fill(space: Space, who: str, again: int = 2, *, has_large: bool = True) -> None:
    """Write something of each part of a space under a name."""
    for number in range(again):
        await space.by(who).documents.put(f"{who}/plan", f"{who} {number}")
        await space.documents.put(f"{who}/brief", f"{who} {number}", ttl_s=3_600)
        await space.by(who).events.append(f"{who} {number}", stream=f"{who}/talk", id=f"{who}-{number}")
        await space.queue.put(f"{who} {number}", id=f"{who}/task/{number}", key=who if number else None)
    if has_large:
        await space.documents.put(f"{who}/large", large(who))
    await space.documents.put(f"{who}/gone", who)
    await space.documents.delete(f"{who}/gone")
    await space.documents.put(f"{who}/{'x' * 480}", who)
    await space.queue.put(who, id=f"{who}/follower", after=[f"{who}/task/0"])
    await space.approvals.ask(f"Pay {who}?", id=f"{who}/pay", subject=who, to=["boss"], expires_s=3_600)
    await space.approvals.answer((await space.approvals.ask("Go?", id=f"{who}/go")).id, True, by=who)
    await space.schedules.put(f"{who}/daily", cron="0 4 * * *", payload=who)
    lease = await space.leases.acquire(f"{who}/lease", 3_600)
    assert lease is not None


async def history(space: Space) -> None:
    """Write something of both into branches and tags of a recorded space."""
    await space.history.tag("old")
    branch = await space.history.branch("other")
    assert branch.name == "other"
    await space.documents.put(f"{ANN}/late", "ANN late")


async def entries_of(store: Store, space: str) -> list[Entry]:
    found: list[Entry] = []
    for section in (b"\x00", b"\x01", b"\x02"):
        after: bytes | None = None
        while True:
            page = await store.scan(space, section, after=after)
            found += page.entries
            if (after := page.next) is None:
                break
    return found


async def store_names(space: Space) -> list[str]:
    return [entry.key for entry in await space.documents.page(limit=1_000)]


HISTORY = (layout.COMMITS, layout.STATES, layout.GRAFTS, layout.BRANCHES, layout.TAGS)


async def of_others(store: Store, space: str) -> list[Entry]:
    """Return the entries that an expunging of ANN has to leave as they are."""
    shared = (layout.EPOCH, layout.OUTBOX, layout.CARRIED, layout.EXPIRING, layout.BLOBS_SIZE, *HISTORY)
    return [
        entry
        for entry in await entries_of(store, space)
        if b"ANN" not in entry.key + entry.value and not entry.key.startswith(shared)
    ]


async def with_ann(store: Store, space: str) -> list[bytes]:
    """Return the keys of what still has something of ANN: entries, and changes in the log."""
    left = [entry.key for entry in await entries_of(store, space) if b"ANN" in entry.key + entry.value]
    floor = 0
    while True:
        try:
            changes = await store.changes(space, floor)
            break
        except CompactedError as error:
            floor = error.floor or 0
    for change in changes.items:
        said = change.key + (change.old or b"") + (change.new or b"")
        left += [change.key] * (b"ANN" in said)
    return left


@pytest.mark.parametrize("is_recorded", [False, True])
async def test_a_prefix_goes_and_all_else_stays_as_it_is(ks: Keepstate, is_recorded: bool) -> None:
    space = ks.space("shared", record=is_recorded)
    for who in (ANN, BOB):
        await fill(space, who)
    store, position = await ks.opened(), await space.revision()
    before = await of_others(store, "shared")

    erased = await space.expunge(ANN)

    assert await of_others(store, "shared") == before
    assert await with_ann(store, "shared") == []
    assert (erased.spaces, erased.archives) == (1, [])
    assert erased.entries > 15
    assert erased.size_bytes > 500
    with pytest.raises(CompactedError):
        await store.changes("shared", position)
    assert await space.documents.get(f"{BOB}/large") == large(BOB)
    again = await space.expunge(ANN)
    assert (again.spaces, again.entries, again.size_bytes) == (0, 0, 0)
    assert await of_others(store, "shared") == before


async def test_no_moment_of_a_recorded_space_has_what_was_expunged(ks: Keepstate) -> None:
    space = ks.space("shared", record=True)
    for who in (ANN, BOB):
        await fill(space, who)
    await history(space)
    old = (await anext(space.history.log())).id

    await space.expunge(ANN)

    present = {*await store_names(space)}
    for ref in ("main", "other", "old"):
        assert {*await space.at(ref)} == present
        assert [commit.author async for commit in space.history.log(ref)] == [None]
    with pytest.raises((NotFoundError, PrunedError)):
        await space.at(old)
    with pytest.raises(PrunedError):
        await space.at("main#1")
    assert (await space.history.verify()).problems == ()
    await space.documents.put(f"{BOB}/plan", "later")
    assert (await space.at("main"))[f"{BOB}/plan"] == "later"
    assert (await space.at("main~1"))[f"{BOB}/plan"] == f"{BOB} 1"


async def test_records_of_an_indexed_collection_go_with_their_places(ks: Keepstate) -> None:
    space = ks.space("shared")
    notes = space.collection("notes", dict, index={"by": lambda value: (value["by"],)})
    for number in range(4):
        await notes.put(f"ANN/{number}", {"by": "ANN"})
        await notes.put(f"BOB/{number}", {"by": "BOB"})

    await space.expunge("notes/ANN/")

    assert await with_ann(await ks.opened(), "shared") == []
    assert [*await notes.by("by", "ANN")] == []
    assert len(await notes.by("by", "BOB")) == 4


async def test_a_session_leaves_the_listing_of_subjects_and_its_log(ks: Keepstate) -> None:
    space = ks.space("shared")
    for who in ("ANN", "BOB"):
        async with keepstate.Session(who, user_id=who, space=space) as session:
            await session.conversation.append({"role": "user", "content": f"I am {who}"})
    assert {found.id for found in await ks.find(kind="session")} == {"ANN", "BOB"}

    await space.expunge("session/ANN/")
    await space.expunge("user/ANN/")

    assert {found.id for found in await ks.find(kind="session")} == {"BOB"}
    store = await ks.opened()
    assert await with_ann(store, "shared") + await with_ann(store, "keepstate:index") == []


async def test_an_expunging_names_the_archive_of_the_space(ks: Keepstate, tmp_path: Path) -> None:
    space = await archived(ks, "shared", tmp_path / "old.archive", "ANN")
    await space.documents.put("session/BOB/plan", "BOB")

    erased = await space.expunge("session/ANN/")

    assert erased.archives == [tmp_path / "old.archive"]
    assert erased.not_reached[:2] == NOT_REACHED
    assert await with_ann(await ks.opened(), "shared") == []


async def test_an_approval_goes_and_the_task_that_waits_for_it_runs(ks: Keepstate) -> None:
    space = ks.space("shared")
    for who in (ANN, BOB):
        await space.approvals.ask("Pay?", id=f"{who}/pay", to=["boss"], then=TaskSpec(id=f"pay {who}"))
    assert {found.id for found in await ks.find(kind="approval")} == {f"{ANN}/pay", f"{BOB}/pay"}

    await space.expunge(ANN)

    assert await space.approvals.get(f"{ANN}/pay") is None
    with pytest.raises(NotFoundError):
        await space.approvals.log(f"{ANN}/pay")
    assert [found.id for found in await space.approvals.pending()] == [f"{BOB}/pay"]
    assert [found.id for found in await space.approvals.pending(to="boss")] == [f"{BOB}/pay"]
    assert [found.id for found in await ks.find(kind="approval")] == [f"{BOB}/pay"]
    assert [task.id for task in await space.queue.claim("w", lease_s=60, count=5)] == [f"pay {ANN}"]


async def test_a_subject_goes_without_an_index(ks: Keepstate) -> None:
    space = ks.space("shared")
    async with keepstate.Session("ANN", space=space) as session:
        await session.conversation.append({"role": "user", "content": "I am ANN"})

    await space.expunge("session/ANN/")

    assert await with_ann(await ks.opened(), "shared") == []
    assert [*await ks.find(kind="session")] == []


async def test_an_event_that_was_expunged_is_compacted(ks: Keepstate) -> None:
    space = ks.space("shared")
    await space.events.append(1, stream="ANN")
    [event] = await space.events.read(stream="ANN")
    await space.events.append(1, stream="BOB")

    await space.expunge("ANN")

    with pytest.raises(CompactedError):
        await space.events.read(stream="ANN", after=event.position)
    assert [event.data for event in await space.events.read(stream="BOB")] == [1]


@pytest.mark.parametrize("prefix", ["", "x" * 441])
async def test_a_prefix_that_is_empty_or_too_long_is_rejected(space: Space, prefix: str) -> None:
    with pytest.raises(InvalidError, match="`prefix` has"):
        await space.expunge(prefix)


async def test_expunging_an_encrypted_or_tiered_store_leaves_others_alone(tmp_path: Path) -> None:
    for number, options in enumerate(({"encryption": KeyRing(bytes(32))}, {})):
        scheme = "sqlite" if options else "tiered+sqlite"
        async with keepstate.open(f"{scheme}:///{tmp_path}/{number}.db", **options) as ks:  # type: ignore[arg-type]
            space = ks.tenant("t").space("shared", record=True)
            for who in (ANN, BOB):
                await fill(space, who)
            stored = ks.tenant("t").stored_name("shared")
            before = await of_others(ks.store, stored)

            await space.expunge(ANN)

            assert await of_others(ks.store, stored) == before
            assert await with_ann(ks.store, stored) == []


# ---- the bytes of files and servers


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "file", "redis", "postgres"])
async def test_no_bytes_of_what_was_expunged_are_left(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    dump = Dump(kind, request, tmp_path)
    async with keepstate.open(url_of(kind, request, tmp_path)) as ks:
        for name in ("plain", "recorded"):
            space = ks.space(name, record=name == "recorded")
            for who in (ANN, BOB):
                await fill(space, who, again=6)
        await history(space)
        assert dump.has(b"ANN")

        for name in ("plain", "recorded"):
            await ks.space(name).expunge(ANN)

        assert not dump.has(b"ANN")
        assert dump.has(b"BOB")


# ---- kills


class KilledError(BaseException):
    """The end of a process."""


class Dying(StoreWrapper):
    """Ends its process before a call."""

    calls_left = 1 << 30

    def _live(self) -> None:
        self.calls_left -= 1
        if self.calls_left < 0:
            raise KilledError

    async def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        self._live()
        return await super().apply(batches)

    async def read(self, space: str, keys: Sequence[bytes], *, at_ms: int | None = None) -> Reading:
        self._live()
        return await super().read(space, keys, at_ms=at_ms)

    async def scan(self, space: str, prefix: bytes, **options: Any) -> Page:
        self._live()
        return await super().scan(space, prefix, **options)

    async def sizes(self, space: str) -> Sizes:
        self._live()
        return await super().sizes(space)

    async def changes(self, space: str, after: int, *, limit: int = 1024) -> Changes:
        self._live()
        return await super().changes(space, after, limit=limit)

    async def trim(self, space: str) -> None:
        self._live()
        await super().trim(space)

    async def drop(self, space: str, *, at: int | None = None) -> bool:
        self._live()
        return await super().drop(space, at=at)


async def survived(call: int, *, has_large: bool = True) -> tuple[bool, list[bytes]]:
    """Kill an expunging before a call, complete it, and return whether it was killed, and what is left."""
    heap = MemoryHeap()
    one, other = (Dying(MemoryStore(runner=TaskRunner(), heap=heap)) for _ in range(2))
    async with keepstate.open(await one.open()) as dying, keepstate.open(await other.open()) as ks:
        space = ks.tenant("t").space("shared", record=True)
        for who in (ANN, BOB):
            await fill(space, who, has_large=has_large)
            async with keepstate.Session(who[8:], space=space) as session:
                await session.conversation.append({"role": "user", "content": who})
        await ks.tenant("t").find()
        stored, index = ks.tenant("t").stored_name("shared"), ks.tenant("t").stored_name("keepstate:index")
        before = await of_others(other, stored)
        one.calls_left, is_killed = call, False
        try:
            await dying.tenant("t").space("shared").expunge(ANN)
        except KilledError:
            is_killed = True
        one.calls_left = 1 << 30
        if is_killed:
            await space.expunge(ANN)
        left = await with_ann(other, stored) + await with_ann(other, index)
        if await of_others(other, stored) != before:
            left.append(b"others were changed")
        if (await space.history.verify()).problems:
            left.append(b"the history is damaged")
        await space.documents.put(f"{BOB}/plan", "later")
    await one.close()
    await other.close()
    return is_killed, left


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "large_every"),
    [*((first, 12) for first in range(4)), pytest.param(0, 4, marks=pytest.mark.deep)],
)
def test_an_expunging_that_is_killed_before_any_call_is_completed_by_the_next_one(
    first: int, large_every: int
) -> None:
    """Each run kills every fourth call; in some there is a large value too, which takes most of the time."""
    call, is_killed = first, True
    while is_killed:
        is_killed, left = asyncio.run(survived(call, has_large=call % large_every == 0))
        assert left == [], call
        call += 4
    assert call > 60


async def test_no_entry_is_left_of_many_tasks_that_wait_for_one_of_another_name(turned: Turned) -> None:
    space = turned.space
    await space.queue.put(1, id="bob/first")
    for number in range(201):
        await space.queue.put(1, id=f"ann/{number}", after=["bob/first"])

    await space.expunge("ann/")

    store = await turned.ks.opened()
    assert (await store.scan("run/1", layout.FOLLOWERS)).entries == []


# ---- planted bugs


async def nothing(*_: object, **__: object) -> None:
    return None


@pytest.mark.parametrize(
    "planted",
    ["_trim", "_forget_history", "_forget_subjects", "_forget_expiring", "_delete_tasks", "collect_parts"],
)
def test_an_expunging_that_forgets_something_is_found(planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expunging, planted, nothing)

    assert asyncio.run(survived(1 << 29))[1] != []


def test_an_expunging_that_takes_something_of_others_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    pages: Callable[..., Any] = expunging._pages
    monkeypatch.setattr(expunging, "_pages", lambda executor, _, parts: pages(executor, "session/", parts))

    assert b"others were changed" in asyncio.run(survived(1 << 29))[1]
