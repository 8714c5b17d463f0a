"""Where are spaces kept, on Redis, Valkey, or a cluster of either?

A space is five keys of one slot, and one Lua script applies a batch to them. To add to it:
`scripts/space.lua` says how a space is kept, `encoding` is its Python side, `wire` is the only part that
knows the driver, `client` who answers for what, and `store` joins them.
"""

from keepstate.stores.redis.store import RedisStore

__all__ = ["RedisStore"]
