"""Values over one entry's limit, and the collecting of their parts."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from keepstate.engine.kernel import large_values, layout
from keepstate.engine.kernel.large_values import collect_parts
from keepstate.engine.space.space import Space
from keepstate.errors import ConflictError, CorruptError
from keepstate.stores.protocol import Batch, Check, Delete, Outcome, Reading
from tests.engine.conftest import Turned


async def parts(space: Space) -> list[bytes]:
    store = await space.executor.home.opened()
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

    removed = await collect_parts(await space.executor.home.opened(), space.name)

    assert (removed, len(await parts(space))) == (before // 2, before - before // 2)
    assert await space.documents.get("kept") == kept


async def test_a_missing_part_is_damage_by_name(space: Space) -> None:
    await space.documents.put("large", random.Random(3).randbytes(3 << 20))
    store = await space.executor.home.opened()
    await store.apply([Batch(space.name, [Delete((await parts(space))[0])])])

    with pytest.raises(CorruptError, match="large"):
        await space.documents.get("large")


async def test_a_large_value_that_is_replaced_while_it_is_read_is_read_again(
    turned: Turned, monkeypatch: pytest.MonkeyPatch
) -> None:
    await turned.space.documents.put("large", random.Random(5).randbytes(3 << 20))
    store = await turned.space.executor.store()
    plain, reads = store.read, list[Sequence[bytes]]()

    async def read(space: str, keys: Sequence[bytes], *, at_ms: int | None = None) -> Reading:
        reads.append(keys)
        if len(reads) == 2:  # the entry was read, its parts were not
            monkeypatch.setattr(store, "read", plain)
            await turned.space.documents.put("large", "small")
            await collect_parts(store, "run/1")
        return await plain(space, keys, at_ms=at_ms)

    monkeypatch.setattr(store, "read", read)

    assert await turned.space.documents.get("large") == "small"
    assert len(reads) == 2


async def test_a_sweep_between_parts_and_their_entry_takes_nothing_from_the_value(
    turned: Turned, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = random.Random(4).randbytes(12 << 20)
    swept = sweep_before_entry(turned, monkeypatch)
    await turned.space.documents.put("large", value)

    assert swept[0] > 0
    assert await turned.space.documents.get("large") == value


async def test_without_the_check_of_the_epoch_such_a_sweep_would_break_the_value(
    turned: Turned, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check_of_another_key(key: bytes, version: int) -> Check:
        if key == layout.EPOCH:
            return Check(key + b"another", version=0)
        return Check(key, version=version)

    swept = sweep_before_entry(turned, monkeypatch)
    monkeypatch.setattr(large_values, "Check", check_of_another_key)
    await turned.space.documents.put("large", random.Random(4).randbytes(12 << 20))

    assert swept[0] > 0
    with pytest.raises(CorruptError, match="large"):
        await turned.space.documents.get("large")


def sweep_before_entry(turned: Turned, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sweep once before a batch that writes a document; the list then say how many parts went."""
    store = turned.ks._source._made  # type: ignore[attr-defined]
    plain = store.apply
    swept: list[int] = []

    async def apply(batches: Sequence[Batch]) -> list[Outcome]:
        if not swept and any(write.key.startswith(layout.DOCUMENTS) for write in batches[0].writes):
            swept.append(0)  # the sweep's own batches come by here too
            swept[0] = await collect_parts(store, "run/1")
        outcomes: list[Outcome] = await plain(batches)
        return outcomes

    monkeypatch.setattr(store, "apply", apply)
    return swept


@pytest.mark.slow
async def test_a_transaction_that_has_looked_at_all_may_write_more_than_a_batch(space: Space) -> None:
    value = random.Random(5).randbytes(20_000_000)
    await space.documents.put("a", 1)
    async with space.transaction() as tx:
        seen = [key async for key in tx.documents.keys("*")]
        await tx.documents.put("large", value)

    assert seen == ["a"]
    assert await space.documents.get("large") == value


@pytest.mark.slow
async def test_such_a_transaction_is_refused_if_others_wrote_meanwhile(space: Space) -> None:
    with pytest.raises(ConflictError):
        async with space.transaction() as tx:
            assert [key async for key in tx.documents.keys("*")] == []
            await tx.documents.put("large", random.Random(5).randbytes(20_000_000))
            await space.documents.put("b", 1)

    assert [key async for key in space.documents.keys("*")] == ["b"]
