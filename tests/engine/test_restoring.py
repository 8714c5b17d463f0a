"""What is whole of a space comes to stand in a new one where it stood; what cannot stand alone is mended."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

import keepstate
from keepstate.cli.damage import FileSource, SpaceRecords, StoreRemains, StoreSource
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.subjects import OUTBOXES
from keepstate.engine.queue import tasks, ticks
from keepstate.engine.repair.restorer import Restoring, skip
from keepstate.engine.repair.verifier import Problem, Verifier
from keepstate.errors import ConflictError
from keepstate.stores.protocol import Batch, Delete, Entry, Put, Write
from keepstate.stores.recovery.remains import SpaceRemains
from keepstate.values import limits

SPACE = "run"


def silent(_: int = 0) -> None:
    pass


async def remains_of(ks: keepstate.Keepstate) -> StoreRemains:
    reading = await ks.store.read(SPACE, [])
    remains = StoreRemains()
    entries = remains.added(SpaceRemains(SPACE, reading.revision, reading.now_ms, True))
    async for page in StoreSource(ks.store).pages(SPACE):
        entries.update((entry.key, entry) for entry in page)
    return remains


async def restored(
    ks: keepstate.Keepstate, into: keepstate.Keepstate, *, without: Sequence[bytes] = (), later_ms: int = 0
) -> list[Problem]:
    """Restore all but some keys, some time later, and return what was found to be incomplete."""
    remains = await remains_of(ks)
    for key in without:
        del remains._entries[SPACE][key]
    (space,) = remains.spaces()
    verifier = Verifier(FileSource(remains), SPACE)
    restoring = Restoring(SpaceRecords(remains, SPACE), verifier, now_ms=space.now_ms + later_ms)
    await restoring.choose(silent)
    await restoring.write((await into.opened()).apply, SPACE, space.revision, silent)
    return restoring.problems


async def entries_of(ks: keepstate.Keepstate) -> list[Entry]:
    return [entry async for page in StoreSource(ks.store).pages(SPACE) for entry in page]


async def write(ks: keepstate.Keepstate, *writes: Write) -> None:
    await (await ks.opened()).apply([Batch(SPACE, writes)])


async def test_every_entry_has_its_key_value_version_and_creation_again(ks: keepstate.Keepstate) -> None:
    async with keepstate.open("memory://") as source:
        space = source.space(SPACE)
        for number in range(30):
            await space.documents.put(f"plan {number % 7}", {"step": number})
            await space.events.append({"step": number}, stream=f"stream {number % 2}")
            await space.queue.put(number, id=f"task {number}", priority=number % 3)
        await space.documents.delete("plan 3")
        await space.queue.claim("me", lease_s=60, count=2)

        assert await restored(source, ks) == []

        assert await entries_of(ks) == await entries_of(source)
        assert await ks.space(SPACE).revision() == await space.revision()


async def test_life_goes_on_behind_what_was_restored(ks: keepstate.Keepstate) -> None:
    async with keepstate.open("memory://") as source:
        old = source.space(SPACE)
        for number in range(5):
            await old.events.append(number)
            await old.queue.put(number)
        last = await old.events.last()
        await restored(source, ks)

    new = ks.space(SPACE)
    position = await new.events.append("new", expected=last or 0)
    claimed = await new.queue.claim("me", lease_s=60, count=9)

    assert last is not None
    assert position > last
    assert [event.data for event in await new.events.read()] == [0, 1, 2, 3, 4, "new"]
    assert [task.payload for task in claimed] == [0, 1, 2, 3, 4]


async def test_what_expires_keeps_the_time_it_has_left_and_a_lease_is_free() -> None:
    async with keepstate.open("memory://") as source, keepstate.open("memory://") as target:
        space = source.space(SPACE)
        await space.documents.put("soon", 1, ttl_s=600)
        await space.documents.put("gone", 1, ttl_s=60)
        await space.leases.acquire("lock", 600)
        await restored(source, target, later_ms=100_000)

        new = target.space(SPACE)
        entries = {entry.key: entry for entry in await entries_of(target)}
        (soon,) = entries.values()
        lease = await new.leases.acquire("lock", 1)

        assert soon.key == layout.named_key(layout.DOCUMENTS, "soon")
        now_ms = (await target.store.read(SPACE, [])).now_ms
        assert soon.expires_at_ms is not None
        assert soon.expires_at_ms - now_ms == pytest.approx(500_000, abs=60_000)
        assert lease.token > await space.revision()


async def test_a_task_without_its_payload_is_left_out_and_told() -> None:
    async with keepstate.open("memory://") as source, keepstate.open("memory://") as target:
        queue = source.space(SPACE).queue
        await queue.put(1, id="lost")
        await queue.put(2, id="whole")

        found = await restored(source, target, without=[tasks.payload_key("lost")])

        assert [(problem.key, problem.what) for problem in found] == [
            (tasks.task_key("lost"), "its payload is lost")
        ]
        assert [task.id for task in await target.space(SPACE).queue.list("ready")] == ["whole"]


async def test_a_task_whose_payload_is_garbled_is_left_out_too() -> None:
    async with keepstate.open("memory://") as source, keepstate.open("memory://") as target:
        await source.space(SPACE).queue.put(1, id="lost")
        await write(source, Put(tasks.payload_key("lost"), b"\x7f"))

        found = await restored(source, target)

        assert {problem.key for problem in found} == {tasks.payload_key("lost"), tasks.task_key("lost")}
        assert (await target.space(SPACE).queue.counts())["ready"] == 0


async def test_a_done_task_whose_result_is_lost_stays_done() -> None:
    async with keepstate.open("memory://") as source, keepstate.open("memory://") as target:
        queue = source.space(SPACE).queue
        await queue.put(1, id="done")
        (task,) = await queue.claim("me", lease_s=60)
        await task.complete("result")

        await restored(source, target, without=[tasks.result_key("done")])

        (done,) = await target.space(SPACE).queue.list("done")
        assert (done.id, done.result) == ("done", None)
        assert (await target.space(SPACE).queue.put(1, id="done")).state == "done"
        assert (await target.space(SPACE).queue.counts())["ready"] == 0


@pytest.mark.parametrize("state", ["ready", "claimed", "waiting"])
async def test_the_place_of_a_task_is_made_anew(state: str) -> None:
    async with keepstate.open("memory://") as source, keepstate.open("memory://") as target:
        queue = source.space(SPACE).queue
        await queue.put(1, id="task", delay_s=60 if state == "waiting" else 0)
        if state == "claimed":
            await queue.claim("me", lease_s=60)
        part = layout.INDEXES[state]  # type: ignore[index]
        (index,) = (await source.store.scan(SPACE, part)).entries

        await restored(source, target, without=[index.key])

        assert await entries_of(target) == await entries_of(source)


@pytest.mark.parametrize("is_paused", [False, True])
async def test_a_schedule_is_whole_again_with_its_place(is_paused: bool) -> None:
    async with keepstate.open("memory://") as source, keepstate.open("memory://") as target:
        schedules = source.space(SPACE).schedules
        await schedules.put("hourly", cron="0 * * * *", payload={"of": 1})
        if is_paused:
            await schedules.pause("hourly")
        places = [entry.key for entry in (await source.store.scan(SPACE, layout.TICKS)).entries]

        await restored(source, target, without=places)

        assert await entries_of(target) == await entries_of(source)


async def test_a_schedule_without_its_payload_is_left_out_and_told() -> None:
    async with keepstate.open("memory://") as source, keepstate.open("memory://") as target:
        await source.space(SPACE).schedules.put("hourly", cron="0 * * * *")

        found = await restored(source, target, without=[ticks.planned_key("hourly")])

        assert [problem.key for problem in found] == [ticks.schedule_key("hourly")]
        assert [entry.key for entry in await entries_of(target) if not entry.key.startswith(OUTBOXES)] == []


async def test_the_head_of_a_stream_is_made_anew_from_its_last_event() -> None:
    async with keepstate.open("memory://") as source, keepstate.open("memory://") as target:
        events = source.space(SPACE).events
        await events.append(1)
        await events.append(2, 3)
        await source.space(SPACE).documents.put("later", 1)

        await restored(source, target, without=[layout.stream_key(layout.HEADS, "main")])

        assert await target.space(SPACE).events.last() == await events.last()
        found = {entry.key: entry.version for entry in await entries_of(target)}
        assert found == {entry.key: entry.version for entry in await entries_of(source)}


async def test_a_place_that_leads_to_no_task_is_left_out() -> None:
    async with keepstate.open("memory://") as source, keepstate.open("memory://") as target:
        await write(
            source, Put(tasks.timed_key(layout.WAITING, 1, "nobody"), msgspec.msgpack.encode(["nobody"]))
        )

        found = await restored(source, target)

        assert [problem.what for problem in found] == ["its task 'nobody' is lost"]
        assert await entries_of(target) == []


async def test_a_revision_that_holds_more_than_it_did_is_spread() -> None:
    async with keepstate.open("memory://") as source, keepstate.open("memory://") as target:
        large = bytes(limits.VALUE_BYTES - 100)
        keys = [layout.named_key(layout.DOCUMENTS, f"{number:02}") for number in range(12)]
        await write(source, *(Put(key, b"\x01\x01") for key in keys))
        for key in keys:
            await write(source, Put(key, b"\x01" + large))

        remains = await remains_of(source)
        (space,) = remains.spaces()
        restoring = Restoring(
            SpaceRecords(remains, SPACE), Verifier(FileSource(remains), SPACE), now_ms=space.now_ms
        )
        restoring._verifier.problems = no_problems  # type: ignore[method-assign]
        await restoring.choose(silent)
        await restoring.write(target.store.apply, SPACE, space.revision, silent)

        assert [(entry.key, entry.version) for entry in await entries_of(target)] == [
            (key, number + 2) for number, key in enumerate(keys)
        ]


async def no_problems(_: Entry) -> list[Problem]:
    return []


async def test_a_dropped_space_goes_on_from_where_it_was_dropped(ks: keepstate.Keepstate) -> None:
    await skip(await ks.opened(), SPACE, 7, silent)

    assert await ks.space(SPACE).revision() == 7
    assert [name async for name in ks.spaces()] == []
    assert await ks.space(SPACE).documents.put("plan", 1) == 8


async def test_somebody_elses_writes_are_noticed() -> None:
    async with keepstate.open("memory://") as source, keepstate.open("memory://") as target:
        await source.space(SPACE).documents.put("plan", 1)
        await write(target, Delete(layout.EPOCH))

        with pytest.raises(ConflictError, match="another process writes"):
            await restored(source, target)
