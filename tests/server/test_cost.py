"""The cost of a request, as a count that does not depend on the machine."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from keepstate.server import Key
from tests.server.conftest import served
from tools.sizes import entered

_CALLS = 150
"""Calls of our functions in one read of a document, from the guard to the last byte."""


async def test_a_read_of_a_document_makes_few_calls_and_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served() as door:
        secret = await door.keys.add(Key("ann", frozenset({"read"})))
        while door.keys.find(secret) is None:
            await _turn()
        await door.ks.space("run/1").documents.put("plan", {"step": 1})
        statuses: list[int] = []
        tasks: list[Any] = []

        async def read() -> None:
            await door.app(_scope(secret), _receive, send)

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        await read()
        loop = asyncio.get_running_loop()
        with monkeypatch.context() as patched:
            patched.setattr(loop, "create_task", lambda *given, **_: tasks.append(given))
            patched.setattr(loop, "call_later", lambda *given, **_: tasks.append(given))
            await read()
        _, calls = await entered(read)

        assert {*statuses} == {200} and tasks == []
        assert calls <= _CALLS, calls


async def _turn() -> None:
    await asyncio.sleep(0.01)


async def _receive() -> dict[str, Any]:
    return {"type": "http.request", "body": b"", "more_body": False}


def _scope(secret: str) -> dict[str, Any]:
    headers = [(b"host", b"localhost"), (b"authorization", b"Bearer " + secret.encode())]
    return {
        "type": "http",
        "method": "GET",
        "path": "/v1/document",
        "query_string": b"space=run%2F1&key=plan",
        "headers": headers,
    }
