"""Serves a store over HTTP until a signal ends it: `URL PORT`, and `withheld=PREFIX` where a test asks for it.

The key names what it reaches: `whole` everything, `plain` the spaces without a tenant, `of-NAME` the tenant's
and `of-NAME/UNDER` a part of them. `forgotten` is refused once the file `forget` is in the working folder.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import Mount

from keepstate._runner import TaskRunner
from keepstate.errors import NotAllowedError
from keepstate.names import ALL
from keepstate.opening import store_class
from keepstate.server import StoreScope, store_app
from keepstate.stores.urls import StoreUrl


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


async def serve(url: str, port: int, withheld: tuple[str, ...]) -> None:
    place = StoreUrl.parse(url)
    store = await store_class(place.scheme).from_url(place, runner=TaskRunner()).open()
    endpoint = store_app(store, authorise=authorise, withheld=withheld)
    app = Starlette(routes=[Mount("/store", endpoint)])
    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=5)
    with socket.create_server(("127.0.0.1", port)) as listening:
        server = Server(config, endpoint.end_streams)
        await server.serve([listening])
    await store.close()


class Server(uvicorn.Server):
    def __init__(self, config, ends) -> None:
        super().__init__(config)
        self._ends = ends

    def handle_exit(self, sig, frame) -> None:
        super().handle_exit(sig, frame)
        self._ends()


if __name__ == "__main__":
    withheld = tuple(word.removeprefix("withheld=") for word in sys.argv[3:])
    asyncio.run(serve(sys.argv[1], int(sys.argv[2]), withheld))
