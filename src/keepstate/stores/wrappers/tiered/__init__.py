"""HOW NEAR is it kept? A store with memory, and perhaps a shared cache, in front of it.

`hot` is what this process remembers, `warm` what a cache shares between processes, `breaker` keeps a cache
that fails out of the way, `store` asks them in turn.

Invariant: the cold store is the truth. What the other tiers tell is believed only as of a revision, and only
once the cold store has told that nothing has changed since.

To add a tier: let it tell entries with the revision that they are of, and `store` how that is verified.
"""

from keepstate.stores.wrappers.tiered.store import TieredStore

__all__ = ["TieredStore"]
