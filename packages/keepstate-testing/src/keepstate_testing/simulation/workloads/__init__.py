"""WHICH work do the actors of a world do, and what must hold in the end?

Each workload uses one part of the engine as an application would, keeps count of what it was told, and at the
end compares. Invariant: what it counts on is only what the engine promised.

To add one: a `Workload` in a module of its own, and its row in `every.EVERY`.
"""
