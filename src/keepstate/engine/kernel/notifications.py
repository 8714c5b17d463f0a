"""Change notifications from any store: pushed if it supports listeners, otherwise polled every 50 ms."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from keepstate.stores.protocol import Listener, Listening, Store

_POLL_S = 0.05
"""Seconds between two polls of a store that does not queue hints for a listener that is not waiting."""


class _PollingListener:
    def __init__(self, store: Store, space: str) -> None:
        self._store, self._space = store, space

    async def wait(self, timeout_s: float) -> None:
        await self._store.wait([self._space], min(timeout_s, _POLL_S))

    def close(self) -> None:
        return


@asynccontextmanager
async def listen(store: Store, space: str) -> AsyncGenerator[Listener]:
    """Yield a listener that receives every hint of the space from now on."""
    listener: Listener = (
        store.listen([space]) if isinstance(store, Listening) else _PollingListener(store, space)
    )
    try:
        yield listener
    finally:
        listener.close()
