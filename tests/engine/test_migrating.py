"""Stored objects are brought to the versions that the application writes, lazily and in bulk."""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from keepstate import (
    Collection,
    CorruptError,
    InvalidError,
    Space,
    UnsupportedError,
    downcast,
    register,
    register_write_version,
    sync,
)
from keepstate.engine.kernel import layout
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.migration import Step, migrate
from keepstate.stores.protocol import Batch, Put
from keepstate.values.schema import CLASSES
from tests.engine.trips import NAME, Trip, know_trips
from tests.processes import Program

ROOT = Path(__file__).parents[2]
BIG = "x" * 1_500_000


@pytest.fixture(autouse=True)
def versions() -> Iterator[None]:
    """Know the class in its third version, and write that again in the end."""
    know_trips()
    yield
    register_write_version(NAME, None)


@contextmanager
def losing(what: str) -> Iterator[None]:
    """Declare that the step from the third version to the second loses something."""
    CLASSES._losses[NAME, 3] = what
    yield
    del CLASSES._losses[NAME, 3]


async def put_in_all_versions(space: Space) -> None:
    """Write a document of each version, and one of each with a name, size or place of its own."""
    for version in (1, 2, 3):
        register_write_version(NAME, version)
        await space.documents.put(f"trip {version}", Trip("NYC", 100 * version))
        await space.documents.put("é" * 230 + str(version), {"trips": [Trip("SF", version)]})
    register_write_version(NAME, 1)
    await space.documents.put("big", [Trip("LA", 5), BIG])
    await space.documents.put("none", {"city": "NYC"})
    register_write_version(NAME, None)


def steps(to: int, found: dict[int, int]) -> dict[Step, int]:
    """Return the steps from versions to one, with the number of documents."""
    return {Step(f"{NAME}@{version}", f"{NAME}@{to}"): count for version, count in found.items()}


async def expires_at_ms(space: Space) -> int:
    store = await space.executor.store()
    place = layout.named_key(layout.DOCUMENTS, "trip")
    (entry,) = (await store.read(space.executor.stored_name, [place])).entries
    assert entry is not None
    assert entry.expires_at_ms is not None
    return entry.expires_at_ms


async def test_each_version_is_read_as_the_newest_everywhere(space: Space) -> None:
    for version in (1, 2, 3):
        register_write_version(NAME, version)
        trip = Trip("NYC", 250)
        await space.documents.put("trip", trip)
        await space.events.append(trip, stream="trips")
        await space.history.commit({"trips": [trip] * 300}, branch=f"side{version}")
        await space.queue.put({"trip": trip})
        register_write_version(NAME, None)

        assert await space.documents.get("trip") == trip
        assert await space.documents.get("trip", type=Trip) == trip
        assert (await space.history.checkout(f"side{version}"))["trips"] == [trip] * 300
        (task,) = await space.queue.claim("w", lease_s=10)
        assert task.payload == {"trip": trip}
        await task.complete()
    assert [event.data for event in await space.events.read(stream="trips")] == [Trip("NYC", 250)] * 3


async def test_what_is_older_is_written_anew_and_then_nothing(space: Space) -> None:
    await put_in_all_versions(space)

    dry = await migrate(space, dry_run=True)
    done = await migrate(space)
    again = await migrate(space)

    assert (dry.documents, dry.steps, dry.written) == (8, steps(3, {1: 3, 2: 2}), 0)
    assert (done.written, done.refused) == (5, {})
    assert (again.documents, again.steps, again.written) == (8, {}, 0)
    assert await space.documents.get("trip 1") == Trip("NYC", 100)
    assert await space.documents.get("big") == [Trip("LA", 5), BIG]
    assert await space.documents.get("é" * 230 + "2") == {"trips": [Trip("SF", 2)]}


async def test_documents_go_down_and_come_back_as_they_were(space: Space) -> None:
    await put_in_all_versions(space)
    before = [item async for item in space.documents.items()]

    for version, expected in ((1, {2: 2, 3: 2}), (2, {1: 7}), (3, {2: 7}), (1, {3: 7})):
        register_write_version(NAME, version)
        assert (await migrate(space, dry_run=True)).steps == steps(version, expected)
        done = await migrate(space)

        assert (done.written, done.refused, done.lost) == (sum(expected.values()), {}, {})
        assert [item async for item in space.documents.items()] == before
        assert (await migrate(space)).due == 0


async def test_an_undeclared_loss_is_refused_and_a_declared_one_is_told(space: Space) -> None:
    await space.documents.put("dollars", Trip("NYC", 1))
    await space.documents.put("pesos", Trip("MEX", 1, "MXN"))
    register_write_version(NAME, 2)

    refused = await migrate(space)

    assert (refused.written, list(refused.refused)) == (1, ["pesos"])
    assert "does not come back as it was" in refused.refused["pesos"]
    assert await space.documents.get("pesos") == Trip("MEX", 1, "MXN")
    with losing("the currency"):
        assert (await migrate(space, dry_run=True)).lost == {f"{NAME}@3: the currency": 1}
        done = await migrate(space)
    assert (done.written, done.refused) == (1, {})
    assert await space.documents.get("pesos") == Trip("MEX", 1)


async def test_a_damaged_document_is_refused_and_the_others_are_written(space: Space) -> None:
    for name in "abc":
        await space.documents.put(name, Trip("NYC", 1))
    place = layout.named_key(layout.DOCUMENTS, "b")
    store = await space.executor.store()
    await store.apply([Batch(space.executor.stored_name, [Put(place, b"\xff\xff")])])
    register_write_version(NAME, 1)

    done = await migrate(space)

    assert (done.written, list(done.refused)) == (2, ["b"])


async def test_indexes_stay_right_and_are_built_again_after_a_loss(space: Space) -> None:
    def open_trips() -> Collection[Trip]:
        return space.collection("trips", Trip, index={"currency": lambda trip: (trip.currency,)})

    trips = open_trips()
    for number in range(60):
        await trips.put(f"{number:02}", Trip("NYC", number))
    register_write_version(NAME, 1)

    assert (await migrate(space)).to_reindex == set()
    assert len(await trips.by("currency", "USD")) == 60

    register_write_version(NAME, None)
    await trips.put("00", Trip("MEX", 0, "MXN"))
    register_write_version(NAME, 2)
    with losing("the currency"):
        assert (await migrate(space)).to_reindex == {"trips"}
    with pytest.raises(InvalidError, match="is not complete"):
        await open_trips().by("currency", "USD")
    await open_trips().reindex()
    assert len(await open_trips().by("currency", "USD")) == 60


async def test_many_are_written_some_at_a_time_and_told_of(space: Space) -> None:
    register_write_version(NAME, 1)
    async with space.transaction() as tx:
        for number in range(120):
            await tx.documents.put(f"trip {number}", Trip("NYC", number))
    register_write_version(NAME, None)
    before, told = await space.revision(), list[int]()

    done = await migrate(space, tell=lambda so_far: told.append(so_far.written))

    assert (done.due, done.written, told) == (120, 120, [50, 100])
    assert await space.revision() == before + 3
    assert [await space.documents.get(f"trip {n}") for n in (0, 119)] == [Trip("NYC", 0), Trip("NYC", 119)]


async def test_a_batch_of_large_documents_is_a_small_one(space: Space) -> None:
    dense = Random(1).randbytes(1_200_000)
    register_write_version(NAME, 1)
    for number in range(3):
        await space.documents.put(f"big {number}", [Trip("LA", number), dense])
    register_write_version(NAME, None)
    told = list[int]()

    await migrate(space, tell=lambda so_far: told.append(so_far.written))

    assert told == [1, 2, 3]
    assert await space.documents.get("big 2") == [Trip("LA", 2), dense]


async def test_writers_beside_a_migration_lose_nothing(space: Space) -> None:
    register_write_version(NAME, 1)
    for number in range(60):
        await space.documents.put(f"trip {number}", Trip("NYC", 0))
    ended = asyncio.Event()

    async def write() -> int:
        count = 0
        while not ended.is_set():
            await space.documents.update("trip 7", lambda trip: Trip(trip.city, trip.cents + 1))
            count += 1
            await asyncio.sleep(0)
        return count

    writing = asyncio.create_task(write())
    await asyncio.sleep(0)
    register_write_version(NAME, None)
    done = await migrate(space)
    ended.set()

    assert done.written >= 59
    assert await writing > 0
    assert await space.documents.get("trip 7") == Trip("NYC", writing.result())
    assert (await migrate(space)).due == 0


async def test_a_time_to_live_goes_on_and_a_recorded_space_records_it(ks: Keepstate) -> None:
    run = ks.space("run/2", record=True)
    register_write_version(NAME, 2)
    await run.documents.put("trip", Trip("NYC", 1), ttl_s=3600)
    before = await expires_at_ms(run)
    register_write_version(NAME, None)

    assert (await migrate(run)).written == 1

    assert abs(await expires_at_ms(run) - before) < 5000
    assert f"{NAME}@2" in (await run.history.find()).message


async def test_what_is_newer_than_the_application_is_refused_by_both_names(space: Space) -> None:
    register(Trip, NAME, version=4)
    await space.documents.put("trip", Trip("NYC", 1))
    register(Trip, NAME, version=3)

    done = await migrate(space)

    assert re.search(rf"{NAME}@4 .*{NAME}@3; .*upgrade", done.refused["trip"])
    with pytest.raises(UnsupportedError):
        await space.documents.get("trip")


async def test_what_holds_unknown_classes_is_left_and_told(space: Space) -> None:
    @register("tests/stranger")
    @dataclass
    class Stranger:
        name: str

    register_write_version(NAME, 1)
    await space.documents.put("both", [Trip("NYC", 1), Stranger("x")])
    register_write_version(NAME, None)
    del CLASSES._by_name["tests/stranger"]

    done = await migrate(space)

    assert done.written == 0
    assert "tests/stranger@1 is stored here and no class is registered" in done.refused["both"]


def test_a_version_that_cannot_be_written_is_refused() -> None:
    register(Trip, NAME, version=4)
    for version, told in ((3, "downcast"), (5, "cannot be written"), (0, "versions count from 1")):
        with pytest.raises(InvalidError, match=told):
            register_write_version(NAME, version)
    with pytest.raises(InvalidError, match="no class is registered"):
        register_write_version("tests/nothing", 1)


def test_a_downcaster_that_fails_is_named() -> None:
    @register("tests/odd", version=2)
    @dataclass
    class Odd:
        name: str

    @downcast("tests/odd", 2)
    def fails(fields: dict[str, Any]) -> dict[str, Any]:
        return {"name": fields["nome"]}

    register_write_version("tests/odd", 1)
    with sync.open("memory://") as ks, pytest.raises(InvalidError, match=r"downcaster .*fails.* KeyError"):
        ks.space("run").documents.put("odd", Odd("x"))


def test_two_processes_of_old_and_new_code_work_on_one_store(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/keepstate.db?durability=normal"
    with sync.open(url) as ks:
        ks.space("run/1").documents.put("start", 0)
    processes = [
        Program("-m", "tests.processes.add_to_versioned_object", url, code, 60, stderr=subprocess.PIPE)
        for code in ("old", "new", "migrating")
    ]
    for process in processes:
        _, complaint = process.communicate(timeout=90)
        assert process.returncode == 0, complaint

    with sync.open(url) as ks:
        counted = ks.space("run/1").documents.get("counter")
    assert counted == Trip("NYC", 120)


async def test_a_listing_goes_on_behind_documents_that_cannot_be_read(
    space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["a", "b", "b" * 400 + "é", "c", "d"]
    for name in names:
        await space.documents.put(name, {"a": 1} if name in "ac" else Trip("NYC", 100))
    monkeypatch.setattr(CLASSES, "_by_name", {NAME: replace(CLASSES._by_name[NAME], version=2, older=())})

    found, refused, after = dict[str, Any](), list[str](), None
    for _ in names:
        try:
            async for name, value in space.documents.items(after=after):
                found[name] = value
            break
        except UnsupportedError as error:
            after = error.key or "no key is told"
            refused.append(after)

    assert (list(found), refused) == (["a", "c"], ["b", "b" * 400 + "é", "d"])


async def test_a_damaged_document_is_named_by_the_error_of_a_listing(ks: Keepstate) -> None:
    space = ks.space("s")
    await space.documents.put("a", 1)
    place = layout.named_key(layout.DOCUMENTS, "a")
    store = await ks.opened()
    await store.apply([Batch(space.executor.stored_name, [Put(place, b"\xff\xff")])])
    await space.documents.put("b", 2)

    with pytest.raises(CorruptError) as caught:
        _ = [item async for item in space.documents.items()]

    assert caught.value.key == "a"
    assert [item async for item in space.documents.items(after=caught.value.key)] == [("b", 2)]
