"""An observer hears of each operation; without one, nothing of it runs."""

from __future__ import annotations

import asyncio
import logging
import pickle
import sys
from collections.abc import AsyncGenerator, Callable, Iterator
from types import FrameType
from typing import Any

import pytest

import keepstate
from keepstate import sync
from keepstate.engine.documents.documents import Documents
from keepstate.engine.kernel import observation
from keepstate.engine.kernel.executor import SpaceExecutor
from keepstate.engine.kernel.observation import Operation
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space
from keepstate.errors import ConflictError, InvalidError

BEFORE = 2
"""The revision of the space at the beginning of a test: the tenant's grant, and a first write."""


class Heard:
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.begun: list[Operation] = []
        self.ended: list[Operation] = []

    def begin(self, operation: Operation) -> None:
        assert (operation.error, operation.duration_s, operation.revision) == (None, 0, 0)
        self.begun.append(operation)

    def end(self, operation: Operation) -> None:
        self.ended.append(operation)

    def take(self, *, after: int = BEFORE) -> list[tuple[str, int, int]]:
        """Return name, attempts and revision, counted from one, of what has ended, and forget it."""
        ended, self.ended = self.ended, []
        return [(each.name, each.attempts, max(each.revision - after, 0)) for each in ended]


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def watched(url: str, heard: Heard, opened: list[Keepstate]) -> Iterator[Space]:
    with sync.open(url) as before:
        before.tenant("t").space("run/1").events.append("before")
        opened.append(keepstate.open(url, observe=heard, author="me"))
        yield opened[-1].tenant("t").space("run/1")


async def test_each_operation_has_a_beginning_and_an_end(watched: Space, heard: Heard) -> None:
    await watched.documents.put("n", 1)
    await watched.documents.get("n")
    await watched.documents.update("n", lambda n: n + 1)
    await watched.documents.document("n", int).update(lambda n: n + 1)
    names = watched.documents.keys()
    assert [name async for name in names] == ["n"]
    await watched.events.append("a")
    await watched.queue.put("work")
    await watched.revision()

    assert [each.name for each in heard.begun] == [each.name for each in heard.ended]
    first = heard.ended[0]
    assert (first.space, first.tenant, first.author, first.parent) == ("run/1", "t", "me", None)
    assert first.duration_s > 0
    assert heard.take() == [
        ("documents.put", 1, 1),
        ("documents.get", 1, 0),
        ("documents.update", 1, 2),
        ("documents.update_typed", 1, 3),
        ("documents.keys", 0, 0),
        ("events.append", 1, 4),
        ("queue.put", 1, 5),
        ("space.revision", 0, 0),
    ]


async def test_operations_of_a_transaction_name_it(watched: Space, heard: Heard) -> None:
    async with watched.transaction() as tx:
        await tx.documents.put("a", 1)
        await tx.by("you").events.append("b")
    await watched.transact(lambda tx: tx.documents.put("c", 1))

    assert [(each.name, each.parent and each.parent.name, each.author) for each in heard.ended] == [
        ("documents.put", "space.transaction", "me"),
        ("events.append", "space.transaction", "you"),
        ("space.transaction", None, "me"),
        ("documents.put", "space.transaction", "me"),
        ("space.transaction", "space.transact", "me"),
        ("space.transact", None, "me"),
    ]
    assert [name for name in heard.take() if name[0].startswith("space")] == [
        ("space.transaction", 1, 1), ("space.transaction", 1, 2), ("space.transact", 1, 2),
    ]  # fmt: skip


async def test_attempts_and_errors_are_told(watched: Space, heard: Heard) -> None:
    other = watched.by("other")
    calls = 0

    async def once_disturbed(tx: Any) -> None:
        nonlocal calls
        calls += 1
        await tx.documents.get("n")
        if calls == 1:
            await other.documents.put("n", 1)
        await tx.documents.put("n", 2)

    await watched.transact(once_disturbed)
    with pytest.raises(ConflictError) as caught:
        await watched.documents.put("n", 3, expected_version=99)

    *_, transact, put = heard.ended
    assert (transact.name, transact.attempts, transact.revision, transact.error) == (
        "space.transact",
        2,
        BEFORE + 2,
        None,
    )
    assert (put.attempts, put.revision, put.error) == (1, 0, caught.value)
    assert type(heard.ended[3].error).__name__ == "ConflictError", "the first transaction"


async def test_an_iteration_that_is_left_has_ended(watched: Space, heard: Heard) -> None:
    for name in ("a", "b"):
        await watched.documents.put(name, name)
    heard.take()
    names = watched.documents.keys()
    async for _ in names:
        await watched.documents.get("a")
        break
    await names.aclose()  # type: ignore[attr-defined]

    assert heard.take() == [("documents.get", 1, 0), ("documents.keys", 0, 0)]
    assert heard.ended == []


async def test_an_iteration_that_is_left_is_over_before_its_end_is_told(watched: Space, heard: Heard) -> None:
    left: list[int] = []

    async def numbers() -> AsyncGenerator[int]:
        try:
            yield 1
        finally:
            left.append(len(heard.ended))

    observation, operation = watched.executor.begin_operation("documents.keys", watched)
    items = observation.iterate(operation, numbers())
    assert await anext(items) == 1
    await items.aclose()

    assert (left, len(heard.ended)) == ([0], 1)


async def test_operations_at_once_are_told_apart(watched: Space, heard: Heard) -> None:
    await asyncio.gather(*(watched.documents.put(str(n), n) for n in range(8)))

    assert {each.parent for each in heard.ended} == {None}
    assert sorted(revision for _, _, revision in heard.take()) == list(range(1, 9))


async def test_work_without_a_public_call_is_named_by_its_function(watched: Space, heard: Heard) -> None:
    lease = await watched.leases.acquire("l", 60)
    await lease.renew()
    await lease.release()

    assert [name for name, _, _ in heard.take()] == ["leases.acquire", "lease.renew", "lease.release"]


async def test_a_handle_tells_of_its_own_operations(watched: Space, heard: Heard) -> None:
    home: Any = watched.executor.home
    await watched.documents.put("a", 1)
    assert [name async for name in home.spaces()] == ["run/1"]
    await home.drop("run/1")

    assert [(each.name, each.space) for each in heard.ended][1:] == [
        ("keepstate.spaces", None), ("keepstate.drop", None),
    ]  # fmt: skip


async def test_an_observer_that_raises_harms_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def begin(self, operation: Operation) -> None:
            raise RuntimeError("broken")

        end = begin

    caplog.set_level(logging.ERROR, "keepstate.engine")
    async with keepstate.open("memory://", observe=Broken()) as ks:
        assert await ks.space("a").documents.put("a", 1) == 1

    assert [record.message.endswith("failed for documents.put") for record in caplog.records] == [True, True]


def test_blocking_operations_are_told_alike(url: str, heard: Heard) -> None:
    with keepstate.sync.open(url, observe=heard) as ks:
        space = ks.space("run/1")
        space.documents.put("a", 1)
        assert list(space.documents.keys()) == ["a"]
        with space.transaction() as tx:
            tx.documents.put("a", 2)

    assert heard.take(after=0) == [
        ("documents.put", 1, 1),
        ("documents.keys", 0, 0),
        ("documents.put", 0, 0),
        ("space.transaction", 1, 2),
    ]


def test_a_wrong_observer_is_refused() -> None:
    for wrong in (1, len, object()):
        with pytest.raises(InvalidError, match="`observe`"):
            keepstate.open("memory://", observe=wrong)  # type: ignore[arg-type]


# ---- without an observer


def lines_run(work: Callable[[], object]) -> list[str]:
    """Return the functions of the module of observation that some work calls."""
    called: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename == observation.__file__:
            called.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return called


def test_without_an_observer_nothing_of_it_runs(heard: Heard) -> None:
    def use(ks: Any) -> None:
        space = ks.space("run/1")
        space.documents.put("a", 1)
        space.documents.update("a", lambda n: n + 1)
        assert list(space.documents.keys()) == ["a"]
        with space.transaction() as tx:
            tx.documents.get("a")
            tx.events.append(1)
        space.transact(lambda tx: tx.documents.put("b", 1))

    with keepstate.sync.open("memory://") as ks:
        assert lines_run(lambda: use(ks)) == []
    with keepstate.sync.open("memory://", observe=heard) as ks:
        assert "run" in lines_run(lambda: use(ks))


async def test_without_an_observer_the_classes_are_the_plain_ones(space: Space) -> None:
    assert (type(space), type(space.documents)) == (Space, Documents)
    assert type(space.executor) is SpaceExecutor


async def test_an_observed_space_is_one_that_can_be_pickled(url: str) -> None:
    if url.startswith("memory"):
        return
    async with keepstate.open(url, observe=logging_observer) as ks:
        copy = pickle.loads(pickle.dumps(ks.space("a")))
        assert isinstance(copy, Space)
        assert await copy.documents.put("a", 1) == 1
        await copy.executor.home.close()


class _LoggingObserver:
    def begin(self, operation: Operation) -> None:
        pass

    end = begin

    def __reduce__(self) -> str:
        return "logging_observer"


logging_observer = _LoggingObserver()
