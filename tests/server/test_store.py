"""The server lends its store to keys that have the right for it, within their tenant, and never the keys."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import keepstate
from keepstate.errors import NotAllowedError
from keepstate.names import stored_name
from keepstate.server import Key
from keepstate.server.keys import KEYS_SPACE, rights_of
from keepstate.stores.protocol import Store
from tests.server.conftest import ALL, served


def location(base: str, secret: str) -> str:
    return f"{base}?key={secret}&retry_for_s=2"


async def test_a_key_with_the_right_opens_the_store_of_its_tenant(tmp_path: Path) -> None:
    async with served(f"sqlite:///{tmp_path}/shared.db", is_live=True) as server:
        secret = await server.secret("acme", ["store"], tenant="acme")
        async with keepstate.open(location(server.base, secret), tenant="acme") as ks:
            await ks.space("run/1").documents.put("plan", ["read"])
            own = await server.secret("reader", ["read"], tenant="acme")
            answer = await server.client(own).get("/v1/document", params={"space": "run/1", "key": "plan"})
            assert answer.json()["value"] == ["read"]
        for tenant in (None, "globex"):
            with pytest.raises(NotAllowedError):
                async with keepstate.open(location(server.base, secret), tenant=tenant) as ks:
                    await ks.space("run/1").documents.get("plan")


@pytest.mark.parametrize("rights", [ALL, ["read"], ["admin"]])
async def test_no_other_right_opens_the_store(tmp_path: Path, rights: list[str]) -> None:
    async with served(f"sqlite:///{tmp_path}/shared.db", is_live=True) as server:
        secret = await server.secret("ann", rights)
        with pytest.raises(NotAllowedError, match="right `store`"):
            async with keepstate.open(location(server.base, secret)) as ks:
                await ks.space("run/1").documents.get("plan")
        nobody = await server.client().post("/store/read")
        assert nobody.status_code == 401


@pytest.mark.parametrize("rights", [["store"], ["store", "admin"]])
async def test_nothing_reads_the_keys(tmp_path: Path, rights: list[str]) -> None:
    async with served(f"sqlite:///{tmp_path}/shared.db", is_live=True) as server:
        secret = await server.secret("root", rights)
        async with keepstate.open(location(server.base, secret)) as ks:
            await ks.space("run/1").documents.put("plan", 1)
            store: Store = await ks.opened()
            with pytest.raises(NotAllowedError):
                await store.read(KEYS_SPACE, [])
            assert await store.spaces(KEYS_SPACE) == []
            of_tenant = stored_name("acme", "run/1")
            if "admin" in rights:
                assert (await store.read(of_tenant, [])).revision == 0
            else:
                with pytest.raises(NotAllowedError):
                    await store.read(of_tenant, [])


async def test_a_revoked_key_loses_its_store(tmp_path: Path) -> None:
    async with served(f"sqlite:///{tmp_path}/shared.db", is_live=True) as server:
        secret = await server.secret("acme", ["store"], tenant="acme")
        async with keepstate.open(location(server.base, secret), tenant="acme") as ks:
            space = ks.space("run/1")
            await space.documents.put("plan", 1)
            await server.keys.revoke("acme")
            async with asyncio.timeout(60):
                while server.keys.find(secret) is not None:
                    await asyncio.sleep(0.01)
            with pytest.raises(NotAllowedError):
                await space.documents.put("plan", 2)
        async with keepstate.open(f"sqlite:///{tmp_path}/shared.db", tenant="acme") as ks:
            assert await ks.space("run/1").documents.get("plan") == 1


def test_the_store_s_key_is_a_right_of_its_own() -> None:
    assert not Key("root", rights_of(["admin"])).allows("store")
