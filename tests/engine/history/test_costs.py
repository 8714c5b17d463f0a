"""What a change costs: what it changes, and not what there is."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import keepstate
from keepstate.engine.history.history import History
from keepstate.engine.space.keepstate import Keepstate
from keepstate.stores.memory import MemoryStore
from keepstate.stores.protocol import Batch, Outcome, Put
from tests.engine.history.conftest import blocking_history, history_of


class WeighedStore(MemoryStore):
    """A store that counts the bytes of what it is given to write."""

    written = 0

    async def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        self.written += sum(weight(batch) for batch in batches)
        return await super().apply(batches)


def weight(batch: Batch) -> int:
    return sum(len(write.key) + len(write.value if isinstance(write, Put) else b"") for write in batch.writes)


def messages(dice: random.Random, count: int) -> list[dict[str, Any]]:
    """Return messages of about 507 bytes that hardly compress."""
    return [{"role": "user", "n": number, "content": dice.randbytes(236).hex()} for number in range(count)]


async def weighed(opened: list[Keepstate], size: int, rounds: int) -> float:
    """Return how many bytes an append writes after so many messages."""
    totals: list[int] = []
    for seed in range(rounds):
        dice = random.Random(seed)
        store = WeighedStore()
        opened.append(keepstate.open(store))
        await store.open()
        history = history_of(opened[-1].space("run/1"))
        await history.commit({"messages": messages(dice, size), "plan": "x"})
        store.written = 0
        for message in messages(dice, 100):
            await history.append("messages", message)
        totals.append(store.written)
        await store.close()
    return statistics.mean(totals) / 100


@pytest.mark.slow
async def test_an_append_to_ten_thousand_messages_writes_at_most_2_5_kb(opened: list[Keepstate]) -> None:
    few, many = await weighed(opened, 100, 12), await weighed(opened, 10_000, 3)

    assert few > 500
    assert many <= 2_500
    assert many <= 1.3 * few


@pytest.mark.timed
def test_an_append_to_ten_thousand_messages_takes_as_long_as_to_a_hundred(tmp_path: Path) -> None:
    dice = random.Random(1)
    with keepstate.sync.open(f"sqlite:///{tmp_path}/keepstate.db?durability=normal") as ks:
        histories = {size: blocking_history(ks, str(size)) for size in (100, 10_000)}
        for size, history in histories.items():
            history.commit({"messages": messages(dice, size), "plan": "x"})
        ratios: list[float] = []
        for _ in range(4):
            took_s: dict[int, list[float]] = {size: [] for size in histories}
            for message in messages(dice, 100):
                for size, history in histories.items():
                    began_s = time.perf_counter()
                    history.append("messages", message)
                    took_s[size].append(time.perf_counter() - began_s)
            ratios.append(statistics.median(took_s[10_000]) / statistics.median(took_s[100]))

    # The best of four, as a machine that does something else now and then delays either.
    assert min(ratios) <= 1.3, ratios


async def test_one_of_a_thousand_keys_costs_at_most_2_2_kb(opened: list[Keepstate]) -> None:
    dice, store = random.Random(3), WeighedStore()
    opened.append(keepstate.open(store))
    await store.open()
    history = history_of(opened[-1].space("run/1"))
    await history.commit({f"key{n}": dice.randbytes(250).hex() for n in range(1_000)})
    draft = await history.begin(load=False)
    store.written = 0
    for _ in range(50):
        draft[f"key{dice.randrange(1_000)}"] = dice.randbytes(250).hex()
        await draft.commit()

    await store.close()

    assert 500 < store.written / 50 <= 2_200


async def test_an_append_writes_a_message_and_a_commit(history: History) -> None:
    await history.commit({"messages": [f"{n} " * 99 for n in range(500)]})
    store = await history._executor.store()
    rows = 0
    for number in range(20):
        before = {entry.key for entry in (await store.scan("run/1", b"\0", limit=1_000)).entries}
        await history.append("messages", f"new {number} " * 20)
        rows += len({e.key for e in (await store.scan("run/1", b"\0", limit=1_000)).entries} - before)

    assert 40 <= rows <= 50
