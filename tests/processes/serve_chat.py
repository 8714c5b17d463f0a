"""Serves the example chat on a port that it prints, with a model that tells its text in steps of 20 ms."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import uvicorn

from examples.chat.app import create_app


async def model(context: list[dict[str, Any]]) -> AsyncIterator[str]:
    """Say ten numbers; asked for more, go on until somebody stops it."""
    is_endless = "for ever" in context[-1]["content"]
    for number in count() if is_endless else range(10):
        yield f"{number} "
        await asyncio.sleep(0.02)


def main(url: str) -> None:
    """Serve until killed."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(listening.getsockname()[1], flush=True)
        app = create_app(url, model, lease_s=1)
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run([listening])


if __name__ == "__main__":
    main(*sys.argv[1:])
