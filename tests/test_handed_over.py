"""Stores that are handed over: who opens and closes them, and their twins."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import keepstate
from keepstate import (
    ClosedError,
    CorruptError,
    InvalidError,
    Keepstate,
    KeyRing,
    StoreUnavailableError,
    UnsupportedError,
    sync,
)
from keepstate._runner import TaskRunner
from keepstate.stores.memory import MemoryStore
from keepstate.stores.protocol import Batch, Put
from keepstate.stores.sqlite import SqliteStore
from keepstate.stores.wrappers.encrypted import EncryptedStore
from keepstate.stores.wrappers.measured import MeasuredStore
from keepstate.stores.wrappers.wrapper import StoreWrapper
from keepstate.sync import of
from tests.test_opening import first_cancelled


def test_a_wrapper_that_could_not_be_opened_is_opened_by_who_needs_it_next(tmp_path: Path) -> None:
    path = tmp_path / "absent" / "s.db"
    wrapper = MeasuredStore(SqliteStore(path, runner=TaskRunner()), print)

    async def used() -> Any:
        ks = keepstate.open(wrapper)
        with pytest.raises(StoreUnavailableError, match="Create it"):
            await ks.space("s").documents.get("k")
        path.parent.mkdir()
        await ks.space("s").documents.put("k", 1)
        assert ks.store is wrapper
        await ks.close()

    asyncio.run(used())

    assert path.exists()
    assert not wrapper.is_open


def test_a_wrapper_that_closed_its_store_when_it_failed_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "s.db"

    async def used() -> Any:
        plain = await SqliteStore(path, runner=TaskRunner()).open()
        await plain.apply([Batch("plain", [Put(b"\x02k", b"1")])])
        ks = keepstate.open(
            EncryptedStore(SqliteStore(path, runner=TaskRunner()), KeyRing(KeyRing.new_key()))
        )
        with pytest.raises(CorruptError, match="was not encrypted"):
            await ks.space("s").documents.get("k")
        await plain.drop("plain")
        await plain.close()
        await ks.space("s").documents.put("k", 2)
        value = await ks.space("s").documents.get("k")
        await ks.close()
        return value

    assert asyncio.run(used()) == 2


def test_who_is_cancelled_while_opening_a_wrapper_leaves_the_others_a_store(tmp_path: Path) -> None:
    def opened() -> Keepstate:
        return keepstate.open(MeasuredStore(SqliteStore(tmp_path / "s.db", runner=TaskRunner()), print))

    assert asyncio.run(first_cancelled(opened)) == 2


def test_a_wrapper_around_what_was_closed_is_not_opened_anew() -> None:
    async def used() -> None:
        store = await MemoryStore(runner=TaskRunner()).open()
        await store.close()
        ks = keepstate.open(MeasuredStore(store, print))
        for _ in range(2):
            with pytest.raises(ClosedError):
                await ks.space("s").documents.get("k")

    asyncio.run(used())


def test_a_store_that_was_passed_in_has_a_twin_that_ends_with_the_handle() -> None:
    async def used() -> tuple[Any, str]:
        store = await MemoryStore(runner=TaskRunner()).open()
        async with keepstate.open(store) as ks:
            await ks.space("s").documents.put("k", 1)
            seen, twin = of(ks).space("s").documents.get("k"), of(ks).store
        shown = f"{store!r} {twin!r}"
        await store.close()
        return seen, shown

    assert asyncio.run(used()) == (1, "<MemoryStore memory:// open> <MemoryStore memory:// closed>")


def test_a_store_without_its_keys_has_a_twin_that_reads_and_writes_nothing(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    with sync.open(url, encryption=KeyRing(KeyRing.new_key())) as ks:
        ks.space("s").documents.put("k", 1)

    async def used() -> list[str]:
        async with keepstate.open(url) as ks, keepstate.open(ks.store) as passed:
            names = list(of(passed).spaces())
            with pytest.raises(InvalidError, match="is encrypted"):
                of(passed).space("s").documents.put("k", 2)
            return names

    assert asyncio.run(used()) == ["s"]


def test_a_wrapper_that_cannot_be_made_again_says_so() -> None:
    async def used() -> None:
        async with keepstate.open(StoreWrapper(MemoryStore(runner=TaskRunner()))) as ks:
            with pytest.raises(UnsupportedError, match="does not implement `around`"):
                _ = of(ks)

    asyncio.run(used())


def test_a_foreign_store_has_no_twin() -> None:
    class Foreign:
        """A store of somebody else's making; it is never asked for anything."""

        async def apply(self, batches: object) -> None: ...

    with pytest.raises(UnsupportedError, match="cannot be used in another mode"):
        _ = of(keepstate.open(Foreign()))  # type: ignore[arg-type]  # no store of ours
