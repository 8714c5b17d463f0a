"""The server lends its store to keys that have the right for it, within their tenant, and never the keys."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

import keepstate
from keepstate.errors import NotAllowedError
from keepstate.names import stored_name
from keepstate.server import Key, StoreLimits, StoreScope, store_app
from keepstate.server.keys import KEYS_SPACE, rights_of
from keepstate.stores.base import StoreBase
from keepstate.stores.http import wire
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


@pytest.mark.parametrize("call", ["hints", "apply"])
async def test_one_tenant_leaves_room_for_others(call: str) -> None:
    """Each of its streams stays open, and each of its bodies unfinished."""
    async with keepstate.open("memory://") as ks:
        app = store_app(
            cast("StoreBase", await ks.opened()),
            authorise=lambda request: StoreScope(tenant=request.headers["tenant"]),
            bounds=StoreLimits(streams=1, held_bytes=100),
        )

        async def begin(tenant: str) -> int | None:
            """Begin a request, and return the status of its answer if there is one."""
            space, statuses = stored_name(tenant, "run"), list[int]()
            body = wire.encode(wire.HintsCall(spaces=[space])) if call == "hints" else bytes(40)
            parts = [{"type": "http.request", "body": body, "more_body": call != "hints"}]

            async def receive() -> Any:
                return parts.pop() if parts else await asyncio.Event().wait()

            async def send(message: Any) -> None:
                if message["type"] == "http.response.start":
                    statuses.append(message["status"])

            headers = {"tenant": tenant, "content-type": wire.MEDIA_TYPE, wire.VERSION_HEADER: "1"}
            scope = {
                "type": "http", "method": "POST", "path": f"/{call}", "query_string": b"",
                "headers": [(name.encode(), text.encode()) for name, text in headers.items()],
            }  # fmt: skip
            begun.append(asyncio.create_task(app(scope, receive, send)))
            await asyncio.sleep(0.05)
            return statuses[0] if statuses else None

        begun = list[asyncio.Task[None]]()
        held = 200 if call == "hints" else None
        assert [await begin(tenant) for tenant in ("acme", "acme", "globex")] == [held, 503, held]
        for task in begun:
            task.cancel()
        await asyncio.gather(*begun, return_exceptions=True)


def test_the_store_s_key_is_a_right_of_its_own() -> None:
    assert not Key("root", rights_of(["admin"])).allows("store")
