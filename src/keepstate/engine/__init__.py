"""HOW does it change? What a space offers: documents, events, a queue, leases and transactions.

Invariant: every part works through a `Unit`, alone one conditional batch, inside a transaction a piece of
that one. The engine knows `stores.protocol` and no backend.

To add a part: give it a name of its own in `layout`, build it on a `Scope`, and hang it into `space.Parts`.
"""
