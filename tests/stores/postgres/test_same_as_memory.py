"""The server's functions answer the same batches as the state machine that says the rules plainest."""

from __future__ import annotations

import random
from collections.abc import Iterator

import msgspec
import pytest

from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.stores.base import StoreBase
from keepstate.stores.memory import MemoryStore
from keepstate.stores.postgres import PostgresStore
from keepstate.stores.protocol import Applied, Batch, Check, Conflict, Delete, Outcome, Put, Write
from keepstate.testing.clocks import ManualClock
from tests.stores.postgres.conftest import Rows

STEPS = 250
FAR_MS = 4_000_000_000_000
"""A time that the server's own clock has not reached: there a space's time is what the test says."""
SPACES = ("s", "t\x00/ü")
KEYS = [bytes([section]) + name for section in (0, 1, 2) for name in (b"a", b"b", b"ab", b"a\x00", b"\xff")]
TOKENS = [None, None, b"t1", b"t2", b"t3\x00\xff"]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(FAR_MS)


@pytest.fixture
def memory(clock: ManualClock) -> Iterator[MemoryStore]:
    store = finish(MemoryStore(runner=ThreadRunner(), clock=clock).open())
    yield store
    finish(store.close())


@pytest.mark.parametrize("seed", range(8))
def test_random_histories_are_judged_alike(
    seed: int, memory: MemoryStore, store: PostgresStore, admin: Rows, clock: ManualClock
) -> None:
    dice = random.Random(seed)
    begin(memory, store, admin)
    for _ in range(STEPS):
        revisions = [finish(memory.read(space, ())).revision for space in SPACES]
        count = 1 if dice.random() < 0.7 else 2
        batches = [random_batch(dice, SPACES[i], revisions[i]) for i in dice.sample((0, 1), count)]

        expected, found = finish(memory.apply(batches)), finish(store.apply(batches))

        assert [told(outcome) for outcome in found] == [told(outcome) for outcome in expected], batches
        if dice.random() < 0.2:
            pass_time(dice.choice((1, 40, 5_000, 3_600_000)), clock, admin)
        if dice.random() < 0.03:
            space = dice.choice(SPACES)
            finish(memory.drop(space))
            finish(store.drop(space))
        if dice.random() < 0.05:
            assert finish(store.sweep(limit=1_000)) == finish(memory.sweep(limit=1_000))
        for space in SPACES:
            assert observed(store, space) == observed(memory, space)
        assert finish(store.spaces()) == finish(memory.spaces())


@pytest.mark.parametrize("seed", range(4))
def test_batches_of_one_call_are_judged_in_their_order(
    seed: int, memory: MemoryStore, store: PostgresStore
) -> None:
    dice = random.Random(seed)
    for _ in range(60):
        revisions = {space: finish(memory.read(space, ())).revision for space in SPACES}
        batches = [
            random_batch(dice, space, revisions[space] + dice.randrange(4), lasting=True)
            for space in dice.choices(SPACES, k=dice.randrange(2, 20))
        ]

        expected, found = finish(memory.apply(batches)), finish(store.apply(batches))

        assert [told(outcome)[:2] for outcome in found] == [told(outcome)[:2] for outcome in expected], (
            batches
        )
        for space in SPACES:
            assert finish(store.changes(space, 0, limit=10_000)).items == (
                finish(memory.changes(space, 0, limit=10_000)).items
            )


def begin(memory: MemoryStore, store: PostgresStore, admin: Rows) -> None:
    """Give both stores the same spaces, far in the future."""
    batches = [Batch(space, [Put(b"\x01begin", b"")], token=b"begin") for space in SPACES]
    finish(memory.apply(batches))
    finish(store.apply(batches))
    admin.execute("UPDATE keepstate.space SET clock_ms = %s", [FAR_MS])
    admin.execute("UPDATE keepstate.log SET now_ms = %s", [FAR_MS])


def pass_time(ms: int, clock: ManualClock, admin: Rows) -> None:
    clock.advance(ms)
    admin.execute("UPDATE keepstate.space SET clock_ms = %s", [clock.now_ms()])


def random_batch(dice: random.Random, space: str, revision: int, *, lasting: bool = False) -> Batch:
    writes: dict[bytes, Write] = {}
    for _ in range(dice.choice((0, 1, 1, 1, 2, 3))):
        key = dice.choice(KEYS)
        ttl_ms = None if lasting else dice.choice((None, None, 30, 4_000))
        kind = dice.random()
        value = dice.randbytes(dice.randrange(4))
        writes[key] = Delete(key) if kind < 0.3 else Put(key, value, ttl_ms=ttl_ms, stamp=kind > 0.8)
    checks: list[Check] = []
    for _ in range(dice.choice((0, 0, 0, 1, 1, 2))):
        number = dice.choice((0, dice.randrange(revision + 1), revision))
        by_version = dice.random() < 0.6
        checks.append(
            Check(dice.choice(KEYS), number if by_version else None, None if by_version else number)
        )
    token = dice.choice(TOKENS)
    return Batch(
        space,
        list(writes.values()),
        checks,
        at=revision if dice.random() < 0.15 else None,
        token=token,
        retry_of=dice.randrange(revision + 1) if token and dice.random() < 0.3 else None,
    )


def told(outcome: Outcome) -> tuple[object, ...]:
    """Return what an outcome says; last its time, which two clocks may tell differently."""
    if isinstance(outcome, Exception):
        return (type(outcome),)
    if isinstance(outcome, Conflict):
        return Conflict, (outcome.key, outcome.actual)
    return Applied, outcome.revision, outcome.now_ms


def observed(store: StoreBase, space: str) -> object:
    """Return all that reading tells of a space, in pages of a few sizes."""
    scans = [
        finish(store.scan(space, bytes([section]), limit=limit, reverse=reverse))
        for section in (0, 1, 2)
        for limit in (2, 256)
        for reverse in (False, True)
    ]
    after = [
        finish(store.scan(space, b"\x01a", after=b"\x01ab", reverse=reverse)) for reverse in (False, True)
    ]
    reading = finish(store.read(space, KEYS))
    ones = [finish(store.read(space, [key])).entries[0] for key in KEYS]
    pages = [msgspec.structs.replace(page, nonce=b"") for page in (*scans, *after)]  # nonces are random
    return reading, ones, pages, log_of(store, space)


def log_of(store: StoreBase, space: str) -> object:
    floor = 0
    while True:
        try:
            pages = finish(store.changes(space, floor)), finish(store.changes(space, floor, limit=3))
            return [(page.items, page.upto, page.floor) for page in pages]  # nonces are random
        except Exception as error:  # the only one that says where to go on
            floor = getattr(error, "floor", None) or 0
            if not floor:
                raise
