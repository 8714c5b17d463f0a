"""What a commit of typed state costs, by how many keys are registered and have values: it should not matter.

Both sides update the same ten keys, two at a time: ours among 100 or 1,000 keys, the other among these. Each
operation takes a snapshot, reads a key of it, and commits. With two writers, another one commits between any
two of ours: to two of the ten keys, or to 48 at once, which are more than the head of a state names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from tempfile import TemporaryDirectory
from types import new_class
from typing import Any

from bench.harness import Item, Side, Table
from keepstate import CounterKey, KeyScope, MutationBatch, sync

FEW, SOME, MANY = 10, 100, 1_000
AT_ONCE = 48
_BY_BATCH = 500
_FLAT = 1.25
"""Within the noise of a busy machine; a cost that grew with the keys would be 10 or 100."""


def typed(table: Table) -> None:
    """Add how much longer a commit takes among many keys than among few."""
    with TemporaryDirectory() as folder, ExitStack() as stack:
        for store, operations in (("memory", 1_000), ("SQLite", 500)):

            def writer(count: int, who: str, store: str = store) -> sync.KeyedState:
                place = f"{who} {count}"
                memory, file = f"memory://{place}", f"sqlite:///{folder}/{place}.db?durability=normal"
                return stack.enter_context(_opened(memory if store == "memory" else file, count))

            def one(count: int, writer: Callable[[int, str], sync.KeyedState] = writer) -> Side:
                return _commits(writer(count, "one"), _keys(FEW))

            def two(count: int, writer: Callable[[int, str], sync.KeyedState] = writer) -> Side:
                return _commits(writer(count, "two"), _keys(FEW), writer(count, "two"), touched=2)

            def behind(count: int, writer: Callable[[int, str], sync.KeyedState] = writer) -> Side:
                states = writer(count, "behind"), writer(count, "behind")
                return _commits(states[0], _keys(FEW), states[1], touched=AT_ONCE)

            for name, commits, least, share in (
                ("commit", one, FEW, 1),
                ("commit beside another", two, FEW, 2),
                (f"commit behind {AT_ONCE} changes", behind, 2 * AT_ONCE, 10),
            ):
                few = commits(least)
                for count in (SOME, MANY):
                    told = f"typed {store} {name}, {count:,} keys"
                    table.compare(told, _FLAT, commits(count), few, operations=operations // share)


def _keys(count: int) -> list[Any]:
    def named(number: int) -> Any:
        members = {"KEY": f"key {number}", "SCOPE": KeyScope.THREAD}
        return new_class(f"Key{number}", (CounterKey,), {}, lambda names: names.update(members))

    return [named(number) for number in range(count)]


def _opened(url: str, count: int) -> sync.KeyedState:
    """Return a state in which each of so many keys has a value."""
    registered = _keys(count)
    state = sync.KeyedState(persistence=url, keys=registered)
    state.refresh()
    if state.read(registered[0]) is None:
        for begin in range(0, count, _BY_BATCH):
            state.commit(_added(registered[begin : begin + _BY_BATCH]))
    return state


def _added(keys: Sequence[Any]) -> MutationBatch:
    batch = MutationBatch()
    for key in keys:
        batch.update(key, 1)
    return batch


def _commits(
    state: sync.KeyedState, keys: Sequence[Any], other: sync.KeyedState | None = None, *, touched: int = 0
) -> Side:
    others = _keys(touched)

    def side(items: Sequence[Item]) -> None:
        for number in range(len(items)):
            if other is not None:
                other.commit(_added(others))
            snapshot = state.snapshot()
            batch = state.begin_mutation().update(keys[number % len(keys)], 1).update(keys[0], 1)
            assert snapshot.get(keys[0]) is not None
            state.commit(batch)

    return side
