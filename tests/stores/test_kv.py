"""A store over a caller's key-value store: what a history needs of one, and a clear no to the rest."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.errors import CompactedError, CorruptError, HistoryLostError, UnsupportedError
from keepstate.stores.clock_leaps import LEAP_MS
from keepstate.stores.kv import KeyValueStore
from keepstate.stores.protocol import Applied, Batch, Check, Conflict, Delete, Leap, Put
from keepstate.testing.clocks import ManualClock
from keepstate.workspace import Memory

OBJECT, HEAD = b"\x00object", b"\x02branch"


@pytest.fixture
def values() -> Memory:
    return Memory()


@pytest.fixture
def store(values: Memory) -> Iterator[KeyValueStore]:
    opened = finish(KeyValueStore(values, runner=ThreadRunner()).open())
    yield opened
    finish(opened.close())


def apply(store: KeyValueStore, *batches: Batch) -> list[object]:
    return list(finish(store.apply(batches)))


def revision_of(store: KeyValueStore) -> int:
    return finish(store.read("s", [])).revision


def test_a_batch_writes_both_kinds_and_counts(store: KeyValueStore) -> None:
    [first] = apply(store, Batch("s", [Put(OBJECT, b"o"), Put(HEAD, b"h")]))
    [second] = apply(store, Batch("s", [Put(HEAD, b"i")]))

    assert isinstance(first, Applied) and isinstance(second, Applied)
    assert (first.revision, second.revision) == (1, 2)
    reading = finish(store.read("s", [HEAD, b"\x01none", OBJECT]))
    head, none, entry = reading.entries
    assert head is not None and none is None and entry is not None
    assert (head.value, head.version, head.created) == (b"i", 2, 1)
    assert (entry.value, entry.version) == (b"o", 1)


def test_a_batch_that_fails_a_check_changes_nothing(store: KeyValueStore, values: Memory) -> None:
    apply(store, Batch("s", [Put(OBJECT, b"o"), Put(HEAD, b"h")]))
    before = dict(values.items())
    refused = apply(
        store,
        Batch("s", [Put(b"\x00p", b""), Put(HEAD, b"x")], [Check(HEAD, version=0)]),
        Batch("s", [Delete(HEAD)], [Check(OBJECT, version=7)]),
        Batch("s", [Delete(HEAD)], [Check(HEAD, created=2)]),
        Batch("s", [Delete(HEAD)], at=9),
    )

    assert refused == [Conflict(HEAD, 1), Conflict(OBJECT, 1), Conflict(HEAD, 1), Conflict(None, 1)]
    assert dict(values.items()) == before


def test_two_handles_on_one_swapping_store_judge_what_is_there(store: KeyValueStore, values: Memory) -> None:
    other = finish(KeyValueStore(values, runner=ThreadRunner()).open())
    apply(store, Batch("s", [Put(HEAD, b"1")]))
    [late] = apply(other, Batch("s", [Put(HEAD, b"2")], [Check(HEAD, version=0)]))

    assert late == Conflict(HEAD, 1)
    finish(other.close())


def test_a_head_that_moved_under_a_batch_is_judged_again(store: KeyValueStore, values: Memory) -> None:
    other = finish(KeyValueStore(values, runner=ThreadRunner()).open())
    swap = values.cas
    steps = iter([lambda: apply(other, Batch("s", [Put(HEAD, b"theirs")]))])

    def late(key: str, expected: bytes | None, value: bytes) -> bool:
        for step in steps:
            step()
        return swap(key, expected, value)

    values.cas = late  # type: ignore[method-assign]
    [mine] = apply(store, Batch("s", [Put(b"\x02tag", b"mine")], [Check(HEAD, version=0)]))

    assert mine == Conflict(HEAD, 1)
    assert finish(store.read("s", [b"\x02tag"])).entries == [None]
    finish(other.close())


def test_a_scan_pages_over_each_section_in_both_directions(store: KeyValueStore) -> None:
    puts = [Put(section + b"%02d" % n, b"v") for section in (b"\x00a", b"\x02a") for n in range(5)]
    apply(store, Batch("s", puts))

    for prefix in (b"\x00a", b"\x02a"):
        for reverse in (False, True):
            keys: list[bytes] = []
            after: bytes | None = None
            while True:
                page = finish(store.scan("s", prefix, after=after, limit=2, reverse=reverse))
                keys += [entry.key for entry in page.entries]
                after = page.next
                if after is None:
                    break
            assert keys == sorted((put.key for put in puts if put.key.startswith(prefix)), reverse=reverse)


def test_what_is_deleted_is_gone_and_a_dropped_space_goes_on_counting(
    store: KeyValueStore, values: Memory
) -> None:
    apply(store, Batch("a/b", [Put(OBJECT, b"o"), Put(HEAD, b"h")]), Batch("c", [Put(HEAD, b"h")]))
    apply(store, Batch("a/b", [Delete(OBJECT)]))

    assert list(values.keys("keepstate:object/")) == []
    assert finish(store.spaces()) == ["a/b", "c"]
    finish(store.drop("a/b"))
    finish(store.drop("never"))
    assert finish(store.spaces()) == ["c"]
    assert finish(store.read("a/b", [HEAD])).revision == 3


def test_it_has_no_log_and_says_so(store: KeyValueStore) -> None:
    apply(store, Batch("s", [Put(HEAD, b"h")]))

    assert finish(store.changes("s", 1)).items == ()
    with pytest.raises(CompactedError, match="has no log"):
        finish(store.changes("s", 0))
    with pytest.raises(HistoryLostError):
        finish(store.changes("s", 2))


@pytest.mark.parametrize("put", [Put(b"\x01e", b"", stamp=True), Put(b"\x02l", b"", ttl_ms=5)])
def test_what_it_cannot_do_is_refused_before_anything_is_done(store: KeyValueStore, put: Put) -> None:
    with pytest.raises(UnsupportedError, match="stores histories"):
        finish(store.apply([Batch("s", [put])]))

    assert revision_of(store) == 0


@pytest.mark.parametrize("place", ["keepstate:head/s", f"keepstate:object/s/{OBJECT.hex()}"])
def test_damage_is_named(store: KeyValueStore, values: Memory, place: str) -> None:
    apply(store, Batch("s", [Put(OBJECT, b"o"), Put(HEAD, b"h")]))
    values.set(place, (values.get(place) or b"")[:-2] + b"?" if "head" in place else b"?")

    with pytest.raises(CorruptError, match="is damaged"):
        finish(store.read("s", [OBJECT]))


def test_a_space_keeps_its_last_leap(values: Memory) -> None:
    clock = ManualClock()
    store = finish(KeyValueStore(values, runner=ThreadRunner(), clock=clock).open())
    assert finish(store.last_leap("s")) is None
    first_ms = clock.now_ms()
    apply(store, Batch("s", [Put(HEAD, b"1")]))
    clock.advance(LEAP_MS)
    apply(store, Batch("s", [Put(HEAD, b"2")]))
    assert finish(store.last_leap("s")) == Leap(1, 0, first_ms)

    clock.advance(LEAP_MS + 1)
    finish(store.read("s", [HEAD]))
    apply(store, Batch("s", [Put(HEAD, b"3")]))
    finish(store.drop("s"))

    assert finish(store.last_leap("s")) == Leap(3, first_ms + LEAP_MS, clock.now_ms())
    finish(store.close())


def test_the_sizes_of_its_parts_are_those_of_head_and_objects(store: KeyValueStore) -> None:
    apply(store, Batch("s", [Put(OBJECT, b"o"), Put(HEAD, b"h"), Put(b"\x02tag", b"")]))
    apply(store, Batch("s", [Put(OBJECT, b"oo"), Delete(HEAD)]))

    sizes = finish(store.sizes("s"))

    assert sizes.parts == {b"\x00": (1, len(OBJECT) + 2), b"\x02": (1, len(b"\x02tag"))}
    assert sizes.revision == 2
