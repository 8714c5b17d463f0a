"""Handlers and workers for tests of steps."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from keepstate import Suspended
from keepstate.engine.queue.queue import Task
from keepstate.engine.space.space import Space
from tests.engine.conftest import Turned

Handler = Callable[[Task], Awaitable[Any]]


async def work(space: Space, handler: Handler) -> list[BaseException]:
    """Run all tasks that are ready, as a worker does, and return what their handlers raised."""
    raised: list[BaseException] = []
    while found := await space.queue.claim("w", lease_s=60):
        for task in found:
            try:
                result = await handler(task)
            except Suspended as suspension:
                raised.append(suspension)
                await task.suspend(suspension)
            except Exception as error:  # noqa: BLE001 - the handler's
                raised.append(error)
                await task.fail(error, retry_in_s=0)
            else:
                await task.complete(result)
    return raised


async def result(space: Space, id: str = "t") -> Any:
    """Return the result of a task."""
    return await space.queue.result(id)


class Log:
    """Functions of steps that note each call."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    async def say(self, text: str) -> dict[str, str]:
        self.calls.append(text)
        await asyncio.sleep(0)
        return {"said": text}

    def fail(self) -> None:
        self.calls.append("fail")
        raise RuntimeError("no")


def random_bytes(size: int) -> bytes:
    """Return bytes that do not compress."""
    return random.Random(size).randbytes(size)


async def run_three_steps(turned: Turned, log: Log, id: str = "t") -> Handler:
    """Run a task of three steps, and return its handler."""

    async def handler(task: Task) -> Any:
        return [await task.step(name, log.say, name) for name in ("z", "a", "m")]

    await turned.space.queue.put(1, id=id)
    await work(turned.space, handler)
    log.calls.clear()
    return handler
