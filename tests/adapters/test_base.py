"""The base of adapters keeps the contract of adapters, with a framework of three calls."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from keepstate.adapters.base import Adapter, BoundSpace, RecordingAdapter, StoreAdapter, outlast_cancellation
from keepstate.engine.space.space import Space, Transaction
from keepstate.errors import ClosedError, ConflictError, InvalidError, StorageError
from keepstate.names import segment
from keepstate.stores.sqlite.store import SqliteStore
from keepstate.testing.adapter_contract import IDS, AdapterContract
from keepstate.values.limits import SPACE_BYTES


class Notes(Adapter):
    """Notes of a person on a subject: the smallest framework that has conversations."""

    kind = "notes"

    async def add(self, space: BoundSpace, items: Sequence[Any]) -> None:
        async def fn(tx: Transaction) -> None:
            prefix = await self.life(tx).to_write(tx)
            count = await tx.documents.get(f"{prefix}count", 0)
            await tx.documents.put(f"{prefix}notes/{count:012}", list(items))
            await tx.documents.put(f"{prefix}count", count + 1)

        await space.transact(fn, message="add notes")

    async def read(self, space: BoundSpace) -> list[Any]:
        async def work(target: Space) -> list[Any]:
            prefix = await self.life(target).to_read()
            if prefix is None:
                return []
            return [note async for _, notes in target.documents.items(f"{prefix}notes/*") for note in notes]

        return await space.call(work)

    async def clear(self, space: BoundSpace) -> None:
        await outlast_cancellation(space.call(lambda target: self.life(target).end()))


class NotesContract(AdapterContract):
    @pytest.fixture
    def url(self, any_url: str) -> str:
        return any_url

    def make(self, url: str) -> Notes:
        return Notes(url)

    async def add(self, adapter: Notes, id: str, items: Sequence[Any]) -> None:
        await adapter.add(adapter.space(id), items)

    async def read(self, adapter: Notes, id: str) -> list[Any]:
        return await adapter.read(adapter.space(id))

    def item(self, n: int) -> Any:
        return {"n": n}

    def rich_item(self) -> Any:
        return {"at": datetime(2026, 1, 2, tzinfo=UTC), "parts": (1, b"\0\xff", None)}

    async def clear(self, adapter: Notes, id: str) -> None:
        await adapter.clear(adapter.space(id))

    async def add_owned(self, adapter: Notes, owner: str, id: str, items: Sequence[Any]) -> None:
        await adapter.add(adapter.space(id, owner=owner), items)

    async def read_owned(self, adapter: Notes, owner: str, id: str) -> list[Any]:
        return await adapter.read(adapter.space(id, owner=owner))

    async def erase(self, adapter: Notes, owner: str) -> None:
        erased = await adapter.erase(owner)
        assert erased.spaces == 2


class TestNotes(NotesContract):
    """On every backend."""


def test_names_of_other_ids_differ_and_are_never_too_long() -> None:
    adapter = Notes("memory://")
    ids = list(dict.fromkeys([*IDS, "", "_", segment("").lstrip("_~"), *(segment(id) for id in (*IDS, ""))]))
    spaces = [
        (some, owner) for owner in (None, *filter(None, ids)) for some in ((), *zip(ids), *product(ids, ids))
    ]
    names = [adapter.space_name(*some, owner=owner) for some, owner in spaces]

    assert len(set(names)) == len(spaces)
    assert max(len(name.encode()) for name in names) <= SPACE_BYTES
    assert adapter.space_name("run/42") == "notes/run%2F42"
    assert adapter.space_name("1", owner="ann") == "notes/~ann/1"
    assert len(adapter.space_name(*["long" * 20] * 9, owner="ann")) <= SPACE_BYTES
    assert adapter.space_name(*["long" * 20] * 9) != adapter.space_name(*["long" * 20] * 8)


def test_wrong_arguments_are_told() -> None:
    with pytest.raises(InvalidError, match="ttl_s"):
        Notes("memory://", ttl_s=0)
    with pytest.raises(InvalidError, match="record"):
        Notes("memory://", record="yes")  # type: ignore[arg-type]
    with pytest.raises(InvalidError, match="owner"):
        Notes("memory://").space("1", owner="")


async def test_a_closed_adapter_says_so(tmp_path: Path) -> None:
    async with Notes.from_url(tmp_path / "notes.db") as adapter:
        await adapter.add(adapter.space("1"), ["a"])
    with pytest.raises(ClosedError, match="create a new one"):
        await adapter.read(adapter.space("1"))


async def test_cleared_and_ended_conversations_are_swept(any_url: str) -> None:
    async with Notes.from_url(any_url, ttl_s=1) as adapter:
        ended, cleared = adapter.space("ended"), adapter.space("cleared")
        for space in (ended, cleared):
            await adapter.add(space, ["a"])
        await adapter.clear(cleared)
        await adapter.add(cleared, ["b"])
        await asyncio.sleep(1.1)

        assert await adapter.read(ended) == await adapter.read(cleared) == []
        assert await adapter.sweep() == 6
        assert await adapter.sweep() == 0


async def test_a_recorded_conversation_keeps_its_moments(any_url: str) -> None:
    async with Notes.from_url(any_url, record=True, author="ann") as adapter:
        space = adapter.space("1")
        await adapter.add(space, ["a"])
        await adapter.add(space, ["b"])

        async def work(target: Space) -> list[tuple[str | None, str]]:
            return [(commit.author, commit.message) async for commit in target.history.log()]

        assert (await space.call(work))[:2] == [("ann", "add notes")] * 2


@pytest.mark.parametrize("record", [False, True])
async def test_a_log_is_kept_short_where_no_batch_is_sent_again(any_url: str, record: bool) -> None:
    async with Notes.from_url(any_url, record=record) as adapter:
        space = adapter.space("1")
        for n in range(70):
            await adapter.add(space, [n])

        revision, floor = await space.call(_log)
        assert revision - floor in (range(32, 64) if adapter.shortens_logs else (revision,))
        assert adapter.shortens_logs == (not record and any_url.startswith(("memory:", "sqlite:")))
        assert await adapter.read(space) == [*range(70)]


async def _log(space: Space) -> tuple[int, int]:
    """Return the revision of a space, and the one up to which its log was removed."""
    store, name = await space.executor.store(), space.executor.stored_name
    revision = await space.revision()
    return revision, (await store.changes(name, revision)).floor


async def test_a_log_that_cannot_be_shortened_fails_no_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise StorageError("the disk is full")

    monkeypatch.setattr(SqliteStore, "trim", fail)
    async with Notes.from_url(tmp_path / "notes.db") as adapter:
        space = adapter.space("1")
        for n in range(40):
            await adapter.add(space, [n])

        assert await adapter.read(space) == [*range(40)]
    assert "not shortened: the disk is full" in caplog.text


async def test_a_conflict_is_told_in_the_words_of_the_framework() -> None:
    class StaleNoteError(Exception):
        pass

    class Strict(Notes):
        def conflict(self, error: ConflictError) -> Exception:
            return StaleNoteError(str(error))

    async with Strict.from_url("memory://") as adapter:
        space = adapter.space("1")

        async def fn(tx: Transaction) -> None:
            await tx.documents.put("a", 1, expected_version=7)

        with pytest.raises(StaleNoteError) as caught:
            await space.transact(fn, attempts=1)
        assert isinstance(caught.value.__cause__, ConflictError)


async def test_a_cancelled_caller_waits_for_its_write_and_hears_of_its_failure() -> None:
    ended = asyncio.Event()

    async def write() -> None:
        await asyncio.sleep(0.05)
        ended.set()
        raise OSError("the disk is gone")

    task = asyncio.create_task(outlast_cancellation(write()))
    await asyncio.sleep(0)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0.005)
    assert not task.done()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task

    assert ended.is_set()
    assert "the disk is gone" in caught.value.__notes__[0]


@pytest.mark.parametrize(("base", "option"), [(StoreAdapter, "record"), (RecordingAdapter, "ttl_s")])
def test_an_option_that_an_adapter_cannot_honor_is_an_error(base: Any, option: str) -> None:
    with pytest.raises(TypeError, match=option):
        base("memory://", **{option: 1})


def test_a_copy_closes_nothing_of_the_adapter_that_it_is_from() -> None:
    class Shared(Notes):
        def other(self) -> Shared:
            return self._copy()

    notes = Shared("memory://")
    notes.other().close()

    async def write(space: Space) -> int:
        return await space.documents.put("a", 1)

    assert notes.space("s").call_blocking(write) == 1
    notes.close()
