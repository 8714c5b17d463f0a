"""Keys are replaced while others read and write: nothing is lost, and no version moves."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

import keepstate
from keepstate import CorruptError, EncryptedStore, KeyRing, sync
from keepstate._finish import finish
from keepstate.engine.space.keepstate import Keepstate
from keepstate.opening import source_of
from keepstate.stores.memory import MemoryStore
from keepstate.stores.protocol import Applied, Batch, Check, Conflict, Delete, Put
from keepstate.testing.clocks import ManualClock
from keepstate.testing.store_contract.stage import applied, entry_of, refused, scanned
from keepstate.values import limits

A, B, DOC, LOG, OBJECT = b"\x01a", b"\x01b", b"\x02doc", b"\x01log/", b"\x00object"
LARGE = Random(7).randbytes(3_000_000)


@pytest.fixture
def newest() -> bytes:
    return KeyRing.new_key()


@pytest.fixture
def both(plain: MemoryStore, store: EncryptedStore, key: bytes, newest: bytes) -> EncryptedStore:
    return finish(EncryptedStore(plain, KeyRing(newest, key), clock=ManualClock()).open())


def fill(store: EncryptedStore) -> None:
    for i in range(3):
        writes = [Put(A, b"%d" % i), Put(DOC, b"%d" % i), Put(OBJECT, b"o"), Put(LOG, b"e", stamp=True)]
        finish(applied(store, "s", *writes))
    finish(applied(store, "t", Put(B, b"lives", ttl_ms=60_000)))


def test_new_writes_use_the_newest_key_and_old_ones_stay_readable(
    store: EncryptedStore, both: EncryptedStore, plain: MemoryStore, newest: bytes
) -> None:
    fill(store)

    finish(both.apply([Batch("s", [Put(B, b"new")])]))

    reading = finish(both.read("s", [A, B]))
    assert [entry and entry.value for entry in reading.entries] == [b"2", b"new"]
    stored = finish(plain.read("s", [B])).entries[0]
    assert stored is not None
    assert stored.value[1:9] == KeyRing(newest).newest_id
    with pytest.raises(CorruptError, match="not in the ring"):
        finish(store.read("s", [B]))


def test_rotation_lets_the_old_key_go(
    store: EncryptedStore, both: EncryptedStore, plain: MemoryStore, newest: bytes
) -> None:
    fill(store)
    sections = (b"\x00", b"\x01", b"\x02")
    before = [finish(scanned(both, space, section)) for space in "st" for section in sections]

    count = finish(both.rotate())

    alone = finish(EncryptedStore(plain, KeyRing(newest)).open())
    after = [finish(scanned(alone, space, section)) for space in "st" for section in sections]
    assert after == before
    assert count == sum(len(entries) for entries in before) + 1  # the store's own record
    assert finish(alone.rotate()) == 0


def test_checks_against_versions_from_before_a_rotation_hold(
    store: EncryptedStore, both: EncryptedStore
) -> None:
    fill(store)
    finish(both.rotate())

    done = finish(applied(both, "s", Put(A, b"3"), checks=[Check(A, version=3), Check(DOC, version=3)]))
    assert finish(refused(both, "s", Put(A, b"4"), checks=[Check(A, version=3)])) == Conflict(
        A, done.revision
    )
    assert finish(refused(both, "s", Put(A, b"4"), checks=[Check(DOC, version=1)])) == Conflict(DOC, 3)
    assert finish(refused(both, "s", Put(A, b"4"), checks=[Check(DOC, created=2)])) == Conflict(DOC, 1)


def test_more_checks_than_one_read_holds_stand_on_versions_from_before_a_rotation(
    store: EncryptedStore, both: EncryptedStore
) -> None:
    keys = [b"\x01%02d" % number for number in range(3 * (limits.READ_BYTES // limits.VALUE_BYTES))]
    finish(applied(store, "s", *(Put(key, b"1") for key in keys)))
    finish(both.rotate())

    checks = [Check(key, version=1) for key in keys]

    assert finish(applied(both, "s", Put(A, b"all are as they were"), checks=checks)).revision > 1
    stale = [*checks[:-1], Check(keys[-1], version=99)]
    assert finish(refused(both, "s", Put(A, b"one is not"), checks=stale)) == Conflict(keys[-1], 1)


def test_a_rotation_is_no_change_of_a_value(store: EncryptedStore, both: EncryptedStore) -> None:
    fill(store)
    finish(both.rotate())
    finish(both.apply([Batch("s", [Put(DOC, b"3")])]))
    finish(both.apply([Batch("s", [Delete(DOC)])]))

    changes = finish(both.changes("s", 0))

    values = [(change.old, change.new) for change in changes.items if change.key == DOC]
    assert values == [(None, b"0"), (b"0", b"1"), (b"1", b"2"), (b"2", b"3"), (b"3", None)]


def test_what_is_written_during_a_rotation_stays(store: EncryptedStore, both: EncryptedStore) -> None:
    """The store under the rotation answers a page, and somebody writes before it is put back."""
    fill(store)
    plain = both._store
    told = plain.read

    async def read(space: str, keys: Any, *, at_ms: int | None = None) -> object:
        if not keys and space == "s":
            await both.apply([Batch("s", [Put(A, b"meanwhile")])])
        return await told(space, keys, at_ms=at_ms)

    plain.read = read  # type: ignore[method-assign, assignment]
    finish(both.rotate())
    plain.read = told  # type: ignore[method-assign]

    entry = finish(both.read("s", [A])).entries[0]
    assert entry is not None
    assert entry.value == b"meanwhile"


def test_a_rotation_that_was_ended_goes_on_where_it_was(
    store: EncryptedStore, both: EncryptedStore, plain: MemoryStore
) -> None:
    fill(store)
    told = plain.apply_checked
    calls: list[str] = []

    async def dies(batches: list[Batch], sizes: list[int]) -> object:
        calls.append(batches[0].space)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return await told(batches, sizes)

    plain.apply_checked = dies  # type: ignore[method-assign, assignment]
    with pytest.raises(KeyboardInterrupt):
        finish(both.rotate())
    plain.apply_checked = told  # type: ignore[method-assign]

    assert 0 < finish(both.rotate()) < 8
    assert finish(both.rotate()) == 0


def test_time_to_live_goes_on_and_expires(
    store: EncryptedStore, both: EncryptedStore, clock: ManualClock
) -> None:
    fill(store)
    before = finish(entry_of(both, "t", B))
    finish(both.rotate())

    after = finish(entry_of(both, "t", B))
    assert before == after
    clock.advance(60_000)
    assert finish(entry_of(both, "t", B)) is None


def test_parts_of_a_space_work_on_after_a_rotation(store: EncryptedStore, both: EncryptedStore) -> None:
    """What counts on versions must not notice: a stream's last position, a task that is ready."""

    async def before(ks: Keepstate) -> tuple[int, int, int]:
        space = ks.space("run")
        position = await space.events.append("happened")
        version = await space.documents.put("plan", {"step": 1})
        await space.queue.put("work", id="task")
        lease = await space.leases.acquire("gpu", ttl_s=60)
        return position, version, lease.token

    async def after(ks: Keepstate, position: int, version: int, token: int) -> None:
        space = ks.space("run")
        assert await space.events.last() == position
        await space.events.append("more", expected=position)
        await space.documents.put("plan", {"step": 2}, expected_version=version)
        (task,) = await space.queue.claim("worker", lease_s=60)
        assert task.payload == "work"
        await task.complete()
        assert [event.data for event in await space.events.read()] == ["happened", "more"]
        with pytest.raises(keepstate.ConflictError):
            await space.documents.put("plan", {}, expected_version=version)

    known = finish(before(Keepstate(source_of(store, "blocking"))))
    finish(both.rotate())
    finish(after(Keepstate(source_of(both, "blocking")), *known))


def test_collecting_parts_spares_those_in_use_after_a_rotation(
    store: EncryptedStore, both: EncryptedStore
) -> None:
    async def put(ks: Keepstate) -> None:
        await ks.space("run").documents.put("large", LARGE)
        await ks.space("run").documents.put("old", LARGE[::-1])

    async def collect(ks: Keepstate) -> int:
        await ks.space("run").documents.delete("old")
        removed = await ks.sweep()
        assert await ks.space("run").documents.get("large") == LARGE
        return removed

    finish(put(Keepstate(source_of(store, "blocking"))))
    finish(both.rotate())

    assert finish(collect(Keepstate(source_of(both, "blocking")))) > 0


def test_a_tenant_s_rotation_leaves_the_rest_of_the_store_under_the_older_key(
    store: EncryptedStore, both: EncryptedStore
) -> None:
    with sync.open(store) as ks:
        for handle in (ks, ks.tenant("t1"), ks.tenant("t10")):
            handle.space("s").documents.put("k", 1)

    with sync.open(both) as ks:
        rotated = [ks.tenant(id).rotate() for id in ("t1", "t1", "absent", "t10")]
        assert rotated == [2, 0, 0, 2]  # the document, and the space's grant
        assert ks.rotate() == 2  # its own space, and what all values of the store are bound to


def test_outcomes_of_several_batches_keep_their_places(store: EncryptedStore, both: EncryptedStore) -> None:
    fill(store)
    finish(both.rotate())

    outcomes = finish(
        both.apply(
            [
                Batch("s", [Put(A, b"3")], [Check(A, version=3)]),
                Batch("s", [Put(B, b"3")], [Check(B, version=3)]),
                Batch("t", [Put(A, b"3")], [Check(B, version=1)]),
            ]
        )
    )

    assert [type(outcome) for outcome in outcomes] == [Applied, Conflict, Applied]
