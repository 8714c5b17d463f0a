"""Servers for tests, in this process without a socket or on one; and a loop for tests that are coroutines."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import httpx
import msgspec
import pytest

import keepstate
from keepstate.engine.approvals.signers import Signer
from keepstate.engine.space.keepstate import Keepstate
from keepstate.server import Key, Keys, Limits, Server, create_app
from keepstate.server.keys import rights_of
from keepstate.server.running import RunningServer, bind

ALL = ("read", "write", "work", "answer", "admin")
SIGNER = Signer({"one": b"k" * 32})


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function in a loop of its own."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    wanted = {name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}
    asyncio.run(test(**wanted))
    return True


@dataclass
class Served:
    """A server, and clients of it."""

    app: Server
    ks: Keepstate
    keys: Keys
    base: str
    clients: list[httpx.AsyncClient] = field(default_factory=list)

    async def secret(self, name: str = "ann", rights: Collection[str] = ALL, **options: Any) -> str:
        """Add a key, and return its secret once the server knows it."""
        secret = await self.keys.add(Key(name, rights_of(rights), **options))
        async with asyncio.timeout(60):
            while self.keys.find(secret) is None:
                await asyncio.sleep(0.01)
        return secret

    def client(self, secret: str | None = None, **headers: str) -> httpx.AsyncClient:
        """Return a client that shows a secret."""
        if secret is not None:
            headers["Authorization"] = f"Bearer {secret}"
        transport = None if self.base.startswith("http://127") else httpx.ASGITransport(app=self.app)
        made = httpx.AsyncClient(transport=transport, base_url=self.base, headers=headers, timeout=30)
        self.clients.append(made)
        return made

    async def caller(
        self, name: str = "ann", rights: Collection[str] = ALL, **options: Any
    ) -> httpx.AsyncClient:
        """Add a key, and return a client that shows it."""
        return self.client(await self.secret(name, rights, **options))


@asynccontextmanager
async def served(
    url: str = "memory://",
    *,
    limits: Limits | None = None,
    is_live: bool = False,
    drain_s: float = 0,
    mcp: Literal["read", "write"] | None = None,
) -> AsyncGenerator[Served]:
    """Yield a server on a store: in this process, or with `is_live` on a socket.

    It delivers nothing in the background unless `limits` say when, so that tests count only their own calls.
    """
    limits = Limits() if limits is None else limits
    if limits.deliver_s == Limits().deliver_s:
        limits = replace(limits, deliver_s=1 << 20)
    async with keepstate.open(url, values="builtin") as ks:
        keys = Keys(ks)
        app = create_app(ks, keys=keys, limits=limits, signer=SIGNER, mcp=mcp)
        if not is_live:
            async with app.running():
                found = Served(app, ks, keys, "http://localhost")
                try:
                    yield found
                finally:
                    await _close(found)
            return
        with bind("127.0.0.1", 0) as listener:
            server = RunningServer(app, drain_s=drain_s)
            serving = asyncio.create_task(server.serve([listener]))
            found = Served(app, ks, keys, f"http://127.0.0.1:{listener.getsockname()[1]}")
            while not server.started:
                await asyncio.sleep(0.01)
            try:
                yield found
            finally:
                server.handle_exit(15, None)
                await serving
                await _close(found)


async def _close(found: Served) -> None:
    for client in found.clients:
        await client.aclose()


@dataclass(frozen=True)
class Sent:
    """A server-sent event."""

    data: Any
    id: str | None
    name: str | None


async def sent_events(response: httpx.Response) -> AsyncIterator[Sent]:
    """Yield the events of a stream, as a browser reads them."""
    fields: dict[str, str] = {}
    async for line in response.aiter_lines():
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif "data" in fields:
            yield Sent(msgspec.json.decode(fields["data"]), fields.get("id"), fields.get("event"))
            fields = {}
        else:
            fields = {}


async def some(events: AsyncIterator[Sent], count: int) -> list[Sent]:
    """Return the next events of a stream."""
    found: list[Sent] = []
    async with asyncio.timeout(60):
        while len(found) < count:
            found.append(await anext(events))
    return found
