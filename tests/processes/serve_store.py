"""Serves a store over HTTP until a signal ends it: `URL PORT WORD…`.

The key names what it reaches: `whole` everything, `plain` the spaces without a tenant, `of-NAME` the tenant's
and `of-NAME/UNDER` a part of them. `forgotten` is refused once the file `forget` is in the working folder.

The words are `withheld=PREFIX`, `held=BYTES`, `version=NUMBER`, and `key=HEX` for a store that the server
itself encrypts.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import Mount

from keepstate._runner import TaskRunner
from keepstate.errors import NotAllowedError
from keepstate.names import ALL
from keepstate.opening import store_class
from keepstate.server import StoreLimits, StoreScope, store_app
from keepstate.stores.base import StoreBase
from keepstate.stores.http import wire
from keepstate.stores.urls import StoreUrl
from keepstate.stores.wrappers.encrypted import EncryptedStore, KeyRing
from keepstate.stores.wrappers.keyless import reject_writes_if_encrypted
from keepstate.stores.wrappers.wrapper import StoreWrapper


def authorise(request: Request) -> StoreScope:
    kind, _, key = request.headers.get("authorization", "").partition(" ")
    if kind != "Bearer" or not key:
        raise HTTPException(401, "A key is needed.", {"WWW-Authenticate": "Bearer"})
    if key == "whole" or (key == "forgotten" and not Path("forget").exists()):
        return StoreScope(tenant=ALL)
    if key == "plain":
        return StoreScope(tenant=None)
    if key.startswith("of-"):
        tenant, _, under = key.removeprefix("of-").partition("/")
        return StoreScope(tenant=tenant, under=under)
    raise NotAllowedError("The key is not known here.")


async def opened(url: str, key: str | None) -> StoreBase | StoreWrapper:
    place = StoreUrl.parse(url)
    store = store_class(place.scheme).from_url(place, runner=TaskRunner())
    if key is not None:
        return await EncryptedStore(store, KeyRing(bytes.fromhex(key))).open()
    return await reject_writes_if_encrypted(await store.open())


async def serve(url: str, port: int, words: dict[str, str]) -> None:
    store = await opened(url, words.get("key"))
    endpoint = store_app(
        store,
        authorise=authorise,
        withheld=[prefix for word, prefix in words.items() if word == "withheld"],
        bounds=StoreLimits(held_bytes=int(words.get("held", 64 << 20))),
    )
    wire.VERSION = int(words.get("version", wire.VERSION))  # type: ignore[misc]
    app = Starlette(routes=[Mount("/store", endpoint)])
    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=100)
    with socket.create_server(("127.0.0.1", port)) as listening:
        await Server(config, endpoint.end_streams).serve([listening])
    await store.close()


class Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, end_streams: Callable[[], None]) -> None:
        super().__init__(config)
        self._end_streams = end_streams

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self._end_streams()


if __name__ == "__main__":
    url, port, *words = sys.argv[1:]
    asyncio.run(serve(url, int(port), dict(word.split("=", 1) for word in words)))
