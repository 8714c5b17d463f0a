"""Tenants on every backend: listing them and their spaces."""

from __future__ import annotations

import pytest

from keepstate.engine.kernel.positions import Page
from keepstate.engine.space.keepstate import Keepstate, SpaceInfo, TenantInfo
from keepstate.errors import InvalidError, NotAllowedError
from keepstate.names import ALL, OWN, parts_of

PAIRS = [
    (None, "a"),
    (None, "user/1"),
    ("t", "user/1"),
    ("t", "user/1/notes"),
    ("t", "user/10"),
    ("t1", "user/1"),
    ("t10", "a"),
    ("é", "user/1"),
]


async def filled(ks: Keepstate) -> None:
    for tenant, name in PAIRS:
        handle = ks if tenant is None else ks.tenant(tenant)
        await handle.space(name).documents.put("k", 1)


async def test_an_administrator_lists_the_spaces_of_all_tenants(ks: Keepstate) -> None:
    await filled(ks)

    assert [pair async for pair in ks.spaces(tenant=ALL)] == PAIRS
    assert [pair async for pair in ks.spaces("user/1", tenant=ALL)] == [
        pair for pair in PAIRS if pair[1] in ("user/1", "user/1/notes")
    ]
    assert [pair async for pair in ks.spaces(tenant=ALL, limit=3)] == PAIRS[:3]
    assert [name async for name in ks.spaces(tenant=OWN)] == ["a", "user/1"]


async def test_pages_of_all_tenants_lead_through_all_their_spaces(ks: Keepstate) -> None:
    await filled(ks)

    found: list[SpaceInfo] = []
    after = None
    while True:
        page: Page[SpaceInfo] = await ks.list_spaces(tenant=ALL, after=after, limit=3)
        found += page
        after = page.next
        if after is None:
            break

    assert [(info.tenant, info.name) for info in found] == PAIRS
    assert [info.tenant for info in await ks.tenant("t").list_spaces()] == ["t", "t", "t"]


async def test_an_administrator_lists_tenants_page_by_page(ks: Keepstate) -> None:
    await filled(ks)
    for number in range(300):  # more than one page of the store
        await ks.tenant("t").space(f"many/{number}").documents.put("k", 1)

    first = await ks.tenants(limit=3)
    second = await ks.tenants(after=first.next, limit=3)

    assert [tenant.id for tenant in first] == ["t", "t1", "t10"]
    assert (second, second.next) == ([TenantInfo("é")], None)
    assert await ks.tenants(after="t", limit=1) == [TenantInfo("t1")]
    await ks.tenant("t1").drop("user/1")
    assert [tenant.id for tenant in await ks.tenants()] == ["t", "t10", "é"]


async def test_the_handle_of_a_tenant_lists_no_other_tenant(ks: Keepstate) -> None:
    handle = ks.tenant("t")

    with pytest.raises(
        NotAllowedError, match=r"tenants\(\) lists all tenants.*use a handle without `tenant`"
    ):
        await handle.tenants()
    with pytest.raises(NotAllowedError, match="lists the spaces of all tenants"):
        [pair async for pair in handle.spaces(tenant=ALL)]
    with pytest.raises(NotAllowedError, match="lists the spaces of all tenants"):
        await handle.list_spaces(tenant=ALL)


async def test_a_scope_or_cursor_of_a_wrong_form_is_rejected(ks: Keepstate) -> None:
    with pytest.raises(InvalidError, match="`tenant` is 'all'"):
        [pair async for pair in ks.spaces(tenant="all")]  # type: ignore[call-overload]
    with pytest.raises(InvalidError, match=r"`after` is '\\U0010ffffx'; give `next` of a page"):
        await ks.list_spaces(tenant=ALL, after="\U0010ffffx")
    with pytest.raises(InvalidError, match="`after` is empty"):
        await ks.tenants(after="")


async def test_names_of_keepstate_s_own_spaces_are_refused_in_every_tenant(ks: Keepstate) -> None:
    for handle in (ks, ks.tenant("t")):
        with pytest.raises(InvalidError, match="names that begin with 'keepstate:' are those"):
            handle.space("keepstate:mine")
        with pytest.raises(InvalidError, match="give another name"):
            await handle.drop("keepstate:mine")


async def test_dropping_says_whether_there_was_something(ks: Keepstate) -> None:
    handle = ks.tenant("t")
    await handle.space("s").documents.put("k", 1)

    assert not await ks.drop("s")
    assert await handle.drop("s")
    assert not await handle.drop("s")


async def test_a_walk_over_all_spaces_leaves_out_those_of_keepstate(ks: Keepstate) -> None:
    await filled(ks)
    for handle in (ks, ks.tenant("t")):
        await handle.space("user/1").queue.put("work")
        await handle.deliver()
    own = {parts_of(name) async for name in ks.stored_names()} - set(PAIRS)

    walked = [(tenant, space.name) async for tenant, space in ks.everywhere()]

    assert walked == PAIRS
    assert {None, "t"} <= {tenant for tenant, _ in own}, f"the store has no spaces of keepstate but {own}"
