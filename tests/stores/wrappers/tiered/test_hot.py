"""What a handle remembers spares calls to the cold store, and is never behind what it should be."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from keepstate import TieredStore
from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.stores.memory import MemoryStore
from keepstate.stores.protocol import Batch, Check, Delete, Put
from keepstate.testing.clocks import ManualClock
from tests.stores.wrappers.tiered.counting import CountedMemory, put, values

A, B, C, OBJECT = b"\x01a", b"\x02b", b"\x01c", b"\x00o"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def other(clock: ManualClock, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MemoryStore]:
    """Another handle on the cold store, as another process has one."""
    name = str(tmp_path_factory.mktemp("cold"))
    store = finish(MemoryStore(name=name, runner=ThreadRunner(), clock=clock).open())
    for key in (A, B, C):
        finish(put(store, key, b"1"))
    yield store
    finish(store.close())


@pytest.fixture
def cold(other: MemoryStore, clock: ManualClock) -> CountedMemory:
    return CountedMemory(name=other._name, runner=ThreadRunner(), clock=clock)


@pytest.fixture
def store(cold: CountedMemory, clock: ManualClock) -> Iterator[TieredStore]:
    store = finish(TieredStore(cold=cold, clock=clock).open())
    yield store
    finish(store.close())


@pytest.fixture
def lazy(cold: CountedMemory, clock: ManualClock) -> Iterator[TieredStore]:
    """One that asks again after five seconds."""
    store = finish(TieredStore(cold=cold, max_staleness_s=5, clock=clock).open())
    yield store
    finish(store.close())


def test_what_had_not_expired_at_a_time_is_found_there_although_it_is_known_to_be_gone(
    lazy: TieredStore, other: MemoryStore, clock: ManualClock
) -> None:
    finish(other.apply([Batch("s", [Put(b"\x01t", b"1", ttl_ms=1_000)])]))
    before_ms = clock.now_ms()
    clock.advance(1_500)
    assert finish(lazy.read("s", [b"\x01t"])).entries == [None]

    past = finish(lazy.read("s", [b"\x01t"], at_ms=before_ms)).entries

    assert [entry and entry.value for entry in past] == [b"1"]


def test_reading_again_asks_for_the_revision_and_for_no_key(store: TieredStore, cold: CountedMemory) -> None:
    finish(values(store, A, B))

    assert finish(values(store, A, B)) == [b"1", b"1"]
    assert cold.asked == [2, 0]


def test_only_what_is_not_remembered_is_asked_for(store: TieredStore, cold: CountedMemory) -> None:
    finish(values(store, A))

    assert finish(values(store, B, A)) == [b"1", b"1"]
    assert cold.asked == [1, 1]


def test_what_others_write_is_read_at_once(store: TieredStore, other: MemoryStore) -> None:
    for i in range(5):
        finish(put(other, A, b"%d" % i))

        assert finish(values(store, A)) == [b"%d" % i]


def test_what_others_leave_alone_is_remembered(
    store: TieredStore, cold: CountedMemory, other: MemoryStore
) -> None:
    finish(values(store, A, B))
    finish(put(other, C, b"2"))
    finish(put(other, B, b"2"))

    assert finish(values(store, A)) == [b"1"]
    assert finish(values(store, A, B)) == [b"1", b"2"]
    assert (cold.asked, cold.looked) == ([2, 0, 1], [3])


def test_an_own_write_behind_that_of_another_hides_no_change(store: TieredStore, other: MemoryStore) -> None:
    finish(values(store, A))
    finish(put(other, A, b"2"))
    finish(put(store, B, b"2"))

    assert finish(values(store, A)) == [b"2"]


def test_an_object_that_another_deletes_is_gone(store: TieredStore, other: MemoryStore) -> None:
    finish(put(store, OBJECT, b"1"))
    assert finish(values(store, OBJECT, A)) == [b"1", b"1"]

    finish(other.apply([Batch("s", [Delete(OBJECT)])]))

    assert finish(values(store, OBJECT)) == [None]


def test_an_object_that_another_deletes_is_gone_though_an_entry_beside_it_was_read_since(
    store: TieredStore, other: MemoryStore
) -> None:
    finish(put(other, OBJECT, b"1"))
    finish(values(store, A, OBJECT))
    finish(other.apply([Batch("s", [Delete(OBJECT)])]))

    assert finish(values(store, A)) == [b"1"]  # which the log shows to be unchanged, but never an object
    assert finish(values(store, OBJECT)) == [None]


def test_more_changes_than_a_log_is_asked_for_lose_nothing(store: TieredStore, other: MemoryStore) -> None:
    finish(values(store, A, B))
    finish(other.apply([Batch("s", [Put(C, b"%d" % i)]) for i in range(5000)]))
    finish(put(other, B, b"2"))

    assert finish(values(store, A)) == [b"1"]
    assert finish(values(store, A, B, C)) == [b"1", b"2", b"4999"]


def test_an_entry_expires_where_it_is_remembered(
    store: TieredStore, lazy: TieredStore, clock: ManualClock
) -> None:
    for handle in (store, lazy):
        finish(put(handle, A, b"2", ttl_ms=1000))
        assert finish(values(handle, A)) == [b"2"]

        clock.advance(1000)

        assert finish(values(handle, A)) == [None]


def test_no_more_is_remembered_than_fits(cold: CountedMemory, clock: ManualClock) -> None:
    store = finish(TieredStore(cold=cold, hot_bytes=10_000, clock=clock).open())
    for i in range(100):
        key = b"\x01%d" % i
        finish(put(store, key, bytes(500)))
        finish(values(store, key))

    hot = store._hot
    assert 5_000 < hot.size_bytes <= 10_000
    assert hot.size_bytes == sum(hot._order.values())
    assert sum(len(view.entries) for view in hot._views.values()) == len(hot)
    finish(store.close())


# ---- what need not be verified


def test_within_its_time_nobody_is_asked(lazy: TieredStore, cold: CountedMemory, clock: ManualClock) -> None:
    finish(values(lazy, A, B))
    clock.advance(5000)

    finish(values(lazy, A, B))
    finish(values(lazy, B))
    assert cold.asked == [2]
    clock.advance(1)
    finish(values(lazy, A))
    assert cold.asked == [2, 0]


def test_what_others_write_is_read_when_the_time_is_over(
    lazy: TieredStore, other: MemoryStore, clock: ManualClock
) -> None:
    finish(values(lazy, A))
    finish(put(other, A, b"2"))
    clock.advance(5001)

    assert finish(values(lazy, A)) == [b"2"]


def test_own_writes_are_read_at_once_in_both_modes(lazy: TieredStore) -> None:
    twin = finish(lazy.twin(ThreadRunner()).open())
    for i in range(4):
        writer, reader = (lazy, twin) if i % 2 else (twin, lazy)
        finish(values(reader, A, B))

        finish(put(writer, A, b"%d" % i))

        assert finish(values(reader, A, B)) == finish(values(writer, A, B)) == [b"%d" % i, b"1"]
    finish(twin.close())


def test_who_was_refused_reads_what_refused_him(lazy: TieredStore, other: MemoryStore) -> None:
    version = finish(lazy.read("s", [A])).revision
    finish(put(other, A, b"2"))

    finish(lazy.apply([Batch("s", [Put(A, b"3")], [Check(A, version=version)])]))

    assert finish(values(lazy, A)) == [b"2"]


def test_nobody_reads_behind_what_a_scan_or_the_log_has_told(lazy: TieredStore, other: MemoryStore) -> None:
    finish(values(lazy, A))
    finish(put(other, A, b"2"))
    finish(lazy.scan("s", b"\x01"))
    assert finish(values(lazy, A)) == [b"2"]

    finish(put(other, A, b"3"))
    finish(lazy.changes("s", 4))

    assert finish(values(lazy, A)) == [b"3"]


def test_a_dropped_space_is_not_remembered(lazy: TieredStore) -> None:
    finish(values(lazy, A))

    finish(lazy.drop("s"))

    assert finish(values(lazy, A)) == [None]


def test_the_present_revision_is_always_asked_for(lazy: TieredStore, other: MemoryStore) -> None:
    finish(lazy.read("s", [A]))
    finish(put(other, A, b"2"))

    assert finish(lazy.read("s", [])).revision == 4
