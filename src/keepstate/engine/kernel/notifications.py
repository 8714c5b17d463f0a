"""Hints of changes, from any store: exact where the store can hold a hint, by short waits where it cannot."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from keepstate.stores.protocol import Listener, Listening, Store

_UNHEARD_S = 0.05
"""How long a hint may be missed on a store that keeps none for who is not waiting."""


class _Waits:
    def __init__(self, store: Store, space: str) -> None:
        self._store, self._space = store, space

    async def wait(self, timeout_s: float) -> None:
        await self._store.wait([self._space], min(timeout_s, _UNHEARD_S))

    def close(self) -> None:
        return


@asynccontextmanager
async def listen(store: Store, space: str) -> AsyncGenerator[Listener]:
    """Yield a listener that misses no hint of the space from now on."""
    listener: Listener = store.listen([space]) if isinstance(store, Listening) else _Waits(store, space)
    try:
        yield listener
    finally:
        listener.close()
