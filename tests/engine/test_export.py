"""Exporting a tenant and importing it again, on every backend."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import keepstate
from keepstate._runner import TaskRunner
from keepstate.engine.kernel import grants, layout
from keepstate.engine.space import export
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import AlreadyExistsError, CorruptError, InvalidError, NotAllowedError, NotFoundError
from keepstate.names import beginning, stored_name
from keepstate.stores.memory import MemoryHeap, MemoryStore
from keepstate.stores.protocol import Entry, Store
from tests.engine.test_erasure import Dying, KilledError, names_of

VALUES: dict[str, Any] = {
    "plain": {"step": 1, "of": ["a", None, True, 1.5]},
    "bytes": b"\x00\xff",
    "tuple": (1, {2, 3}),
    "time": datetime(2026, 1, 2, tzinfo=UTC),
    "decimal": Decimal("1.10"),
    "great": 2**80,
    "keys": {1: "a", (2, 3): "b"},
    "not a number": float("inf"),
    "é/✓ " + "n" * 490: "a long name",
    "large": "x" * (3 << 20),
}


async def fill(tenant: Keepstate) -> None:
    space = tenant.space("run/1")
    for key, value in VALUES.items():
        await space.documents.put(key, value)
    await space.documents.put("brief", 1, ttl_s=3600)
    await space.documents.delete("plain")
    await space.documents.put("plain", VALUES["plain"])
    for number in range(5):
        await space.events.stream("said").append({"n": number}, id=f"e{number}")
    for number in range(4):
        await space.queue.put({"n": number}, id=f"t{number}", priority=number)
    (task,) = await space.queue.claim("worker", lease_s=60)
    await task.complete({"done": True})
    recorded = tenant.space("run/2", record=True)
    for number in range(4):
        await recorded.documents.put("plan", {"step": number})
    await tenant.space("empty").documents.put("k", 1)
    await tenant.space("empty").documents.delete("k")
    await tenant.space("gone").documents.put("k", 1)
    await tenant.drop("gone")


async def entries_of(store: Store, space: str) -> list[Entry]:
    found: list[Entry] = []
    for section in (b"\x00", b"\x01", b"\x02"):
        after = None
        while True:
            page = await store.scan(space, section, after=after)
            found += page.entries
            if (after := page.next) is None:
                break
    return [entry for entry in found if not entry.key.startswith(layout.GRANTS)]


async def test_a_tenant_comes_back_from_its_export_as_it_was(ks: Keepstate, tmp_path: Path) -> None:
    one, other = ks.tenant("a"), ks.tenant("b/é")
    await fill(one)
    path = tmp_path / "a.jsonl"

    exported = await one.export(path)
    imported = await other.import_(path)

    assert (imported.spaces, imported.entries, imported.expired) == (3, exported.entries, 0)
    assert await names_of(other) == await names_of(one) == ["empty", "run/1", "run/2"]
    for name in await names_of(one):
        before = await entries_of(ks.store, stored_name("a", name))
        after = await entries_of(ks.store, stored_name("b/é", name))
        assert [_lasting(entry) for entry in after] == [_lasting(entry) for entry in before]
    space = other.space("run/1")
    assert {key: await space.documents.get(key) for key in VALUES} == VALUES
    entry = await space.documents.entry("brief")
    assert entry is not None and entry.expires_at is not None
    assert [event.data["n"] for event in await space.events.stream("said").read()] == list(range(5))
    assert (await space.queue.counts())["done"] == 1
    log = [commit.number async for commit in other.space("run/2").history.log()]
    assert log == [commit.number async for commit in one.space("run/2").history.log()]
    await space.events.stream("said").append({"n": 5})
    await other.space("run/2", record=True).documents.put("plan", {"step": 4})
    assert not (await other.space("run/2").history.verify()).problems


def _lasting(entry: Entry) -> tuple[object, ...]:
    if entry.expires_at_ms is not None:
        return entry.key, entry.value
    return entry.key, entry.value, max(entry.version, 2), max(entry.created, 2)


async def test_a_person_reads_the_file_and_only_its_owner_may(ks: Keepstate, tmp_path: Path) -> None:
    await fill(ks.tenant("a"))
    path = tmp_path / "a.jsonl"

    exported = await ks.tenant("a").export(path)

    lines = [json.loads(line) for line in path.read_text().splitlines()]
    documents = {line["document"]: line for line in lines if "document" in line}
    assert lines[0] == {"keepstate": "export", "format": 1, "tenant": "a"}
    assert documents["plain"]["value"] == VALUES["plain"]
    assert "stored" not in documents["plain"] and "key" not in documents["plain"]
    assert documents["tuple"]["value"]["@type"] == "tuple"
    assert [line["value"]["n"] for line in lines if line.get("event") == "said"] == list(range(5))
    whole = path.read_bytes()
    assert hashlib.sha256(whole[: whole.rindex(b"{")]).hexdigest() == lines[-1]["sha256"] == exported.sha256
    assert (path.stat().st_mode & 0o777, path.stat().st_size) == (0o600, exported.size_bytes)
    assert sorted(each.name for each in tmp_path.iterdir() if "jsonl" in each.name) == ["a.jsonl"]


async def small(ks: Keepstate, path: Path) -> None:
    await ks.tenant("a").space("run/1").documents.put("plan", "SECRET")
    await ks.tenant("a").space("run/2").documents.put("plan", 2)
    await ks.tenant("a").export(path)


async def test_a_truncated_or_changed_file_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    async with keepstate.open("memory://") as ks:
        path, bad = tmp_path / "a.jsonl", tmp_path / "bad.jsonl"
        await small(ks, path)
        whole = path.read_bytes()
        ends = [at + 1 for at, byte in enumerate(whole) if byte == 10]
        wrongs = [whole[:end] for end in [*range(0, len(whole), 7), *ends[:-1]]]
        wrongs += [whole.replace(b"SECRET", b"SACRED"), whole + b"{}\n", whole + whole]
        wrongs += [
            whole.replace(b'"space":"run/2"', b'"space":"run/0"'),
            b"[]\n",
            b"\xff\n",
            whole[ends[0] :],
        ]
        for wrong in wrongs:
            bad.write_bytes(wrong)
            with pytest.raises((CorruptError, InvalidError)):
                await ks.tenant("b").import_(bad)
        assert await ks.store.spaces(beginning("b")) == []
        assert (await ks.tenant("b").import_(path)).entries == 2


async def test_an_import_that_skips_the_check_of_the_file_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "_verify", _verify_nothing(export._verify))

    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        await test_a_truncated_or_changed_file_is_refused_and_nothing_is_written(tmp_path)


def _verify_nothing(verify: Any) -> Any:
    def accept(file: Any, path: str) -> Any:
        try:
            return verify(file, path)
        except CorruptError:
            return [], "0"

    return accept


async def test_links_and_existing_files_are_left_alone(tmp_path: Path) -> None:
    async with keepstate.open("memory://") as ks:
        path = tmp_path / "a.jsonl"
        await small(ks, path)
        link = tmp_path / "link.jsonl"
        link.symlink_to(path)
        dangling = tmp_path / "dangling.jsonl"
        dangling.symlink_to(tmp_path / "nothing")

        for taken in (path, link, dangling):
            with pytest.raises(AlreadyExistsError, match="exists already"):
                await ks.tenant("a").export(taken)
        with pytest.raises(InvalidError, match="is a symbolic link"):
            await ks.tenant("b").import_(link)
        assert not (tmp_path / "nothing").exists()
        with pytest.raises(InvalidError, match="has no tenant"):
            await ks.export(tmp_path / "x")


async def test_a_tenant_with_data_takes_no_import(ks: Keepstate, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    await small(ks, path)

    with pytest.raises(AlreadyExistsError, match="tenant 'a' has data, such as run/1 of tenant 'a'"):
        await ks.tenant("a").import_(path)

    assert await ks.tenant("a").space("run/1").documents.get("plan") == "SECRET"


def test_an_import_that_is_killed_before_any_call_keeps_writers_out_and_continues(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"

    async def make() -> None:
        async with keepstate.open("memory://") as ks:
            space = ks.tenant("a").space("run/1")
            for number in range(70):
                await space.documents.put(f"d{number}", number)
            await space.documents.put("brief", 1, ttl_s=3600)
            await small(ks, path)

    async def killed_before(call: int, stores: list[Dying]) -> bool:
        one, other = [keepstate.open(await store.open()) for store in stores]
        stores[0].calls_left = call
        try:
            await one.tenant("b").import_(path)
            return False
        except KilledError:
            pass
        record, _, _ = await grants.read_record(stores[1], beginning("b"))
        tenant = other.tenant("b")
        if record is not None:
            with pytest.raises(NotAllowedError, match="tenant 'b' is being imported"):
                await tenant.space("late").documents.put("plan", 1)
        if call % 2 and record is not None:
            await tenant.erase(confirm="b")
            assert await names_of(tenant) == []
            if (await stores[1].read(stored_name("b", "run/1"), [])).revision:
                with pytest.raises(AlreadyExistsError, match="its revisions cannot be used twice"):
                    await tenant.import_(path)
                return True
        if not await names_of(tenant) or record is not None:
            await tenant.import_(path)
        assert await names_of(tenant) == ["run/1", "run/2"]
        assert [await tenant.space("run/1").documents.get(f"d{n}") for n in range(70)] == list(range(70))
        assert await tenant.space("run/1").documents.get("brief") == 1
        await tenant.space("run/1").documents.put("next", 1)
        return True

    async def run(call: int) -> bool:
        heap = MemoryHeap()
        stores = [Dying(MemoryStore(runner=TaskRunner(), heap=heap)) for _ in range(2)]
        try:
            return await killed_before(call, stores)
        finally:
            for store in stores:
                await store.close()

    asyncio.run(make())
    call = 0
    while asyncio.run(run(call)):
        call += 1
    assert call > 15


def test_the_format_is_the_one_that_later_versions_read(tmp_path: Path) -> None:
    golden = Path(__file__).parents[1] / "formats" / "tenant_export.jsonl"
    path = tmp_path / "golden.jsonl"
    path.write_bytes(golden.read_bytes())
    os.chmod(path, 0o600)

    async def run() -> None:
        async with keepstate.open("memory://") as ks:
            tenant = ks.tenant("b")
            assert (await tenant.import_(path)).spaces == 2
            assert await tenant.space("run/1").documents.get("plan") == {"step": 1, "of": ["a", None]}
            assert await tenant.space("run/1").documents.get("pair") == (1, b"\x00")
            assert [event.data for event in await tenant.space("run/1").events.stream("said").read()] == [
                {"n": 1}
            ]
            assert [c.message async for c in tenant.space("run/2").history.log()] == ["second", "first"]

    asyncio.run(run())


async def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    async with keepstate.open("memory://") as ks:
        with pytest.raises(NotFoundError, match=r"nothing\.jsonl does not exist"):
            await ks.tenant("a").import_(tmp_path / "nothing.jsonl")
