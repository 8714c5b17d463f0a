"""HOW does it change? The rooms of a space: documents, events, a queue, approvals, a history, transactions.

`kernel` is the floor, `space` the roof; between them each part of a space has a room of its own, and `repair`
is next to `space`. A room imports rooms below it only. Not an API boundary: applications use `keepstate`,
and the rooms above take `Space`, `Transaction` and what `engine.space.joint_work` offers.

Invariant: every part works through a `Unit`, alone one conditional batch, inside a transaction a piece of
that one. The engine knows `stores.protocol` and no backend.

To add a part: give it a prefix in `kernel.layout`, build it on an `Executor`, and add it to
`space.space.Parts`.
"""
