"""WHICH work do the actors of a world do, and what must hold in the end?

Each workload uses one part of the engine as an application would, counts the answers, and compares at the
end. Invariant: it relies only on promises of the engine.

To add one: a `Workload` in a module of its own, and its row in `every.EVERY`.
"""
