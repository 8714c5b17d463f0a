"""A stage on which a test opens Redis stores by URL, in both modes."""

from __future__ import annotations

from keepstate.stores.redis import RedisStore
from keepstate.stores.urls import StoreUrl
from keepstate.testing.store_contract.stage import Stage

A, DOC = b"\x01a", b"\x02doc"


class RedisStage(Stage):
    def make(self, url: str) -> RedisStore:
        """Return a handle that is not yet opened."""
        return RedisStore(StoreUrl.parse(url), runner=self.runner())

    async def open(self, url: str) -> RedisStore:
        return await self.make(url).open()
