"""WHERE on a Redis or Valkey server, or a cluster of either, are spaces kept? In five keys of one slot each.

Invariant: one Lua script judges a batch and applies it whole; whatever can fail in it stands before its first
write. What a server does not say to be unwritten counts as unknown, and is asked for again by its token.

To add a script: write it into `scripts/`, with the parts that it shares, and name in `scripts.py` how many of
a space's keys it works on. `scripts/parts/space.lua` says how a space is kept, `encoding` is its Python side,
`wire` alone knows the driver, `client` who answers for what, and `store` joins them.
"""

from keepstate.stores.redis.store import RedisStore

__all__ = ["RedisStore"]
