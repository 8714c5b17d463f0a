"""The contract of adapters: the promises for a framework's conversations, on any store and by any writer."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from multiprocessing import get_context
from typing import Any, ClassVar, Final, TypeVar

T = TypeVar("T")

LONG: Final = 5_000
"""Items of the longest call; a batch of the store has room for fewer."""
IDS: Final = (
    "a/b",
    "c/b",
    "a%2Fb",
    "a",
    "~a",
    "a#b",
    "a@b",
    " ",
    "*",
    "..",
    "ünï/🦜",
    "\x00\n",
    "A" * 300,
    "A" * 299 + "/",
    "/".join(["long"] * 60),
)
"""Ids that other stores confuse, refuse or cut."""
_EACH: Final = 12
_DELAYS_S: Final = (0.0, 0.0, 0.001, 0.002, 0.005, 0.01)


class AdapterContract(ABC):
    """The promises of every adapter of a framework. Subclass it in the adapter's tests.

    A subclass has a fixture `url`, which gives the URL of an empty store, and says how its framework adds and
    reads the items of a conversation. An adapter is whatever `make` returns. Its class must be importable by
    name, because one test starts a second process.

    Attributes:
        idempotent: True if the items carry ids, so that a batch which is sent twice is there once.
        ordered: True if the items of a conversation come back in the order in which they were added.
    """

    idempotent: ClassVar[bool] = False
    ordered: ClassVar[bool] = True

    @abstractmethod
    def make(self, url: str) -> Any:
        """Return a new adapter on a store."""

    @abstractmethod
    async def add(self, adapter: Any, id: str, items: Sequence[Any]) -> None:
        """Add items to the conversation with this id, by one call of the framework."""

    @abstractmethod
    async def read(self, adapter: Any, id: str) -> list[Any]:
        """Return the items of the conversation with this id."""

    @abstractmethod
    def item(self, n: int) -> Any:
        """Return the item of this number; items of other numbers are not equal to it."""

    @abstractmethod
    def rich_item(self) -> Any:
        """Return an item with the richest values that the framework's own types may have."""

    @abstractmethod
    async def clear(self, adapter: Any, id: str) -> None:
        """Delete all items of the conversation with this id, by one call of the framework."""

    @abstractmethod
    async def add_owned(self, adapter: Any, owner: str, id: str, items: Sequence[Any]) -> None:
        """Add items to a conversation that belongs to an owner."""

    @abstractmethod
    async def read_owned(self, adapter: Any, owner: str, id: str) -> list[Any]:
        """Return the items of a conversation that belongs to an owner."""

    @abstractmethod
    async def erase(self, adapter: Any, owner: str) -> None:
        """Erase everything of an owner."""

    async def close(self, adapter: Any) -> None:
        """Close an adapter."""
        await adapter.aclose()

    # ---- two writers

    def test_two_writers_of_one_loop_lose_nothing(self, url: str) -> None:
        async def work(adapter: Any) -> list[Any]:
            await asyncio.gather(*(self._write(adapter, at) for at in (0, 1_000)))
            return await self.read(adapter, "shared")

        self._check_both(self._run(url, work))

    def test_two_adapters_in_two_threads_lose_nothing(self, url: str) -> None:
        async def hold(adapter: Any) -> list[Any]:
            threads = [
                threading.Thread(target=self._run, args=(url, self._writer(at)), daemon=True)
                for at in (0, 1_000)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                await asyncio.to_thread(thread.join, 240)
            return await self.read(adapter, "shared")

        self._check_both(self._run(url, hold))

    def test_two_processes_lose_nothing(self, url: str) -> None:
        if url.startswith(("memory:", "file:")):
            return  # one process has such a store for itself
        process = get_context("spawn").Process(target=_write_elsewhere, args=(type(self), url))
        process.start()
        self._run(url, self._writer(0))
        process.join(240)
        assert process.exitcode == 0

        self._check_both(self._run(url, lambda adapter: self.read(adapter, "shared")))

    def _writer(self, first: int) -> Callable[[Any], Coroutine[Any, Any, None]]:
        return lambda adapter: self._write(adapter, first)

    async def _write(self, adapter: Any, first: int) -> None:
        for at in range(first, first + 2 * _EACH, 2):
            await self.add(adapter, "shared", [self.item(at), self.item(at + 1)])

    def _check_both(self, read: list[Any]) -> None:
        for first in (0, 1_000):
            own = [self.item(n) for n in range(first, first + 2 * _EACH)]
            assert all(item in read for item in own), f"items of the writer from {first} are lost"
            if self.ordered:
                assert [item for item in read if item in own] == own
                places = [read.index(item) for item in own]
                assert all(
                    after == before + 1 for before, after in zip(places[::2], places[1::2], strict=True)
                )
        assert len(read) == 4 * _EACH

    # ---- one batch

    def test_a_batch_that_is_sent_twice(self, url: str) -> None:
        items = [self.item(n) for n in range(3)]

        async def work(adapter: Any) -> list[Any]:
            await self.add(adapter, "twice", items)
            await self.add(adapter, "twice", items)
            return await self.read(adapter, "twice")

        self._check_items(self._run(url, work), items if self.idempotent else items * 2)

    def test_a_cancelled_batch_is_whole_or_absent_and_has_ended(self, url: str) -> None:
        items = [self.item(n) for n in range(400)]

        async def work(adapter: Any) -> None:
            for number, delay_s in enumerate(_DELAYS_S):
                task = asyncio.create_task(self.add(adapter, f"cancelled-{number}", items))
                await asyncio.sleep(delay_s)
                task.cancel()
                await asyncio.wait([task])
                at_once = await self.read(adapter, f"cancelled-{number}")
                await asyncio.sleep(0.05)
                assert await self.read(adapter, f"cancelled-{number}") == at_once, "the write went on"
                if at_once or not task.cancelled():
                    self._check_items(at_once, items)

        self._run(url, work)

    def test_a_batch_of_thousands_is_added_as_a_whole(self, url: str) -> None:
        items = [self.item(n) for n in range(LONG)]

        async def work(adapter: Any) -> list[Any]:
            await self.add(adapter, "long", items)
            return await self.read(adapter, "long")

        self._check_items(self._run(url, work), items)

    # ---- ids and values

    def test_any_text_is_an_id_of_its_own(self, url: str) -> None:
        async def work(adapter: Any) -> None:
            for n, id in enumerate(IDS):
                await self.add(adapter, id, [self.item(n)])
            for n, id in enumerate(IDS):
                assert await self.read(adapter, id) == [self.item(n)], f"of the id {id!r}"

        self._run(url, work)

    def test_the_richest_values_come_back_equal(self, url: str) -> None:
        async def work(adapter: Any) -> list[Any]:
            await self.add(adapter, "rich", [self.rich_item()])
            return await self.read(adapter, "rich")

        assert self._run(url, work) == [self.rich_item()]

    # ---- loops and restarts

    def test_an_adapter_serves_one_event_loop_after_another(self, url: str) -> None:
        async def first() -> Any:
            adapter = self.make(url)
            await self.add(adapter, "loops", [self.item(0)])
            return adapter

        adapter = asyncio.run(first())
        asyncio.run(self.add(adapter, "loops", [self.item(1)]))

        async def last() -> list[Any]:
            try:
                return await self.read(adapter, "loops")
            finally:
                await self.close(adapter)

        self._check_items(asyncio.run(last()), [self.item(0), self.item(1)])

    def test_what_was_added_is_there_after_opening_again(self, url: str) -> None:
        if url.startswith("memory:"):
            return  # such a store ends with its last handle
        self._run(url, lambda adapter: self.add(adapter, "kept", [self.item(1)]))

        assert self._run(url, lambda adapter: self.read(adapter, "kept")) == [self.item(1)]

    # ---- ends

    def test_a_cleared_conversation_begins_empty(self, url: str) -> None:
        many, few = [self.item(n) for n in range(1_500)], [self.item(7), self.item(2_000)]

        async def work(adapter: Any) -> list[Any]:
            for at in range(0, len(many), 500):
                await self.add(adapter, "cleared", many[at : at + 500])
            await self.add(adapter, "other", few)
            await self.clear(adapter, "cleared")
            assert await self.read(adapter, "cleared") == []
            await self.add(adapter, "cleared", few)
            self._check_items(await self.read(adapter, "other"), few)
            return await self.read(adapter, "cleared")

        self._check_items(self._run(url, work), few)

    def test_nothing_of_an_erased_owner_is_left(self, url: str) -> None:
        items = [self.item(n) for n in range(3)]

        async def work(adapter: Any) -> None:
            for owner in ("ann", "ann/x", "an"):
                for id in ("1", "2"):
                    await self.add_owned(adapter, owner, id, items)
            await self.erase(adapter, "ann")
            for id in ("1", "2"):
                assert await self.read_owned(adapter, "ann", id) == []
                self._check_items(await self.read_owned(adapter, "ann/x", id), items)
                self._check_items(await self.read_owned(adapter, "an", id), items)

        self._run(url, work)

    # ---- how

    def _check_items(self, read: list[Any], expected: list[Any]) -> None:
        if self.ordered:
            assert read == expected
        else:
            assert sorted(map(repr, read)) == sorted(map(repr, expected))

    def _run(self, url: str, work: Callable[[Any], Awaitable[T]]) -> T:
        async def run() -> T:
            adapter = self.make(url)
            try:
                return await work(adapter)
            finally:
                await self.close(adapter)

        return asyncio.run(run())


def _write_elsewhere(contract: type[AdapterContract], url: str) -> None:
    own = contract()
    own._run(url, own._writer(1_000))  # pyright: ignore[reportPrivateUsage]
