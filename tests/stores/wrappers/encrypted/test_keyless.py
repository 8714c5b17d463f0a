"""An encrypted store that is opened without its keys: looked at, and never written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

import keepstate
from keepstate import CorruptError, EncryptedStore, InvalidError, KeyRing, sync
from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.cli import exits
from keepstate.cli.app import run
from keepstate.stores.memory import MemoryStore
from keepstate.stores.protocol import ENCRYPTION_SPACE, Applied, Batch, Check, Delete, Put
from keepstate.stores.wrappers.keyless import RECORD, KeylessStore, reject_writes_if_encrypted
from keepstate.sync import of

RING = KeyRing(bytes(range(32)))
WRITES: dict[str, Callable[[Any], Any]] = {
    "put": lambda space: space.documents.put("plan", 1),
    "new": lambda space: space.documents.put("other", 1),
    "large": lambda space: space.documents.put("other", Random(5).randbytes(3_000_000)),
    "append": lambda space: space.events.append("log", 1),
    "queue": lambda space: space.queue.put(1),
    "lease": lambda space: space.leases.acquire("gpu", ttl_s=60),
}


@pytest.fixture(params=["memory", "file", "sqlite", "redis", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param in ("redis", "postgres"):
        return str(request.getfixturevalue(f"{request.param}_url"))
    return {
        "memory": f"memory://{tmp_path.name}",
        "file": f"file:///{tmp_path}/s.keep",
        "sqlite": f"sqlite:///{tmp_path}/s.db",
    }[request.param]


def fill(ks: sync.Keepstate) -> None:
    ks.space("s").documents.put("plan", {"step": 1})
    ks.space("s").documents.put("large", Random(7).randbytes(3_000_000))


def test_no_kind_of_write_gets_in_without_the_keys(url: str) -> None:
    with sync.open(url, encryption=RING) as ks:
        fill(ks)
        before = ks.space("s").revision()
        with sync.open(url) as keyless:
            for write in WRITES.values():
                with pytest.raises(InvalidError, match=r"is encrypted. Open it with encryption=KeyRing\(…\)"):
                    write(keyless.space("s"))
            with suppress(InvalidError, CorruptError):
                keyless.space("s").documents.update("plan", {"step": 2})
            with suppress(InvalidError, CorruptError):
                keyless.space("s").documents.delete("plan")

        assert ks.space("s").revision() == before
        assert ks.space("s").documents.get("plan") == {"step": 1}


def test_no_kind_of_write_gets_in_from_an_event_loop(url: str) -> None:
    async def main() -> Any:
        async with keepstate.open(url, encryption=RING) as ks:
            await ks.space("s").documents.put("plan", {"step": 1})
            keyless = keepstate.open(url)  # opened by its first operation
            for write in WRITES.values():
                with pytest.raises(InvalidError, match="is encrypted"):
                    await write(keyless.space("s"))
            with pytest.raises(InvalidError, match="is encrypted"):
                await asyncio.to_thread(of(keyless).space("s").documents.put, "plan", 1)
            await keyless.close()
            return await ks.space("s").documents.get("plan")

    assert asyncio.run(main()) == {"step": 1}


def test_a_space_that_was_never_written_is_refused_too(url: str) -> None:
    with sync.open(url, encryption=RING), sync.open(url) as keyless:
        with pytest.raises(InvalidError, match="is encrypted"):
            keyless.space("new").documents.put("plan", 1)

        assert list(keyless.spaces()) == []


def test_a_sweep_without_the_keys_keeps_the_parts_of_large_values(url: str) -> None:
    with sync.open(url, encryption=RING) as ks:
        fill(ks)
        with sync.open(url) as keyless:
            assert keyless.sweep() == 0

        assert len(ks.space("s").documents.get("large")) == 3_000_000


def test_without_the_keys_spaces_are_listed_and_dropped(url: str) -> None:
    with sync.open(url, encryption=RING) as ks:
        fill(ks)
        with sync.open(url) as keyless:
            assert list(keyless.spaces()) == ["s"]
            keyless.drop("s")

        assert list(ks.spaces()) == []


def test_the_commands_that_only_look_work_and_put_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    with sync.open(url, encryption=RING) as ks:
        fill(ks)
    looks = (["doctor", "--verify", url], ["spaces", "--url", url], ["sweep", "--url", url])
    repair = ["repair", url, f"sqlite:///{tmp_path}/new.db"]

    assert [run(words) for words in (*looks, repair)] == [exits.OK] * 4
    assert run(["put", "s", "plan", "1", "--url", url]) != exits.OK
    assert "is encrypted" in capsys.readouterr().err
    with sync.open(f"sqlite:///{tmp_path}/new.db", encryption=RING) as ks:
        assert ks.space("s").documents.get("plan") == {"step": 1}
        assert len(ks.space("s").documents.get("large")) == 3_000_000


def test_a_batch_that_only_checks_is_answered() -> None:
    plain = finish(MemoryStore(runner=ThreadRunner()).open())
    finish(plain.apply([Batch(ENCRYPTION_SPACE, [Put(RECORD, b"sealed")])]))
    store = finish(reject_writes_if_encrypted(plain))

    (outcome,) = finish(store.apply([Batch("s", (), [Check(b"\x01k", version=0)])]))
    finish(store.close())

    assert isinstance(store, KeylessStore)
    assert isinstance(outcome, Applied)


def test_a_record_that_cannot_be_read_lets_nothing_be_written() -> None:
    class Damaged(MemoryStore):
        async def read(self, space: str, keys: Any, *, at_ms: int | None = None) -> Any:
            raise CorruptError("the page is damaged", url=self.url)

    store = finish(reject_writes_if_encrypted(finish(Damaged(runner=ThreadRunner()).open())))
    with pytest.raises(CorruptError, match="the page is damaged"):
        finish(store.apply([Batch("s", [Put(b"\x01k", b"")])]))
    finish(store.close())


# ---- the record that all values are bound to


def _opens(url: str) -> bool:
    with sync.open(url, encryption=RING) as ks:
        return bool(ks.space("s").documents.get("plan") == {"step": 1})


def test_no_handle_drops_the_record_of_an_encrypted_store(url: str) -> None:
    with sync.open(url, encryption=RING) as ks:
        fill(ks)
        with sync.open(url) as keyless:
            for handle in (keyless, ks):
                with pytest.raises(InvalidError, match="keepstate's own"):
                    handle.drop(ENCRYPTION_SPACE)
                with pytest.raises(InvalidError, match="keepstate's own"):
                    handle.space(ENCRYPTION_SPACE)
            for name in list(keyless.spaces()):
                assert name == "s"
            keyless.sweep()

        assert _opens(url)


def test_no_tenant_and_no_listing_leads_to_the_record(url: str) -> None:
    with sync.open(url, encryption=RING) as ks:
        fill(ks)
        with sync.open(url, tenant="keepstate:") as keyless:
            keyless.drop("encryption")
            assert list(keyless.spaces()) == []
        with sync.open(url) as keyless:
            assert list(keyless.spaces(ENCRYPTION_SPACE)) == []

        assert _opens(url)


@pytest.mark.parametrize("is_sealed", [True, False], ids=["encrypted", "with a damaged record"])
def test_the_store_of_a_keyless_handle_refuses_the_record_too(is_sealed: bool) -> None:
    plain = finish(MemoryStore(runner=ThreadRunner()).open())
    finish(plain.apply([Batch(ENCRYPTION_SPACE, [Put(RECORD, b"sealed")])]))
    store = finish(reject_writes_if_encrypted(plain))
    if not is_sealed:
        store = KeylessStore(plain, CorruptError("the record is damaged"))

    asked = (
        store.drop(ENCRYPTION_SPACE),
        store.read(ENCRYPTION_SPACE, [RECORD]),
        store.scan(ENCRYPTION_SPACE, b""),
        store.changes(ENCRYPTION_SPACE, 0),
        store.apply([Batch(ENCRYPTION_SPACE, [Delete(RECORD)])]),
        store.apply([Batch(ENCRYPTION_SPACE, (), [Check(RECORD, version=1)])]),
    )
    for question in asked:
        with pytest.raises(InvalidError, match="which encryption reserves"):
            finish(question)

    assert finish(store.spaces(limit=1)) == []
    assert finish(plain.read(ENCRYPTION_SPACE, [RECORD])).entries[0] is not None
    finish(plain.close())


def test_the_store_with_the_keys_refuses_its_own_record_too(
    store: EncryptedStore, plain: MemoryStore
) -> None:
    delete = Batch(ENCRYPTION_SPACE, [Delete(RECORD)])
    asked = (
        store.drop(ENCRYPTION_SPACE),
        store.read(ENCRYPTION_SPACE, [RECORD]),
        store.scan(ENCRYPTION_SPACE, b""),
        store.changes(ENCRYPTION_SPACE, 0),
        store.apply([delete]),
        store.apply_checked([delete], [100]),
    )
    for question in asked:
        with pytest.raises(InvalidError, match="which encryption reserves"):
            finish(question)

    assert finish(store.spaces(limit=1)) == []
    assert finish(plain.read(ENCRYPTION_SPACE, [RECORD])).entries[0] is not None


def test_the_record_takes_no_place_in_a_page_of_spaces(store: EncryptedStore) -> None:
    names = ["a", "zebra"]
    for name in names:
        finish(store.apply([Batch(name, [Put(b"\x01k", b"1")])]))

    pages: list[list[str]] = []
    while page := finish(store.spaces(after=pages[-1][-1] if pages else None, limit=1)):
        pages.append(list(page))

    assert pages == [["a"], ["zebra"]] and names[0] < ENCRYPTION_SPACE < names[1]


def test_a_handle_over_the_sealed_values_lists_no_record(store: EncryptedStore, plain: MemoryStore) -> None:
    """What is handed over is not looked at, so that the handle itself hides the record."""
    assert finish(store.spaces()) == []

    with sync.open(plain) as ks:
        assert list(ks.spaces()) == list(ks.spaces(ENCRYPTION_SPACE)) == []
        with pytest.raises(InvalidError, match="keepstate's own"):
            ks.drop(ENCRYPTION_SPACE)


def test_no_space_of_that_name_is_made_in_a_store_that_is_not_encrypted() -> None:
    with sync.open("memory://") as ks, pytest.raises(InvalidError, match="keepstate's own"):
        ks.space(ENCRYPTION_SPACE).documents.put("plan", 1)


def test_no_command_shows_or_drops_the_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    with sync.open(url, encryption=RING) as ks:
        fill(ks)

    assert run(["spaces", "--url", url]) == exits.OK
    assert run(["ls", ENCRYPTION_SPACE, "--url", url]) == exits.USAGE
    assert run(["sweep", "--url", url]) == exits.OK

    assert ENCRYPTION_SPACE not in capsys.readouterr().out
    assert _opens(url)
