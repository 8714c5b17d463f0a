"""Watching documents: every change, in order, from a fixed start."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

import pytest

from keepstate.engine.documents.watch import DocumentChange, Watch
from keepstate.engine.space.space import Space
from keepstate.errors import CompactedError, InvalidError, KeepstateError, UnsupportedError
from keepstate.values.schema import CLASSES, register
from tests.engine.conftest import Turned


@register("tests.watch.Plan", version=2)
@dataclass(frozen=True)
class Plan:
    """What an application of older code does not know, or knows in version 1."""

    goal: str


@contextmanager
def older_code(*, knows_version: int | None) -> Iterator[None]:
    known = CLASSES._by_name.pop("tests.watch.Plan")
    try:
        if knows_version is not None:
            CLASSES._by_name["tests.watch.Plan"] = replace(known, version=knows_version)
        yield
    finally:
        CLASSES._by_name["tests.watch.Plan"] = known


def told(change: DocumentChange) -> tuple[str, str, object, object]:
    return change.key, change.kind, change.old, change.new


async def test_a_watch_starts_where_the_space_stands_on_entering(space: Space) -> None:
    await space.documents.put("a", 1)

    async with space.documents.watch(timeout_s=0) as changes:
        await space.documents.put("a", 2)
        await space.documents.put("b", None)
        await space.documents.delete("a")
        found = [told(change) async for change in changes]

    assert found == [("a", "updated", 1, 2), ("b", "created", None, None), ("a", "deleted", 2, None)]


async def test_a_watch_goes_on_where_another_has_ended(space: Space) -> None:
    async with space.documents.watch(timeout_s=0) as changes:
        await space.documents.put("a", 1)
        assert [change.new async for change in changes] == [1]
        reached = changes.revision
    await space.documents.put("a", 2)

    async with space.documents.watch(after=reached, timeout_s=0) as changes:
        assert [change.new async for change in changes] == [2]


async def test_a_watch_of_a_pattern_ends_in_time_while_others_write(space: Space) -> None:
    async def write() -> None:
        while True:
            await space.documents.put("other", 1)
            await asyncio.sleep(0)

    writer = asyncio.create_task(write())
    try:
        async with asyncio.timeout(60), space.documents.watch("x*", timeout_s=0.1) as changes:
            found = [change async for change in changes]
    finally:
        writer.cancel()
        with suppress(asyncio.CancelledError):
            await writer

    assert found == []


async def test_a_watch_that_does_not_wait_still_reads_past_a_page_without_documents(space: Space) -> None:
    async with space.documents.watch(timeout_s=0) as changes:
        for _ in range(4):  # the fourth batch completes the first page of the log
            await space.events.append(*range(300))
        await space.documents.put("x", 1)

        assert [told(change) async for change in changes] == [("x", "created", None, 1)]


async def test_a_watch_wakes_for_a_change_made_while_it_waits(space: Space) -> None:
    async with space.documents.watch("a", timeout_s=10) as changes:
        waiting = asyncio.create_task(anext(changes))
        await asyncio.sleep(0)
        await space.documents.put("a", 1)

        assert told(await waiting) == ("a", "created", None, 1)


async def test_a_watch_gives_large_and_long_named_documents_whole(space: Space) -> None:
    name, value = "n" * 440 + "é" * 30, bytes(2 << 20)

    async with space.documents.watch(timeout_s=0) as changes:
        await space.documents.put(name, value)
        found = [told(change) async for change in changes]

    assert found == [(name, "created", None, value)]


async def test_a_watch_below_the_floor_of_the_log_is_refused(space: Space) -> None:
    await space.documents.put("a", 1)
    await space.executor.home.drop("run/1")  # type: ignore[attr-defined]
    await space.documents.put("a", 2)

    with pytest.raises(CompactedError):
        async with space.documents.watch(after=0, timeout_s=0) as changes:
            _ = [change async for change in changes]


async def test_a_watch_gives_again_what_was_being_read_when_who_asked_was_cancelled(space: Space) -> None:
    async with space.documents.watch(timeout_s=30) as changes:
        await space.documents.put("small", 1)
        for seed in range(3):
            await space.documents.put("large", random.Random(seed).randbytes(2 << 20))
        found = [(await anext(changes)).revision]
        for _ in range(3):
            asking = asyncio.create_task(anext(changes))
            await asyncio.sleep(0)  # it now reads the parts of a change that it was told of before
            asking.cancel()
            with suppress(asyncio.CancelledError):
                found.append((await asking).revision)
        while len(found) < 4:
            found.append((await anext(changes)).revision)

    assert found == [1, 2, 3, 4]


async def taken(changes: Watch, times: int) -> list[object]:
    """Return what so many calls have told: documents' names, and classes of errors."""
    found: list[object] = []
    for _ in range(times):
        try:
            found += [change.key for change in await changes.take(0)]
        except KeepstateError as error:
            found.append(type(error))
    return found


@pytest.mark.parametrize(("version", "raised"), [(None, InvalidError), (1, UnsupportedError)])
async def test_a_change_that_cannot_be_read_is_told_in_its_place_and_holds_up_no_other(
    space: Space, version: int | None, raised: type[KeepstateError]
) -> None:
    async with space.documents.watch() as changes:
        for key, value in (("a", 1), ("b", 2), ("new", Plan("sing")), ("c", 3)):
            await space.documents.put(key, value)
        with older_code(knows_version=version):
            found = await taken(changes, 4)
        reached = changes.revision

    assert found == ["a", "b", raised, "c"]
    assert reached == await space.revision()


async def test_until_it_has_told_of_what_it_cannot_read_a_watch_has_not_passed_it(space: Space) -> None:
    await space.documents.put("a", 1)
    await space.documents.put("new", Plan("sing"))
    with older_code(knows_version=1):
        async with space.documents.watch(after=0) as changes:
            told_first = await taken(changes, 1)

    async with space.documents.watch(after=changes.revision) as later:
        assert (told_first, await taken(later, 1)) == (["a"], ["new"])


async def test_an_iterator_over_changes_goes_on_after_what_it_cannot_read(space: Space) -> None:
    async with space.documents.watch(timeout_s=0) as changes:
        for key, value in (("a", 1), ("new", Plan("sing")), ("b", 2)):
            await space.documents.put(key, value)
        with older_code(knows_version=1):
            found = [(await anext(changes)).key]
            with pytest.raises(UnsupportedError):
                await anext(changes)
            found += [change.key async for change in changes]

    assert found == ["a", "b"]


async def test_a_document_written_over_an_expired_one_is_told_as_deleted_and_created(turned: Turned) -> None:
    space = turned.space
    await space.documents.put("a", "old", ttl_s=1)

    async with space.documents.watch(timeout_s=0) as changes:
        turned.clock.advance(1000)
        await space.documents.put("a", "new")
        await space.documents.put("a", "newer")
        first = await anext(changes)
        between = changes.revision
        found = [first, *[change async for change in changes]]

    assert [told(change) for change in found] == [
        ("a", "deleted", "old", None),
        ("a", "created", None, "new"),
        ("a", "updated", "new", "newer"),
    ]
    assert first.revision == found[1].revision == between + 1, "half a revision is not complete"
