"""An encrypted store behind a handle: everything works, and nothing of it lies open."""

from __future__ import annotations

import asyncio
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import pytest

import keepstate
from keepstate import CorruptError, EncryptedStore, InvalidError, KeyRing, UnsupportedError, sync
from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.stores.memory import MemoryStore
from keepstate.stores.sqlite import SqliteStore
from keepstate.sync import of

SECRET = "the launch code is 0000"


def use(ks: sync.Keepstate) -> None:
    space = ks.space("run/42")
    space.documents.put("plan", {"code": SECRET})
    space.documents.put("large", [SECRET] + [i * i for i in range(400_000)])
    space.documents.update("plan", {"step": 2})
    space.events.append(SECRET, SECRET)
    space.queue.put(SECRET, id="task")
    with space.leases.acquire("gpu", ttl_s=60) as lease:
        assert lease.is_held()
    (task,) = space.queue.claim("worker", lease_s=60)
    task.complete(SECRET)
    assert space.documents.get("plan") == {"code": SECRET, "step": 2}
    assert space.documents.get("large")[:2] == [SECRET, 0]
    assert [event.data for event in space.events.read()] == [SECRET, SECRET]
    with space.documents.watch(after=0, timeout_s=0.01) as watch:
        assert [change.key for change in watch] == ["plan", "large", "plan"]


@pytest.mark.parametrize("url", ["sqlite:///{}/s.db", "file:///{}/s.keep", "memory://"])
def test_every_part_works_and_nothing_lies_open(tmp_path: Path, url: str) -> None:
    ring = KeyRing(KeyRing.new_key())
    with sync.open(url.format(tmp_path), encryption=ring) as ks:
        use(ks)
        assert list(ks.spaces()) == ["run/42"]

    files = [path.read_bytes() for path in tmp_path.iterdir() if path.is_file()]
    assert not any(SECRET.encode() in data for data in files)


def test_the_redis_server_never_sees_a_value(redis_url: str) -> None:
    with sync.open(redis_url, encryption=KeyRing(KeyRing.new_key())) as ks:
        use(ks)


def test_equal_parts_of_large_values_have_other_names_in_another_space_and_store() -> None:
    content = Random(7).randbytes(2_000_000)
    names: set[bytes] = set()
    for _ in range(2):
        plain = finish(MemoryStore(runner=ThreadRunner()).open())
        with sync.open(finish(EncryptedStore(plain, KeyRing(bytes(32))).open())) as ks:
            for space in ("a", "b"):
                ks.space(space).documents.put("large", content)
                assert ks.space(space).documents.get("large") == content
                names |= {entry.key for entry in finish(plain.scan(space, b"\x00")).entries}
        finish(plain.close())

    assert len(names) == 2 * 2 * 2  # two different parts in each of four spaces


def test_an_async_handle_s_blocking_twin_reads_the_same(tmp_path: Path) -> None:
    async def main() -> Any:
        url = f"sqlite:///{tmp_path}/s.db"
        async with keepstate.open(url, encryption=KeyRing(KeyRing.new_key())) as ks:
            await ks.space("s").documents.put("plan", SECRET)
            return await asyncio.to_thread(of(ks).space("s").documents.get, "plan")

    assert asyncio.run(main()) == SECRET


def test_a_passed_encrypted_store_has_a_blocking_twin(tmp_path: Path) -> None:
    async def main() -> Any:
        from keepstate.opening import source_of

        source = source_of(f"sqlite:///{tmp_path}/s.db", "async")
        plain: Any = await source.opened()
        store = await EncryptedStore(plain, KeyRing(KeyRing.new_key())).open()
        async with keepstate.open(store) as ks:
            await ks.space("s").documents.put("plan", SECRET)
            found = await asyncio.to_thread(of(ks).space("s").documents.get, "plan")
        await source.close()
        return found

    assert asyncio.run(main()) == SECRET


def test_opening_without_the_keys_says_that_it_is_encrypted(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    with sync.open(url, encryption=KeyRing(KeyRing.new_key())) as ks:
        ks.space("s").documents.put("plan", SECRET)

    with sync.open(url) as ks, pytest.raises(CorruptError, match="open the store with its KeyRing"):
        ks.space("s").documents.get("plan")
    with pytest.raises(CorruptError, match="not in the ring"):
        sync.open(url, encryption=KeyRing(KeyRing.new_key()))


def test_the_path_of_a_file_is_encrypted_as_its_url_is(tmp_path: Path) -> None:
    with sync.open(tmp_path / "s.db", encryption=KeyRing(bytes(32))) as ks:
        ks.space("s").documents.put("plan", SECRET)

    with sync.open(f"sqlite:///{tmp_path}/s.db") as ks, pytest.raises(CorruptError, match="encrypted"):
        ks.space("s").documents.get("plan")


def test_a_store_that_is_not_encrypted_has_no_keys_to_replace() -> None:
    with sync.open("memory://") as ks, pytest.raises(UnsupportedError, match="not encrypted"):
        ks.rotate()


def test_handles_with_one_ring_share_a_store_and_with_another_do_not(tmp_path: Path) -> None:
    url, ring = f"sqlite:///{tmp_path}/s.db", KeyRing(bytes(32))
    with sync.open(url, encryption=ring) as one, sync.open(url, encryption=ring) as same:
        assert one.store is same.store
        with sync.open(url, encryption=KeyRing(bytes(32))) as other:
            other.space("s").documents.put("plan", 1)
            assert other.store is not one.store
        assert one.space("s").documents.get("plan") == 1


def test_a_handle_with_keys_does_not_pickle(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    with (
        sync.open(url, encryption=KeyRing(bytes(32))) as ks,
        pytest.raises(TypeError, match="cannot be pickled"),
    ):
        pickle.dumps(ks)


def test_a_store_that_is_not_encrypted_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    url, ring = f"sqlite:///{tmp_path}/s.db", KeyRing(bytes(32))
    with sync.open(url) as ks:
        ks.space("s").documents.put("plan", 1)

    with pytest.raises(CorruptError, match="holds 's' and no record of encryption"):
        sync.open(url, encryption=ring)
    with sync.open(url) as ks:
        assert ks.space("s").documents.get("plan") == 1


def test_many_who_open_a_new_store_at_once_agree_on_its_record(tmp_path: Path) -> None:
    url, ring = f"sqlite:///{tmp_path}/s.db?durability=normal", KeyRing(bytes(32))

    def use(number: int) -> int:
        own = KeyRing(bytes(32))  # a ring of one's own is a store of one's own
        with sync.open(url, encryption=own) as ks:
            return ks.space(f"s{number}").documents.put("plan", number)

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(use, range(16))) == [1] * 16
    with sync.open(url, encryption=ring) as ks:
        assert [ks.space(f"s{number}").documents.get("plan") for number in range(16)] == list(range(16))


def test_a_lost_record_is_told_and_not_replaced(tmp_path: Path) -> None:
    url, ring = f"sqlite:///{tmp_path}/s.db", KeyRing(bytes(32))
    with sync.open(url, encryption=ring) as ks:
        ks.space("s").documents.put("plan", 1)
    raw = finish(SqliteStore(tmp_path / "s.db", runner=ThreadRunner()).open())
    finish(raw.drop("keepstate:encryption"))  # no handle does
    finish(raw.close())

    with pytest.raises(CorruptError, match="'keepstate:encryption' was lost"):
        sync.open(url, encryption=ring)


def test_keys_for_a_store_that_is_open_are_refused(plain: MemoryStore) -> None:
    with pytest.raises(InvalidError, match="EncryptedStore"):
        sync.open(plain, encryption=KeyRing(bytes(32)))


@pytest.mark.parametrize("encryption", [5, "a secret", b"a secret", bytes(32)])
def test_what_is_no_key_ring_is_refused_and_not_shown(encryption: Any) -> None:
    with pytest.raises(InvalidError, match=r"`encryption` is a (int|str|bytes); give a KeyRing") as refused:
        sync.open("memory://", encryption=encryption)

    assert "secret" not in str(refused.value)
