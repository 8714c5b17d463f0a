"""What a commit of typed state costs, by how many keys are registered and have values: it should not matter.

Both sides update the same ten keys, two at a time: ours among 100 or 1,000 keys, the other among these. Each
operation takes a snapshot, reads a key of it, and commits.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from tempfile import TemporaryDirectory
from types import new_class
from typing import Any

from bench.harness import Item, Side, Table
from keepstate import CounterKey, KeyScope, MutationBatch, sync

FEW, SOME, MANY = 10, 100, 1_000
_BY_BATCH = 500
_FLAT = 1.25
"""Within the noise of a busy machine; a cost that grew with the keys would be 10 or 100."""


def typed(table: Table) -> None:
    """Adds how much longer a commit takes among many keys than among few."""
    with TemporaryDirectory() as folder, ExitStack() as stack:
        for store, operations in (("memory", 1_000), ("SQLite", 500)):

            def commits(count: int, store: str = store) -> Side:
                url = "memory://" if store == "memory" else f"sqlite:///{folder}/{count}.db?durability=normal"
                return _commits(stack.enter_context(_filled(url, count)), _keys(FEW))

            few = commits(FEW)
            for count in (SOME, MANY):
                name = f"typed {store} commit, {count:,} keys"
                table.compare(name, _FLAT, commits(count), few, operations=operations)


def _keys(count: int) -> list[Any]:
    def named(number: int) -> Any:
        members = {"KEY": f"key {number}", "SCOPE": KeyScope.THREAD}
        return new_class(f"Key{number}", (CounterKey,), {}, lambda names: names.update(members))

    return [named(number) for number in range(count)]


def _filled(url: str, count: int) -> sync.KeyedState:
    """Returns a state in which each of so many keys has a value."""
    registered = _keys(count)
    state = sync.KeyedState(persistence=url, keys=registered)
    for begin in range(0, count, _BY_BATCH):
        batch = MutationBatch()
        for key in registered[begin : begin + _BY_BATCH]:
            batch.update(key, 1)
        state.commit(batch)
    return state


def _commits(state: sync.KeyedState, keys: Sequence[Any]) -> Side:
    def side(items: Sequence[Item]) -> None:
        for number in range(len(items)):
            snapshot = state.snapshot()
            batch = state.begin_mutation().update(keys[number % len(keys)], 1).update(keys[0], 1)
            assert snapshot.get(keys[0]) is not None
            state.commit(batch)

    return side
