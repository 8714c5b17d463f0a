"""WHERE is it kept? On a Redis or Valkey server, or a cluster of either, in five keys of one slot per space.

Invariant: one Lua script checks a batch and applies it whole; everything in it that can fail comes before its
first write. A write whose reply was lost counts as unknown, and its outcome is asked for by its token.

To add a script: write it into `scripts/`, with the parts that it shares, and name in `scripts.py` how many of
a space's keys it uses. `scripts/parts/space.lua` describes the layout of a space, and `encoding` is its
Python side. Only `wire` knows the driver, only `client` knows which node serves which slot, and `store` joins
them. Not an API boundary: open a store by its URL.
"""

from keepstate.stores.redis.store import RedisStore

__all__ = ["RedisStore"]
