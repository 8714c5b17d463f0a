"""The base of every part of the contract: a store in one mode, a space for the test, time, and concurrency.

Each test is written once, as `async def`, and runs twice: in an event loop on an async handle, and without a
loop on a blocking handle, whose coroutines never suspend.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest

from keepstate._finish import finish
from keepstate._runner import Mode, Runner, TaskRunner, ThreadRunner
from keepstate.errors import InvalidError
from keepstate.stores.base import StoreBase
from keepstate.stores.protocol import (
    Applied,
    Batch,
    Change,
    Check,
    Conflict,
    Entry,
    Outcome,
    Store,
    Write,
)

T = TypeVar("T")

only_async = pytest.mark.parametrize("mode", ["async"], indirect=True)
"""Marks a test that needs an event loop."""

SHORT_MS = 30
"""A time to live that ends within the test, even if the clock is the server's and the wait is real."""

LONG_MS = 600_000
"""A time to live that ends long after the test."""


class Stage:
    """Opens the store, runs the tests in both modes, and drops the space afterwards."""

    mode_name: Mode
    _loop: asyncio.Runner | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, test in list(vars(cls).items()):
            if name.startswith("test_") and inspect.iscoroutinefunction(test):
                setattr(cls, name, _driven(test))

    # ---- for a backend's test to override

    def make_store(self, tmp_path: Path) -> StoreBase:
        """Return a handle of the store under test, in the mode of `self.runner()` and not yet opened.

        Called again with the same path it returns another handle on the same store.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say how to make its store")

    # ---- for the contract's own use

    def runner(self) -> Runner:
        """Return a runner in the test's mode."""
        return TaskRunner() if self.mode_name == "async" else ThreadRunner()

    def drive(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end in the test's mode."""
        return self._loop.run(work) if self._loop is not None else finish(work)

    @pytest.fixture(params=["async", "blocking"], autouse=True)
    def mode(self, request: pytest.FixtureRequest) -> Iterator[Mode]:
        """Set the mode of the test."""
        yield from self.in_mode(request.param)

    def in_mode(self, mode: Mode) -> Iterator[Mode]:
        """Set the mode, with an event loop if it needs one."""
        self.mode_name = mode
        if self.mode_name == "blocking":
            yield self.mode_name
            return
        with asyncio.Runner() as self._loop:
            yield self.mode_name

    @pytest.fixture
    def space(self, request: pytest.FixtureRequest) -> str:
        """Return the name of a space that no other test knows."""
        test: pytest.Item = request.node
        return f"{test.name[:100]}/{uuid.uuid4().hex[:12]}"

    @pytest.fixture
    def store(self, tmp_path: Path, space: str, mode: Mode) -> Iterator[StoreBase]:
        """Yield the opened store, and drop the test's space in the end."""
        store = self.drive(self.make_store(tmp_path).open())
        yield store
        if repr(store).endswith(" open>"):
            self.drive(store.drop(space))
            self.drive(store.close())

    # ---- time and concurrency

    async def pass_time(self, ms: int) -> None:
        """Let `ms` pass on the store's clock; wait if the clock cannot be turned."""
        pause_s = (ms + 2) / 1000
        if self.mode_name == "async":
            await asyncio.sleep(pause_s)
        else:
            time.sleep(pause_s)

    async def together(self, *work: Coroutine[Any, Any, T]) -> list[T]:
        """Run all at once, as tasks or as threads, and return their answers in order."""
        if self.mode_name == "async":
            return await asyncio.gather(*work)
        with ThreadPoolExecutor(max_workers=len(work)) as threads:
            return [answer.result() for answer in [threads.submit(finish, one) for one in work]]


def _driven(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def driven(self: Stage, *args: Any, **kwargs: Any) -> None:
        self.drive(test(self, *args, **kwargs))

    return driven


# ---- short forms of common calls


async def applied(
    store: Store,
    space: str,
    *writes: Write,
    checks: Sequence[Check] = (),
    at: int | None = None,
    token: bytes | None = None,
    retry_of: int | None = None,
) -> Applied:
    """Apply one batch that must not be refused."""
    outcome = await outcome_of(store, space, *writes, checks=checks, at=at, token=token, retry_of=retry_of)
    assert type(outcome) is Applied, outcome
    return outcome


async def refused(
    store: Store,
    space: str,
    *writes: Write,
    checks: Sequence[Check] = (),
    at: int | None = None,
    token: bytes | None = None,
    retry_of: int | None = None,
) -> Conflict:
    """Apply one batch that must be refused with a conflict."""
    outcome = await outcome_of(store, space, *writes, checks=checks, at=at, token=token, retry_of=retry_of)
    assert type(outcome) is Conflict, outcome
    return outcome


async def outcome_of(
    store: Store,
    space: str,
    *writes: Write,
    checks: Sequence[Check] = (),
    at: int | None = None,
    token: bytes | None = None,
    retry_of: int | None = None,
) -> Outcome:
    """Apply one batch and return its outcome."""
    [outcome] = await store.apply([Batch(space, writes, checks, at=at, token=token, retry_of=retry_of)])
    return outcome


async def entry_of(store: Store, space: str, key: bytes) -> Entry | None:
    """Return one key's entry."""
    return (await store.read(space, [key])).entries[0]


async def value_of(store: Store, space: str, key: bytes) -> bytes | None:
    """Return one key's value."""
    entry = await entry_of(store, space, key)
    return None if entry is None else entry.value


async def revision_of(store: Store, space: str) -> int:
    """Return the number of the last batch applied to the space."""
    return (await store.read(space, [])).revision


async def scanned(
    store: Store, space: str, prefix: bytes, *, limit: int = 256, reverse: bool = False
) -> list[Entry]:
    """Return all entries under a prefix, page by page."""
    entries: list[Entry] = []
    after: bytes | None = None
    while True:
        page = await store.scan(space, prefix, after=after, limit=limit, reverse=reverse)
        entries += page.entries
        if page.next is None:
            return entries
        assert after is None or (page.next < after if reverse else page.next > after), (
            "the scan does not move on"
        )
        after = page.next


async def changed(store: Store, space: str, after: int = 0) -> list[Change]:
    """Return all changes after a revision, page by page, ordered by revision and key."""
    items: list[Change] = []
    while True:
        changes = await store.changes(space, after)
        items += changes.items
        if changes.upto == after:
            return sorted(items, key=lambda change: (change.revision, change.key))
        after = changes.upto


async def is_invalid(work: Coroutine[Any, Any, object]) -> InvalidError:
    """Return the `InvalidError` that the call must raise."""
    with pytest.raises(InvalidError) as caught:
        await work
    assert str(caught.value), "the error does not say what is wrong"
    return caught.value


async def put_away(store: Store, *spaces: str) -> None:
    """Drop the further spaces that a test made."""
    for space in spaces:
        await store.drop(space)
