"""Values over one entry's limit, and the collecting of their parts."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from keepstate.engine import layout
from keepstate.engine.collecting import collect_parts
from keepstate.engine.space import Space
from keepstate.errors import CorruptError
from keepstate.stores.protocol import Batch, Delete, Outcome, Store
from tests.engine.conftest import Turned


async def parts(space: Space) -> list[bytes]:
    store = await space._home.opened()
    found: list[bytes] = []
    after: bytes | None = None
    while True:
        page = await store.scan(space.name, layout.PARTS, after=after)
        found += [entry.key for entry in page.entries]
        if page.next is None:
            return found
        after = page.next


@pytest.mark.slow
async def test_fifty_megabytes_come_back(space: Space) -> None:
    value = random.Random(1).randbytes(50_000_000)
    await space.documents.put("large", value)

    assert await space.documents.get("large") == value


async def test_parts_of_an_overwritten_value_are_collected_and_those_in_use_stay(space: Space) -> None:
    dice = random.Random(2)
    kept = dice.randbytes(3 << 20)
    await space.documents.put("kept", kept)
    await space.documents.put("over", dice.randbytes(3 << 20))
    await space.documents.put("over", "small")
    before = len(await parts(space))

    removed = await collect_parts(await space._home.opened(), space.name)

    assert (removed, len(await parts(space))) == (before // 2, before - before // 2)
    assert await space.documents.get("kept") == kept


async def test_a_missing_part_is_damage_by_name(space: Space) -> None:
    await space.documents.put("large", random.Random(3).randbytes(3 << 20))
    store = await space._home.opened()
    await store.apply([Batch(space.name, [Delete((await parts(space))[0])])])

    with pytest.raises(CorruptError, match="large"):
        await space.documents.get("large")


async def test_a_sweep_between_parts_and_their_entry_takes_nothing_from_the_value(
    turned: Turned, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = random.Random(4).randbytes(12 << 20)
    store = turned.ks._source._made  # type: ignore[attr-defined]
    plain, swept = store.apply, 0

    async def apply(batches: Sequence[Batch]) -> list[Outcome]:
        nonlocal swept
        if not swept and any(check.key == layout.EPOCH for check in batches[0].checks):
            swept += 1
            swept += await collect(store)
        return await plain(batches)

    async def collect(store: Store) -> int:
        return await collect_parts(store, "run/1")

    monkeypatch.setattr(store, "apply", apply)
    await turned.space.documents.put("large", value)

    assert swept > 1
    assert await turned.space.documents.get("large") == value
