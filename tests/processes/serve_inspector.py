"""Serves stores with their pages, each on a port of its own, until its input ends: `FOLDER NAME…`.

The stores are `desk` and `errands`, with the desk and its threads, whose clock stands; `conversations`,
imported from the file next to it; `hostile`; and others, which are empty. First it prints a line of
JSON with the address of each server and the URL of its store. Then it answers lines: `{"store", "rights",
"tenant", "name"}` by a link that lets one browser in; with `"stored"` by the secret of a new key; with
`"revoke"` by revoking it. `{"store", "advance"}` moves the clock of the desk.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import AsyncExitStack, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keepstate
from keepstate._clock import SYSTEM_CLOCK, Clock
from keepstate._runner import runner_of
from keepstate.cli.imports import import_
from keepstate.cli.session import Session as CommandSession
from keepstate.engine.space.keepstate import Keepstate
from keepstate.server import Key, Keys, Server, create_app
from keepstate.server.keys import RIGHTS, rights_of
from keepstate.server.running import RunningServer, bind
from keepstate.stores.sqlite.store import SqliteStore
from keepstate.testing.clocks import StoreClock
from tests.browser import desk, hostile, threads

TRACES = "https://traces.example.org/trace/{trace_id}?by=keepstate"
"""Where traces are, for those who look at the workshop."""
IN_BROWSER = [right for right in RIGHTS if right != "store"]


@dataclass
class Served:
    """One store that is served."""

    server: RunningServer
    app: Server
    keys: Keys
    clock: Clock
    serving: asyncio.Task[None]


async def fill(name: str, path: str, store: SqliteStore, clock: StoreClock) -> None:
    """Fill a store that is empty."""
    async with keepstate.open(store, author="agent") as ks:
        match name:
            case "desk" | "errands":
                # The clock of the handle, too: what a process supposes of the store's time follows it.
                ks.__class__ = type("ClockedKeepstate", (Keepstate,), {"clock": property(lambda _: clock)})
                await threads.fill(ks, clock)
                await desk.fill(ks, clock)
            case "hostile":
                await hostile.fill(ks)
            case "conversations":
                with redirect_stdout(sys.stderr):
                    await import_(f"{path}.json", session=CommandSession(url=store.url))


async def serve(folder: Path, names: list[str]) -> None:
    """Serve stores, and answer the lines of the input."""
    async with AsyncExitStack() as stack:
        served: dict[str, Served] = {}
        told: dict[str, dict[str, str]] = {}
        for name in names:
            clock = StoreClock(desk.BEGIN, seed=1)
            path = str(folder / f"{name}.db")
            standing: Clock = clock if name in ("desk", "errands") else SYSTEM_CLOCK
            store = SqliteStore(path, durability="normal", runner=runner_of("async"), clock=standing)
            await store.open()
            stack.push_async_callback(store.close)
            await fill(name, path, store, clock)
            ks = await stack.enter_async_context(keepstate.open(store, values="builtin"))
            listener = stack.enter_context(bind("127.0.0.1", 0))
            keys = Keys(ks)
            app = create_app(ks, keys=keys, trace_url=TRACES if name == "workshop" else None)
            server = RunningServer(app, drain_s=0)
            serving = asyncio.create_task(server.serve([listener]))
            served[name] = Served(server, app, keys, standing, serving)
            told[name] = {"url": f"http://127.0.0.1:{listener.getsockname()[1]}", "store": store.url}
        while not all(each.server.started for each in served.values()):
            await asyncio.sleep(0.01)
        print(json.dumps(told), flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(await answer(served, json.loads(line))), flush=True)
        for each in served.values():
            each.server.handle_exit(15, None)
        await asyncio.gather(*(each.serving for each in served.values()))


async def answer(served: dict[str, Served], asked: dict[str, Any]) -> Any:
    """Do what a line asks for."""
    one = served[asked["store"]]
    if "advance" in asked:
        assert isinstance(one.clock, StoreClock)
        one.clock.advance(asked["advance"])
        return one.clock.now_ms()
    key = Key(
        asked.get("name", "ann"), rights_of(asked.get("rights", IN_BROWSER)), tenant=asked.get("tenant")
    )
    if asked.get("revoke"):
        return await one.keys.revoke(key.name)
    if asked.get("stored"):
        return await one.keys.add(key)
    return one.app.make_link(key)


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), sys.argv[2:]))
