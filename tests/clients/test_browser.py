"""The TypeScript client in a real browser, on a page of the same origin as the server."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

import keepstate
from keepstate.server import Key, Keys, create_app
from keepstate.server.keys import rights_of
from keepstate.server.running import bind
from tests.clients.conftest import RIGHTS
from tools.bootstrap import NO_BROWSER, find_browser
from tools.client import CLIENT

PAGE = """<!doctype html>
<script type="importmap">{"imports": {"@keepstate/client": "/client/index.js"}}</script>
<script type="module" src="/tests/browser_page.js"></script>
"""


@pytest.fixture
def chromium() -> str:
    """The path of a Chromium."""
    found = find_browser()
    assert found, NO_BROWSER
    return found


@asynccontextmanager
async def serving_page(results: asyncio.Queue[Any]) -> AsyncGenerator[str]:
    """Serve a page next to the operations, and yield its address with the key in the fragment."""
    async with keepstate.open("memory://", values="builtin") as ks:
        keys = Keys(ks)
        app = create_app(ks, keys=keys)

        async def show(_: Request) -> Response:
            return HTMLResponse(PAGE)

        async def note(request: Request) -> Response:
            results.put_nowait(await request.json())
            return Response()

        routes = [
            Route("/page", show),
            Route("/result", note, methods=["POST"]),
            Mount("/client", StaticFiles(directory=CLIENT / "dist")),
            Mount("/tests", StaticFiles(directory=CLIENT / "build")),
            Mount("/", app),
        ]
        server = uvicorn.Server(uvicorn.Config(Starlette(routes=routes), log_config=None, lifespan="off"))
        with bind("127.0.0.1", 0) as listener:
            async with app.running():
                secret = await keys.add(Key("page", rights_of(RIGHTS)))
                running = asyncio.create_task(server.serve([listener]))
                yield f"http://127.0.0.1:{listener.getsockname()[1]}/page#{secret}"
                server.should_exit = True
                await running


def test_a_page_uses_documents_streams_tasks_and_replies(chromium: str, client: Path, tmp_path: Path) -> None:
    async def use() -> Any:
        results = asyncio.Queue[Any]()
        options = (
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
        )
        async with serving_page(results) as address:
            words = [chromium, *options, f"--user-data-dir={tmp_path}", address]
            with (tmp_path / "browser.log").open("w") as log:
                browser = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)
            try:
                async with asyncio.timeout(100):
                    return await results.get()
            finally:
                os.killpg(browser.pid, 9)
                browser.wait()

    assert asyncio.run(use()) == {
        "n": 5,
        "values": f"{2**70},0,255",
        "hasVersion": True,
        "seen": [1, 2, 3],
        "completed": 1,
        "result": "A",
        "message": {"role": "assistant", "content": "Hello you"},
        "hadDeltas": True,
        "refused": True,
    }
