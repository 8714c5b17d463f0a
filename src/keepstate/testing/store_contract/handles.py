"""Handles: wrong use of a handle raises a named error; it never hangs and never loses data."""

from __future__ import annotations

import asyncio
import copy
import gc
import os
import pickle
import threading
import time
import warnings
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from keepstate._finish import finish
from keepstate.errors import ClosedError
from keepstate.stores.base import StoreBase
from keepstate.stores.protocol import Batch, Capabilities, Durability, Listening, Put
from keepstate.testing.store_contract.stage import Stage, applied, only_async, value_of

A = b"\x01a"


def every_call(store: StoreBase, space: str) -> list[Coroutine[Any, Any, object]]:
    """Return one call of each method."""
    return [
        store.apply([Batch(space, [Put(A, b"")])]),
        store.apply([]),
        store.read(space, [A]),
        store.scan(space, b"\x01"),
        store.changes(space, 0),
        store.wait([space], 0.001),
        store.spaces(),
        store.drop(space),
        store.trim(space),
        store.sweep(),
    ]


async def errors_of(calls: list[Coroutine[Any, Any, object]]) -> list[str]:
    """Return the name of each call's error, or the repr of its answer."""
    names: list[str] = []
    for call in calls:
        try:
            names.append(repr(await call))
        except Exception as error:  # noqa: BLE001  every one of them is the answer
            names.append(type(error).__name__)
    return names


class Handles(Stage):
    """Opening, closing, and use in another loop or process."""

    async def test_an_opened_store_says_what_it_offers(self, store: StoreBase) -> None:
        assert isinstance(store.capabilities, Capabilities)
        assert store.capabilities.durability in Durability
        assert isinstance(store, Listening)

    async def test_a_closed_store_answers_nothing(self, store: StoreBase, space: str) -> None:
        await applied(store, space, Put(A, b"1"))
        await store.drop(space)
        await store.close()

        calls = every_call(store, space)

        assert await errors_of(calls) == ["ClosedError"] * len(calls)
        with pytest.raises(ClosedError):
            store.listen([space])

    async def test_closing_twice_is_closing_once(self, store: StoreBase) -> None:
        await store.close()
        await store.close()

        assert "closed" in repr(store)

    async def test_a_store_that_was_never_opened_says_so(self, tmp_path: Path, space: str) -> None:
        store = self.make_store(tmp_path)

        calls = every_call(store, space)

        assert await errors_of(calls) == ["ClosedError"] * len(calls)
        with pytest.raises(ClosedError, match="Call open"):
            _ = store.capabilities
        await store.close()

    async def test_a_repr_names_the_store_and_its_state(self, store: StoreBase) -> None:
        assert store.url in repr(store)
        assert repr(store).endswith(" open>")

        await store.close()

        assert repr(store).endswith(" closed>")

    async def test_a_store_does_not_pickle(self, store: StoreBase) -> None:
        with pytest.raises(TypeError, match="URL"):
            pickle.dumps(store)
        with pytest.raises(TypeError, match="URL"):
            copy.deepcopy(store)

    async def test_a_store_dropped_while_open_warns_once(self, tmp_path: Path) -> None:
        store = await self.make_store(tmp_path).open()
        url = store.url
        told: list[str] = []

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            del store
            for _ in range(100):
                gc.collect()
                told = [str(warning.message) for warning in caught if url in str(warning.message)]
                if told:
                    break
                time.sleep(0.01)  # a thread that has just worked for the store may still let go of it

        assert len(told) == 1
        assert "dropped while open" in told[0]

    @only_async
    async def test_another_event_loop_is_told_to_open_its_own(self, store: StoreBase, space: str) -> None:
        calls = every_call(store, space)
        names: list[str] = []

        visitor = threading.Thread(target=lambda: names.extend(asyncio.run(errors_of(calls))))
        visitor.start()
        visitor.join()

        assert names == ["ClosedError"] * len(calls)
        assert await value_of(store, space, A) is None

    async def test_a_forked_child_is_told_to_open_its_own(self, store: StoreBase, space: str) -> None:
        await applied(store, space, Put(A, b"the parent's"))

        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # Python warns of forks next to threads; the child only calls and leaves
            child = os.fork()
        if child == 0:  # pragma: no cover  runs in the child
            calls = [*every_call(store, space), store.close()]
            try:
                names = [finish(errors_of([call])) for call in calls]
                os._exit(0 if names == [["ClosedError"]] * len(calls) else 1)
            finally:
                os._exit(2)

        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert await value_of(store, space, A) == b"the parent's"
        await applied(store, space, Put(A, b"still the parent's"))

    async def test_an_error_pickles_with_its_facts(self, store: StoreBase) -> None:
        await store.close()
        with pytest.raises(ClosedError) as caught:
            await store.spaces()

        again = pickle.loads(pickle.dumps(caught.value))

        assert (type(again), str(again)) == (ClosedError, str(caught.value))
