"""Quotas of a tenant on every backend: exact for each space, in every process."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import msgspec
import pytest

import keepstate
from keepstate import Quota, QuotaExceededError
from keepstate._runner import TaskRunner
from keepstate.engine.kernel import grants, layout
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import InvalidError
from keepstate.names import beginning
from keepstate.stores.memory import MemoryStore
from keepstate.stores.protocol import Batch, Outcome, Put


async def test_each_space_holds_at_most_its_quota(ks: Keepstate) -> None:
    tenant = ks.tenant("a")
    await tenant.space("other").documents.put("x", 1)
    await tenant.set_quota(Quota(documents=2, queued=2, streams=1))
    space = tenant.space("run/1")

    for name in ("one", "two", "two"):
        await space.documents.put(name, 1)
    with pytest.raises(
        QuotaExceededError, match="may have 2 of documents, has 2, and this would add 1"
    ) as caught:
        await space.documents.put("three", 1)
    await space.events.append(1)
    with pytest.raises(QuotaExceededError, match="of streams"):
        await space.events.stream("second").append(1)
    for number in range(2):
        await space.queue.put(number)
    with pytest.raises(QuotaExceededError, match="of queued"):
        await space.queue.put(3)

    error = caught.value
    assert (error.quota, error.most, error.used) == ("documents", 2, 2)
    await space.documents.delete("one")
    await space.documents.put("three", 1)
    (task,) = await space.queue.claim("w", lease_s=60)
    await task.complete()
    await space.queue.put(3)
    await ks.tenant("b").space("run/1").documents.put("x", 1)
    assert await tenant.quota() == Quota(documents=2, queued=2, streams=1)
    await tenant.set_quota(None)
    await space.documents.put("four", 1)
    assert await tenant.quota() is None


async def test_bytes_are_counted_with_large_values_and_may_shrink(ks: Keepstate) -> None:
    tenant = ks.tenant("a")
    space = tenant.space("run/1")
    await space.documents.put("large", random.Random(0).randbytes(3_000_000))
    await tenant.set_quota(Quota(size_bytes=3_500_000))

    with pytest.raises(QuotaExceededError, match="of size_bytes"):
        await space.documents.put("next", random.Random(1).randbytes(600_000))
    await space.documents.put("large", 1)

    assert (await space.size()).size_bytes <= 3_500_000


@pytest.mark.slow
async def test_writers_at_once_never_exceed_a_quota(shared_url: str) -> None:
    async with keepstate.open(shared_url) as one, keepstate.open(shared_url) as other:
        await one.tenant("a").space("run/1").documents.put("first", 1)
        await other.tenant("a").space("run/1").documents.put("second", 1)
        await other.tenant("a").set_quota(Quota(documents=10))

        async def put(handle: Keepstate, name: str) -> bool:
            try:
                await handle.tenant("a").space("run/1").documents.put(name, 1)
            except QuotaExceededError:
                return False
            return True

        done = await asyncio.gather(*(put((one, other)[n % 2], f"d{n}") for n in range(24)))

        assert sum(done) == 8
        assert len([key async for key in one.tenant("a").space("run/1").documents.keys()]) == 10  # noqa: SIM118


async def test_a_quota_that_only_new_writers_hear_of_is_found(
    ks: Keepstate, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(store: object, runner: object, spaces: object) -> None:
        return

    monkeypatch.setattr(grants, "_renew", nothing)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        await bound_a_known_writer(ks)


async def bound_a_known_writer(ks: Keepstate) -> None:
    async with ks:
        space = ks.tenant("a").space("run/1")
        await space.documents.put("one", 1)
        await ks.tenant("a").set_quota(Quota(documents=1))
        grants.cache_of(ks.store).part(grants.Grants).of(beginning("a")).quota = None  # as another process
        with pytest.raises(QuotaExceededError):
            await space.documents.put("two", 1)


async def test_a_writer_that_knows_the_space_is_bounded_too(ks: Keepstate) -> None:
    await bound_a_known_writer(ks)


async def test_a_tenant_has_at_most_its_number_of_spaces(ks: Keepstate) -> None:
    tenant = ks.tenant("a")
    for number in range(3):
        await tenant.space(f"run/{number}").documents.put("x", 1)
    await tenant.find()  # makes a space of keepstate's own
    await tenant.set_quota(Quota(spaces=3))

    with pytest.raises(QuotaExceededError, match="may have 3 spaces and has them") as caught:
        await tenant.space("run/3").documents.put("x", 1)
    assert (caught.value.quota, caught.value.most, caught.value.used) == ("spaces", 3, 3)
    assert [name async for name in tenant.spaces()] == ["run/0", "run/1", "run/2"]
    async with tenant.space("run/0").transaction() as tx:
        await tx.documents.put("y", 1)
    await ks.tenant("b").space("run/3").documents.put("x", 1)
    await tenant.drop("run/1")
    await tenant.space("run/3").documents.put("x", 1)
    with pytest.raises(QuotaExceededError):
        await tenant.space("run/1").documents.put("x", 1)

    await tenant.set_quota(Quota(spaces=0))
    await tenant.space("run/3").documents.put("y", 1)
    with pytest.raises(QuotaExceededError):
        await tenant.space("run/4").documents.put("x", 1)
    await tenant.set_quota(None)
    await tenant.space("run/4").documents.put("x", 1)


def test_a_quota_is_a_number_that_is_not_negative() -> None:
    for wrong in (-1, 1.0, "1", True, 2**53):
        with pytest.raises(InvalidError):
            Quota(documents=wrong)  # type: ignore[arg-type]


async def test_the_batches_of_many_spaces_go_to_the_store_together() -> None:
    calls: list[int] = []

    class Counting(MemoryStore):
        async def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
            calls.append(len(batches))
            return await super().apply(batches)

    store = await Counting(runner=TaskRunner()).open()
    async with keepstate.open(store) as ks:
        tenant = ks.tenant("a")
        for number in range(150):
            await tenant.space(f"run/{number}").documents.put("x", 1)
        calls.clear()

        await tenant.set_quota(Quota(documents=1))

        assert calls == [1, 64, 64, 22]  # the record; then all spaces
        for number in range(150):
            with pytest.raises(QuotaExceededError):
                await tenant.space(f"run/{number}").documents.put("y", 1)
    await store.close()


async def test_fields_that_a_later_version_has_added_to_the_record_of_a_tenant_survive_a_change() -> None:
    store = await MemoryStore(runner=TaskRunner()).open()
    async with keepstate.open(store) as ks:
        await ks.tenant("a").set_quota(Quota(documents=2))
        own = grants.record_space(beginning("a"))
        (entry,) = (await store.scan(own, layout.TENANT, limit=1)).entries
        fields = msgspec.msgpack.decode(entry.value)
        fields |= {"region": "eu", "quota": fields["quota"] | {"branches": 3}}
        await store.apply([Batch(own, [Put(layout.TENANT, msgspec.msgpack.encode(fields))])])

        record, version, _ = await grants.read_record(store, beginning("a"))
        assert record is not None
        importing = msgspec.structs.replace(record, importing="digest")
        assert await grants.write_record(store, beginning("a"), importing, version)

        (entry,) = (await store.scan(own, layout.TENANT, limit=1)).entries
        assert msgspec.msgpack.decode(entry.value) == fields | {"importing": "digest"}
        assert await ks.tenant("a").quota() == Quota(documents=2)
        record, version, _ = await grants.read_record(store, beginning("a"))
        assert record is not None
        await grants.write_record(
            store, beginning("a"), msgspec.structs.replace(record, importing=None), version
        )
        await ks.tenant("a").set_quota(None)
        (entry,) = (await store.scan(own, layout.TENANT, limit=1)).entries
        assert msgspec.msgpack.decode(entry.value) == {"life": fields["life"], "region": "eu"}
    await store.close()
