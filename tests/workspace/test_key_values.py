"""Key-value stores: each keeps bytes by name; a disk keeps to its limit, a cache shows nothing old."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from typing import Any

import pytest

from keepstate import Cache, Disk, InvalidError, StoreFullError
from keepstate._files import make_folder
from keepstate.kv import KVStore
from keepstate.workspace import Memory, kv
from tests.processes import Program
from tests.workspace.plain import Plain

PART = "keepstate:object/state/00aa"
"""A key whose value follows from it."""


@pytest.fixture(params=["memory", "disk", "cache", "plain"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> KVStore:
    made: dict[str, Callable[[], KVStore]] = {
        "memory": Memory,
        "disk": lambda: Disk(tmp_path / "disk"),
        "cache": lambda: Cache(Disk(tmp_path / "disk")),
        "plain": Plain,
    }
    return made[request.param]()


def test_what_was_set_is_got_until_it_is_deleted(store: KVStore) -> None:
    store.set("a", b"1")
    store.set("a", b"\xd7\x00")
    store.set_many({PART: b"part", "ä/🙂": b""})

    assert store.get("a") == b"\xd7\x00"
    assert dict(store.get_many(["a", PART, "gone"])) == {"a": b"\xd7\x00", PART: b"part"}
    assert sorted(store.keys()) == sorted(["a", PART, "ä/🙂"])
    assert list(store.keys("keepstate:")) == [PART]
    assert dict(store.items("ä")) == {"ä/🙂": b""}
    store.delete(PART)
    store.delete(PART)
    assert store.get(PART) is None and PART not in store and "a" in store


def test_a_swap_needs_the_value_that_it_expects(store: KVStore) -> None:
    swap = getattr(store, "cas", None)
    if swap is None:
        assert isinstance(store, Plain)
        return

    assert swap("head", None, b"1")
    assert not swap("head", None, b"2")
    assert not swap("head", b"0", b"2")
    assert swap("head", b"1", b"2")
    assert store.get("head") == b"2"


def test_a_large_value_comes_back_and_leaves_nothing_when_replaced(tmp_path: Path) -> None:
    store = Disk(tmp_path)
    large = os.urandom(3 << 20)
    store.set("large", large)

    assert store.get("large") == large
    assert dict(store.get_many(["large", "none"])) == {"large": large}
    for turn in range(3):
        store.set("large", os.urandom(3 << 20) + bytes([turn]))
    store.set("large", b"small")
    assert dict(store.items()) == {"large": b"small"}
    assert _parts(store) == 0


def test_threads_that_use_a_disk_first_share_one_handle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both, opened = Barrier(2), list[str]()

    def meet(path: str) -> None:
        opened.append(path)
        with suppress(BrokenBarrierError):
            both.wait(0.3)
        make_folder(path)

    monkeypatch.setattr(kv, "make_folder", meet)
    store = Disk(tmp_path)
    with ThreadPoolExecutor(2) as threads:
        for number in threads.map(lambda number: store.set(str(number), b"x") or number, range(2)):
            assert store.get(str(number)) == b"x"

    assert sorted(store.keys()) == ["0", "1"]
    assert len(opened) == 1


def test_many_values_are_written_and_read_together(tmp_path: Path) -> None:
    store = Disk(tmp_path)
    values = {f"key {n}": os.urandom(20_000) for n in range(1_500)}
    store.set_many(values)

    assert store.get_many(list(values)) == values


def test_a_disk_that_is_full_refuses_and_keeps_all_it_has(tmp_path: Path) -> None:
    store = Disk(tmp_path, size_limit=10_000)
    kept = {f"k{n}": bytes(1_000) for n in range(9)}
    store.set_many(kept)

    for _ in range(3):
        with pytest.raises(StoreFullError, match="its limit is 10000"):
            store.set("one more", bytes(2_000))
        with pytest.raises(StoreFullError):
            store.cas("k0", bytes(1_000), bytes(5_000))
    assert dict(store.items()) == kept
    store.delete("k0")
    store.set("one more", bytes(1_500))
    assert sorted(store.keys()) == [*(f"k{n}" for n in range(1, 9)), "one more"]


@pytest.mark.parametrize("size", [10, 1_000, 3_000, 50_000])
def test_a_folder_takes_little_more_than_what_is_counted(tmp_path: Path, size: int) -> None:
    values = {f"k{n:06}": os.urandom(size) for n in range(6_000_000 // (size + 100))}
    counted = len(values) * (size + 7)
    spare = max(counted * 2 // 5, 64 * len(values))
    store = Disk(tmp_path)

    store.set_many(values)
    for n in range(100):
        store.set(f"k{n:06}", values[f"k{n:06}"])
    opened = sum(file.stat().st_size for file in tmp_path.iterdir())
    store.close()

    assert opened <= counted + spare + (13 << 20)
    assert (tmp_path / "disk.db").stat().st_size <= counted + spare
    assert (tmp_path / "disk.db-wal").stat().st_size == 0


def test_a_disk_counts_what_is_replaced_once(tmp_path: Path) -> None:
    store = Disk(tmp_path, size_limit=5_000)
    for _ in range(50):
        store.set("same", bytes(3_000))

    store.close()
    again = Disk(tmp_path, size_limit=5_000)
    with pytest.raises(StoreFullError):
        again.set("other", bytes(3_000))
    again.close()
    Disk(tmp_path).set("other", bytes(3_000))


def test_a_disk_opened_again_has_what_it_had(tmp_path: Path) -> None:
    store = Disk(tmp_path / "deep" / "folder")
    store.set("a", b"1")
    store.close()

    assert store.get("a") == b"1"  # which opens it again
    assert Disk(tmp_path / "deep" / "folder").get("a") == b"1"
    assert pickle.loads(pickle.dumps(store)).get("a") == b"1"


def test_processes_that_swap_lose_no_increment(tmp_path: Path) -> None:
    source = f"""
from keepstate import Disk
store = Disk({os.fspath(tmp_path)!r})
done = 0
while done < 50:
    before = store.get("n")
    done += store.cas("n", before, str(int(before or b"0") + 1).encode())
store.close()
"""
    workers = [Program("-W", "error", "-c", source) for _ in range(3)]

    assert [worker.wait(timeout=60) for worker in workers] == [0, 0, 0]
    assert Disk(tmp_path).get("n") == b"150"


def test_a_cache_asks_once_for_what_can_never_change() -> None:
    behind = Plain()
    behind.values = {PART: b"part", "head": b"1"}
    cache = Cache(behind)

    assert [cache.get(PART) for _ in range(3)] == [b"part"] * 3
    assert behind.asked == [PART]


def test_a_cache_never_shows_an_old_head() -> None:
    behind = Memory()
    one, other = Cache(behind), Cache(behind)
    one.set("head", b"1")

    assert other.get("head") == b"1"
    one.set("head", b"2")
    assert other.get("head") == b"2"
    assert one.cas("head", b"2", b"3") and other.get("head") == b"3"
    one.delete("head")
    assert other.get("head") is None


def test_a_cache_keeps_to_its_size_and_lets_the_oldest_go() -> None:
    behind = Plain()
    cache = Cache(behind, max_bytes=10 * (len(PART) + 101))
    for n in range(20):
        cache.set(f"{PART}{n % 10}{n // 10}", bytes(100))

    behind.asked.clear()
    cache.get_many([f"{PART}{n}1" for n in range(10)])
    assert len(behind.asked) <= 1
    behind.asked.clear()
    cache.get_many([f"{PART}{n}0" for n in range(10)])
    assert len(behind.asked) == 10
    behind.asked.clear()
    cache.set(PART, bytes(10_000))  # larger than all of it
    assert cache.get(f"{PART}90") == bytes(100) and behind.asked == []


def test_a_cache_has_a_swap_if_its_store_has() -> None:
    assert hasattr(Cache(Memory()), "cas")
    assert not hasattr(Cache(Plain()), "cas")


@pytest.mark.parametrize(
    "wrong",
    [
        lambda path: Disk(path, size_limit=0),
        lambda path: Disk(3),
        lambda path: Cache(Memory(), max_bytes=-1),
        lambda path: Cache(Cache),
        lambda path: Disk(path).set("a", "text"),
        lambda path: Disk(path).get("x" * 600),
        lambda path: Disk(path).set("", b""),
        lambda path: Memory().set("a", "text"),
        lambda path: Disk(path / "file").get("a"),
    ],
)
def test_wrong_arguments_are_refused(wrong: Callable[[Any], object], tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(InvalidError):
        wrong(tmp_path)


def test_a_memory_stays_in_its_process() -> None:
    with pytest.raises(TypeError, match="Use a Disk"):
        pickle.dumps(Memory())


def test_a_store_of_ones_own_needs_four_methods() -> None:
    class Half(KVStore):
        def get(self, key: str) -> bytes | None:
            return None

        def set_many(self, values: Mapping[str, bytes]) -> None: ...

        def get_many(self, keys: Collection[str]) -> Mapping[str, bytes]:
            return {}

    with pytest.raises(TypeError, match="abstract"):
        Half()  # type: ignore[abstract]


def _parts(store: Disk) -> int:
    from keepstate._finish import finish
    from keepstate.engine.kernel import layout

    executor = store._blobs._executor
    return len(finish(finish(executor.store()).scan(executor.stored_name, layout.PARTS)).entries)
