"""What is done to a store is written down, survives the writer, and is settled afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from keepstate_testing.proof import (
    History,
    RecordedStore,
    Recorder,
    Refused,
    Took,
    load,
    read_end,
    settle,
    witness,
)

from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import InvalidError, OutcomeUnknownError, StoreFullError, StoreUnavailableError
from keepstate.opening import source_of
from keepstate.stores.memory import MemoryStore
from keepstate.stores.protocol import Batch, Check, Outcome, Put
from keepstate.stores.wrappers.wrapper import StoreWrapper
from keepstate.values.key import BY_KEY, stored_key

SPACE = "space"
KEYS = tuple(stored_key(BY_KEY, number) for number in range(6))
ALL = stored_key(BY_KEY)


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    opened = finish(MemoryStore(runner=ThreadRunner()).open())
    yield opened
    finish(opened.close())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "0.history"


def recorded(store: MemoryStore, path: Path) -> RecordedStore:
    return RecordedStore(store, Recorder(path), launch=1)


def history_of(path: Path) -> History:
    return load([path])[SPACE]


def test_all_that_the_engine_does_is_written_down_and_is_right(store: MemoryStore, path: Path) -> None:
    ks = Keepstate(source_of(recorded(store, path), "blocking"))
    space = ks.space(SPACE)

    async def work() -> None:
        await space.documents.update("n", lambda n: n + 1, default=0)
        await space.queue.put("payload", id="t")
        [task] = await space.queue.claim("w", lease_s=9)
        await task.complete("result")
        async with await space.leases.acquire("l", ttl_s=9) as lease, space.transaction(lease=lease) as tx:
            await tx.documents.put("fenced", lease.token)

    finish(work())

    history = history_of(path)
    assert len(history.attempts) == 7
    assert witness(history, finish(read_end(store, SPACE))).found == []


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("after", [None, ALL, KEYS[0], KEYS[3]])
@pytest.mark.parametrize("limit", [1, 2, 9])
def test_a_scan_that_overlooks_a_key_is_found_in_every_direction(
    store: MemoryStore, path: Path, reverse: bool, after: bytes | None, limit: int
) -> None:
    over = recorded(store, path)
    finish(over.apply([Batch(SPACE, [Put(key, b"") for key in KEYS])]))
    page = finish(over.scan(SPACE, ALL, after=after, limit=limit, reverse=reverse))
    end = finish(read_end(store, SPACE))
    history = history_of(path)

    assert witness(history, end).found == []
    for entry in page.entries:
        left_out = history.looks[0].found.pop(entry.key)
        assert witness(history, end).counts()["disordered"] == 1
        history.looks[0].found[entry.key] = left_out


def test_what_was_written_before_a_cut_is_read(store: MemoryStore, path: Path) -> None:
    over = recorded(store, path)
    finish(over.apply([Batch(SPACE, [Put(KEYS[0], b"")])]))
    finish(over.read(SPACE, KEYS))
    whole = path.read_bytes()

    seen: list[int] = []
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        histories = load([path])
        seen.append(histories[SPACE].operations if SPACE in histories else 0)

    assert seen == sorted(seen)
    assert set(seen) == {0, 1, 2}


def test_a_batch_whose_sender_died_is_open(store: MemoryStore, path: Path) -> None:
    finish(recorded(store, path).apply([Batch(SPACE, [Put(KEYS[0], b"")])]))
    begun = path.read_bytes()
    path.write_bytes(begun[: 4 + int.from_bytes(begun[:4])])

    assert history_of(path).attempts[0].answer is None


class Silent(MemoryStore):
    """Applies or does not, and says nothing of it."""

    applies = True
    silent = True

    async def apply_checked(self, batches: Sequence[Batch], sizes: Sequence[int]) -> list[Outcome]:
        outcomes = await super().apply_checked(batches, sizes) if self.applies else []
        if not self.silent:
            return outcomes
        return [OutcomeUnknownError("the reply was lost", token=batch.token) for batch in batches]


@pytest.mark.parametrize(("applies", "answer"), [(True, Took), (False, Refused)])
def test_an_open_batch_is_settled(applies: bool, answer: type[object], path: Path) -> None:
    store = Silent(runner=ThreadRunner())
    finish(store.open())
    store.applies = applies
    finish(recorded(store, path).apply([Batch(SPACE, [Put(KEYS[0], b"")])]))
    history = history_of(path)
    assert history.attempts[0].answer is None

    store.applies, store.silent = True, False
    finish(settle(store, history.attempts))

    assert isinstance(history.attempts[0].answer, answer)
    assert witness(history, finish(read_end(store, SPACE))).found == []
    finish(store.close())


class Failing(MemoryStore):
    """Applies, and says that it could not."""

    failure: StoreUnavailableError | StoreFullError

    async def apply_checked(self, batches: Sequence[Batch], sizes: Sequence[int]) -> list[Outcome]:
        await super().apply_checked(batches, sizes)
        return [self.failure for _ in batches]


@pytest.mark.parametrize("failure", [StoreUnavailableError("not reached"), StoreFullError("no room")])
def test_what_was_told_not_to_be_written_and_is_there_is_a_ghost(
    failure: StoreUnavailableError | StoreFullError, path: Path
) -> None:
    store = Failing(runner=ThreadRunner())
    finish(store.open())
    store.failure = failure
    finish(recorded(store, path).apply([Batch(SPACE, [Put(KEYS[0], b"")])]))

    found = witness(history_of(path), finish(read_end(store, SPACE)))

    assert found.counts()["ghosts"] == 1
    finish(store.close())


def test_a_refusal_tells_what_was_found(store: MemoryStore, path: Path) -> None:
    over = recorded(store, path)
    finish(over.apply([Batch(SPACE, [Put(KEYS[0], b"")])]))
    finish(over.apply([Batch(SPACE, [Put(KEYS[0], b"")], [Check(KEYS[0], version=0)])]))

    refused = history_of(path).attempts[1].answer

    assert isinstance(refused, Refused)
    assert (refused.key, refused.actual) == (KEYS[0], 1)


def test_each_of_several_batches_is_one_operation(store: MemoryStore, path: Path) -> None:
    over = recorded(store, path)
    finish(over.apply([Batch(SPACE, [Put(key, b"")]) for key in KEYS]))

    history = history_of(path)

    assert len({attempt.token for attempt in history.attempts}) == len(KEYS)
    assert witness(history, finish(read_end(store, SPACE))).found == []


def test_what_another_wrapper_hands_on_is_written_down(store: MemoryStore, path: Path) -> None:
    outer = StoreWrapper(recorded(store, path))
    batches = [Batch(SPACE, [Put(KEYS[0], b"")])]
    finish(outer.apply_checked(batches, outer.check_batches(batches)))

    assert len(history_of(path).attempts) == 1


def test_a_recorded_space_is_not_dropped(store: MemoryStore, path: Path) -> None:
    with pytest.raises(InvalidError, match="take another space"):
        finish(recorded(store, path).drop(SPACE))
