"""Sweeping a store: what has expired goes, and is counted."""

from __future__ import annotations

import asyncio

from keepstate.engine.space.keepstate import Keepstate
from tests.engine.conftest import Turned


async def test_a_sweep_removes_expired_documents_of_all_spaces_and_counts_them(turned: Turned) -> None:
    for name in ("one", "two"):
        async with turned.ks.space(name).transaction() as tx:
            await tx.documents.put("kept", 1)
            await tx.documents.put("later", 1, ttl_s=60)
            for number in range(600):
                await tx.documents.put(f"brief{number}", number, ttl_s=1)
    turned.clock.advance(1000)

    assert await turned.ks.sweep() == 1200
    assert await turned.ks.sweep() == 0
    assert [key async for key in turned.ks.space("two").documents.keys("*")] == ["kept", "later"]


async def test_a_sweep_removes_what_has_expired_by_the_clock_of_the_store(ks: Keepstate) -> None:
    documents = ks.space("run/1").documents
    async with ks.space("run/1").transaction() as tx:
        for number in range(20):
            await tx.documents.put(f"brief{number}", number, ttl_s=0.05)
        await tx.documents.put("kept", 1)
    async with asyncio.timeout(60):
        while [key async for key in documents.keys("*")] != ["kept"]:
            await asyncio.sleep(0.02)

    assert await ks.sweep() == 20
    assert await ks.sweep() == 0
    assert await documents.get("kept") == 1


async def test_a_tenant_sweeps_its_own_spaces_and_any_other_handle_those_of_all_tenants(
    ks: Keepstate,
) -> None:
    handles = ks.tenant("t1"), ks.tenant("t10"), ks
    for handle in handles:
        async with handle.space("s").transaction() as tx:  # a later write would remove what has expired
            await tx.documents.put("brief", 1, ttl_s=0.05)
            await tx.documents.put("kept", 1)
    for handle in handles:
        while await handle.space("s").documents.get("brief") is not None:
            await asyncio.sleep(0.02)

    assert await handles[0].sweep() == 1
    assert [await handle.space("s").revision() for handle in handles] == [3, 2, 1]  # with a grant
    assert await ks.sweep() == 2
    assert [name async for name in handles[1].spaces()] == ["s"]
    await handles[0].drop("s")
    assert [await handle.space("s").documents.get("kept") for handle in handles] == [None, 1, 1]
