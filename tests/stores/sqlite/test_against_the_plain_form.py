"""SQLite answers as the plainest form of the rules does, whatever is asked of both in whatever order."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.errors import CompactedError, HistoryLostError, KeepstateError
from keepstate.stores.base import StoreBase
from keepstate.stores.memory import MemoryStore
from keepstate.stores.protocol import Batch, Changes, Check, Delete, Put
from keepstate.testing.clocks import ManualClock
from keepstate.values.key import stamp_suffix
from tests.crashes.kept_rows_stories import Stage

Step = Callable[[StoreBase], Coroutine[Any, Any, Any]]

SPACES = st.sampled_from(["a", "a\x00", "b", "é"])
KEYS = st.sampled_from(
    [b"\x00o", b"\x01a", b"\x01b", b"\x01b\xff", b"\x02d", b"\x02e", b"\x01s" + stamp_suffix(2, 0)]
)
PREFIXES = st.sampled_from([b"\x00", b"\x01", b"\x02", b"\x01b", b"\x01s"])
REVISIONS = st.integers(0, 6)
PUTS = st.builds(
    Put,
    KEYS | st.just(b"\x01s"),
    st.binary(max_size=4),
    ttl_ms=st.none() | st.integers(1, 40),
    stamp=st.just(False),
)
STAMPED = st.builds(Put, st.sampled_from([b"\x01s", b"\x02s"]), st.binary(max_size=4), stamp=st.just(True))
WRITES = st.lists(
    PUTS | STAMPED | st.builds(Delete, KEYS),
    max_size=4,
    unique_by=lambda write: (write.key, getattr(write, "stamp", False)),
)
CHECKS = st.lists(
    st.builds(Check, KEYS, version=REVISIONS) | st.builds(Check, KEYS, created=REVISIONS), max_size=2
)
TOKENS = st.none() | st.sampled_from([b"t", b"u"])


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    token = draw(TOKENS)
    return Batch(
        draw(SPACES),
        draw(WRITES),
        draw(CHECKS) if draw(st.booleans()) else (),
        at=draw(st.none() | REVISIONS) if draw(st.booleans()) else None,
        token=token,
        retry_of=None if token is None else draw(st.none() | REVISIONS),
    )


def applying(batch: Batch) -> Step:
    return lambda store: store.apply([batch])


def reading(space: str, keys: list[bytes]) -> Step:
    return lambda store: store.read(space, keys)


def scanning(space: str, prefix: bytes, limit: int, reverse: bool) -> Step:
    async def scan(store: StoreBase) -> list[Any]:
        pages = [await store.scan(space, prefix, limit=limit, reverse=reverse)]
        while (after := pages[-1].next) is not None:
            pages.append(await store.scan(space, prefix, after=after, limit=limit, reverse=reverse))
        return [msgspec.structs.replace(page, nonce=b"") for page in pages]  # drawn by each store

    return scan


def following(space: str, after: int, limit: int) -> Step:
    async def follow(store: StoreBase) -> Changes:
        changes = await store.changes(space, after, limit=limit)
        return msgspec.structs.replace(changes, nonces={})  # drawn by each store

    return follow


def listing(prefix: str, after: str | None, limit: int) -> Step:
    return lambda store: store.spaces(prefix, after=after, limit=limit)


def dropping(space: str) -> Step:
    return lambda store: store.drop(space)


def sweeping() -> Step:
    return lambda store: store.sweep()


STEPS = st.one_of(
    st.builds(applying, batches()),
    st.builds(applying, batches()),
    st.builds(reading, SPACES, st.lists(KEYS, max_size=3)),
    st.builds(scanning, SPACES, PREFIXES, st.integers(1, 3), st.booleans()),
    st.builds(following, SPACES, REVISIONS, st.integers(1, 3)),
    st.builds(listing, st.sampled_from(["", "a"]), st.none() | SPACES, st.integers(1, 3)),
    st.builds(dropping, SPACES),
    st.builds(sweeping),
    st.integers(0, 30),
)


def answer(store: StoreBase, step: Step) -> object:
    """Return what a step gives, errors as what a caller can tell of them."""
    try:
        given_back = finish(step(store))
    except (CompactedError, HistoryLostError) as error:
        return type(error), str(error), vars(error)
    if isinstance(given_back, list):
        return [(type(item), str(item)) if isinstance(item, KeepstateError) else item for item in given_back]
    return given_back


@given(st.lists(STEPS, max_size=40))
def test_every_answer_is_that_of_the_plain_form(steps: list[Step | int]) -> None:
    with two_processes() as (sqlite, _, plain, clock):
        for step in steps:
            if isinstance(step, int):
                clock.advance(step)
            else:
                assert answer(sqlite, step) == answer(plain, step)


@given(st.lists(st.tuples(st.booleans(), STEPS), max_size=40))
def test_two_processes_answer_as_one_plain_form(steps: list[tuple[bool, Step | int]]) -> None:
    """Each keeps rows from one write to its next one."""
    with two_processes() as (sqlite, other, plain, clock):
        for is_other, step in steps:
            if isinstance(step, int):
                clock.advance(step)
            else:
                assert answer(other if is_other else sqlite, step) == answer(plain, step)


@contextmanager
def two_processes() -> Generator[tuple[StoreBase, StoreBase, StoreBase, ManualClock]]:
    """Yield two handles on one file, whose writers are those of two processes, and the plain form."""
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(Path(folder))
        plain = finish(MemoryStore(runner=ThreadRunner(), clock=stage.clock).open())
        try:
            yield stage.us, stage.others, plain, stage.clock
        finally:
            finish(plain.close())
            stage.close()
