"""An index that was damaged without an outbox or a mark: it is found, and corrected from the spaces."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import keepstate
from keepstate import KeyRing
from keepstate._clock import Clock
from keepstate.engine.index.index import Index
from keepstate.engine.index.rows import decode_row, encode, list_prefix
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.large_values import scan_pages
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import CorruptError, InvalidError, NotAllowedError
from keepstate.names import ALL, INDEX_SPACE, stored_name
from keepstate.stores.protocol import Applied, Batch, Delete, Entry, Put, Store, Write
from keepstate.testing.clocks import ManualClock
from tests.engine.conftest import Turned
from tests.engine.index.test_find import ALL_KINDS, fill, shown

INDEX = stored_name(None, INDEX_SPACE)
KINDS = {*ALL_KINDS, ("queue", "mail", "ready"), ("approval", "a1", "pending")}


async def _write(store: Store, *writes: Write) -> None:
    assert isinstance((await store.apply([Batch(INDEX, writes)]))[0], Applied)


async def _entries(store: Store, part: bytes) -> list[Entry]:
    return [entry async for entries in scan_pages(store, INDEX, part) for entry in entries]


async def _row_of(store: Store, kind: str) -> Entry:
    rows = await _entries(store, layout.ROWS)
    [found] = [entry for entry in rows if decode_row(entry.value, entry.key).kind == kind]
    return found


async def lose_a_row(store: Store) -> None:
    await _write(store, Delete((await _row_of(store, "team")).key))


async def lose_a_row_and_its_places(store: Store, kind: str = "queue") -> None:
    entry = await _row_of(store, kind)
    digest = entry.key[-18:]
    places = [place.key for place in await _entries(store, layout.LISTS) if place.key.endswith(digest)]
    assert len(places) >= 4
    await _write(store, Delete(entry.key), *map(Delete, places))


async def lose_an_approval(store: Store) -> None:
    await lose_a_row_and_its_places(store, "approval")


async def lose_a_place(store: Store) -> None:
    await _write(store, Delete((await _entries(store, layout.LISTS))[0].key))


async def add_a_place(store: Store) -> None:
    await _write(store, Put(list_prefix(0, 1, b"nobody".ljust(16)), b""))


async def add_a_place_of_no_form(store: Store) -> None:
    await _write(store, Put(list_prefix(0, 1, "text"), b""))


async def damage_a_row(store: Store) -> None:
    await _write(store, Put((await _row_of(store, "session")).key, b"\xc1 no row"))


async def put_an_old_state(store: Store) -> None:
    entry = await _row_of(store, "workflow")
    row = decode_row(entry.value, entry.key)
    await _write(store, Put(entry.key, encode([row.version, *_fields(row, state="pending")])))


async def put_another_row(store: Store) -> None:
    await _write(store, Put((await _row_of(store, "team")).key, (await _row_of(store, "agent")).value))


async def keep_a_row_of_nothing(store: Store) -> None:
    """Drop a space behind the back of the index, as a restored part of a store would."""
    assert await store.drop("machine/o1")


async def damage_the_meta(store: Store) -> None:
    await _write(store, Put(layout.INDEX_META, b"\xc1"))


async def damage_a_mark(store: Store) -> None:
    await _write(store, Put(layout.CARRYING + b"?", b"\xc1"))
    await _write(store, Put(layout.DROPPING + b"?", b"\xc1"))


def _fields(row: Any, *, state: str) -> list[Any]:
    return [row.space, row.kind, row.id, state, row.owner, row.title, row.changed_ms, row.due_ms]


DAMAGES: list[Callable[[Store], Awaitable[None]]] = [
    lose_a_row, lose_a_row_and_its_places, lose_an_approval, lose_a_place, add_a_place,
    add_a_place_of_no_form, damage_a_row, put_an_old_state, put_another_row, keep_a_row_of_nothing,
    damage_the_meta, damage_a_mark,
]  # fmt: skip


async def _fill(ks: Keepstate) -> None:
    await fill(ks)
    await ks.space("pool").queue.put("x", kind="mail")
    await ks.space("desk").approvals.ask("Pay?", id="a1")
    async with asyncio.timeout(60):
        # A delivery that is under way would mend a damage.
        while set(await shown(ks)) != KINDS or _is_delivering(ks):
            await asyncio.sleep(0.01)


def _is_delivering(ks: Keepstate) -> bool:
    delivery = ks.index._delivery
    return delivery is not None and delivery._work is not None


async def _findings(ks: Keepstate) -> list[str]:
    return [what async for what in ks.index.findings(None)]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
async def test_a_damaged_index_is_found_and_corrected(ks: Keepstate, damage: Any) -> None:
    await _fill(ks)
    assert await _findings(ks) == []

    await damage(await ks.opened())
    assert await _findings(ks) != []
    assert await ks.reindex() > 0
    assert await _findings(ks) == []
    expected = KINDS - {("machine", "o1", "planning")} if damage is keep_a_row_of_nothing else KINDS
    assert sorted(await shown(ks)) == sorted(expected)
    for kind, id, state in expected:
        assert await shown(ks, kind=kind, state=state) == [(kind, id, state)]
    assert await ks.reindex() == 0


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
async def test_the_index_of_an_encrypted_store_is_corrected(tmp_path: Path, damage: Any) -> None:
    url, keys = f"sqlite:///{tmp_path}/sealed.db", KeyRing(KeyRing.new_key())
    async with keepstate.open(url, encryption=keys) as ks:
        await _fill(ks)
        await damage(await ks.opened())

        assert await _findings(ks) != []
        assert await ks.reindex() > 0
        assert await _findings(ks) == []
        assert len(await ks.find()) >= len(KINDS) - 1
    async with keepstate.open(url) as keyless:
        for call in (keyless.find, keyless.deliver, keyless.reindex):
            with pytest.raises(InvalidError, match="encrypted"):
                await call()


async def test_a_damaged_row_says_what_to_do(ks: Keepstate) -> None:
    await _fill(ks)
    await damage_a_row(await ks.opened())

    with pytest.raises(CorruptError, match=r"a reindex makes it"):
        await ks.find()


async def test_a_missing_index_is_made_again_by_find(ks: Keepstate) -> None:
    await _fill(ks)
    await (await ks.opened()).drop(INDEX)

    assert await _findings(ks) == []
    assert set(await shown(ks)) == KINDS


async def test_a_damaged_outbox_is_delivered(ks: Keepstate) -> None:
    await ks.find()
    await _fill(ks)
    store = await ks.opened()
    [outbox] = [*(await store.scan("pool", layout.CARRIED)).entries]
    key = layout.OUTBOX + outbox.key[len(layout.CARRIED) :]
    assert isinstance((await store.apply([Batch("pool", [Put(key, b"\xc1")])]))[0], Applied)

    assert await ks.deliver() >= 1
    assert not (await store.scan("pool", layout.OUTBOX)).entries
    assert set(await shown(ks)) == KINDS


async def test_what_waits_to_be_delivered_is_no_error(shared_url: str) -> None:
    async with keepstate.open(shared_url) as ks:
        await _fill(ks)
    async with keepstate.open(shared_url) as ks:
        await ks.space("pool").queue.put("x", kind="late")
        await ks.space("machine/o1").documents.delete("machine")

        assert await _findings(ks) == []


async def test_an_approval_that_has_expired_is_no_error(turned: Turned) -> None:
    await turned.space.approvals.ask("Pay?", id="a1", expires_s=60)
    assert await shown(turned.ks) == [("approval", "a1", "pending")]
    turned.clock.advance(61_000)

    assert await _findings(turned.ks) == []
    assert await turned.ks.deliver() == 1
    assert await _findings(turned.ks) == []
    expired = await shown(turned.ks, kind="approval", state="expired")
    assert expired == [("approval", "a1", "expired")]


# ---- all tenants


async def test_an_administrator_lists_the_subjects_of_all_tenants(ks: Keepstate) -> None:
    for tenant in ("acme", "b@c", "zeta"):
        for number in range(3):
            await ks.tenant(tenant).space("pool").queue.put("x", kind=f"{tenant} {number}")
    await ks.tenant("empty").space("notes").documents.put("plan", 1)
    await ks.space("pool").queue.put("x", kind="mine")

    whole = await ks.find(tenant=ALL, order="changed")
    assert [found.tenant for found in whole] == [None, *["acme"] * 3, *["b@c"] * 3, *["zeta"] * 3]
    assert whole.next is None
    for limit in (1, 2, 3, 4, 7, 9, 10):
        pages, after, count = list[Any](), None, 0
        while count == 0 or after is not None:
            page = await ks.find(tenant=ALL, order="changed", after=after, limit=limit)
            assert len(page) == limit or page.next is None
            assert page
            pages, after, count = [*pages, *page], page.next, count + 1
        assert (pages, count) == (list(whole), -(-len(whole) // limit))
    assert [found.id for found in await ks.find(tenant=ALL, kind="queue", owner="ann")] == []


async def test_only_an_administrator_lists_all_tenants(ks: Keepstate) -> None:
    with pytest.raises(NotAllowedError):
        await ks.tenant("acme").find(tenant=ALL)
    for wrong in ("", "x", "@", "@acme", "@=", "zz@=acme"):
        if wrong != "@":
            await ks.tenant("acme").space("pool").queue.put("x")
            with pytest.raises(InvalidError, match="after"):
                await ks.find(tenant=ALL, after=wrong)
    with pytest.raises(InvalidError, match="tenant"):
        await ks.find(tenant="acme")  # type: ignore[arg-type]


# ---- delivery at once


class _Still(ManualClock):
    """A clock on which no second passes: what waits for its interval is never delivered."""


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_task_that_is_due_sooner_is_delivered_at_once(kind: str, tmp_path: Path) -> None:
    url = "memory://" if kind == "memory" else f"sqlite:///{tmp_path}/due.db"
    clock: Clock = _Still()
    async with keepstate.open(url) as ks:
        ks._indexes = Index(ks.opened, ks.runner, clock)
        queue = ks.space("pool").queue
        await queue.put("x", kind="mail", delay_s=7_200)
        [start] = await ks.find()
        await queue.put("x", kind="mail", delay_s=7_000)
        [first] = await _wait_for(ks, lambda found: found.due_at < start.due_at)
        store = await ks.opened()
        while (await store.scan("pool", layout.OUTBOX)).entries:
            await asyncio.sleep(0.01)

        await queue.put("x", kind="mail", delay_s=7_100)  # not sooner: it waits for its interval
        await asyncio.sleep(0.2)
        assert (await store.scan("pool", layout.OUTBOX)).entries
        await queue.put("x", kind="mail", delay_s=3_600)
        [second] = await _wait_for(ks, lambda found: found.due_at < first.due_at)
        assert second.state == "waiting"
        await queue.put("x", kind="mail")
        await _wait_for(ks, lambda found: found.state == "ready")


async def _wait_for(ks: Keepstate, is_right: Callable[[Any], Any]) -> list[Any]:
    """Wait until another reader, which delivers nothing itself, lists a queue that is as it should be."""
    store = await ks.opened()
    async with asyncio.timeout(60):
        while True:
            rows = [decode_row(entry.value, entry.key) for entry in await _entries(store, layout.ROWS)]
            found = [row.to_public(None) for row in rows]
            if found and all(map(is_right, found)):
                return found
            await asyncio.sleep(0.01)
