"""One flipped bit anywhere in a history: verification finds it unless it says nothing; no state is wrong."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

import keepstate
from keepstate._runner import TaskRunner
from keepstate.engine.history.history import History
from keepstate.engine.kernel import layout
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import CorruptError, KeepstateError
from keepstate.stores.memory import MemoryStore
from keepstate.stores.protocol import Batch, Entry, Put
from keepstate.values.codec import COMPRESSED, body_of
from tests.crashes.history_company import fingerprint
from tests.tally import Tally, first_seed

SPACE = "run/1"
PARTS = (layout.BRANCHES, layout.TAGS, layout.GRAFTS, layout.COMMITS, layout.STATES)
LINES = [f"line {n} " * 9 for n in range(120)]


async def write(history: History) -> None:
    """Make a history with a bit of all: large and small states, a merge, a tag, pruned commits."""
    for number in range(5):
        await history.commit({"log": LINES[: 20 + number], "n": number}, message=f"{number}", author="ada")
    await history.branch("side")
    await history.append("log", "beside", branch="side")
    draft = await history.begin()
    draft["keys"] = {f"key{n}": n for n in range(400)}
    draft["blob"], draft["set"] = b"\0" * 5_000, {1, "two", (3,)}
    await draft.commit("large")
    await history.merge("side")
    await history.tag("v1", "main~1")
    await history.append("log", "end")
    await history.prune(keep_last=3)


async def rows(store: MemoryStore) -> list[Entry]:
    """Return the rows of a history; a bit may be flipped in each of their bytes."""
    return [entry for part in PARTS for entry in (await store.scan(SPACE, part, limit=1_000)).entries]


async def read(ks: Keepstate) -> dict[str, str]:
    """Return the states that names lead to, but for those which cannot be read."""
    history = ks.space(SPACE).history
    states: dict[str, str] = {}
    for ref in ("main", "main~1", "main~2", "side", "v1"):
        try:
            states[ref] = fingerprint(_shown(dict(await history.checkout(ref))))
        except KeepstateError:
            continue
    return states


def _shown(state: dict[str, Any]) -> dict[str, Any]:
    return {
        key: sorted(map(repr, value)) if isinstance(value, set) else value for key, value in state.items()
    }


def inflates_alike(entry: Entry, flipped: bytearray) -> bool:
    """Whether compressed bytes stand for what they stood for: some of a frame's bits say nothing."""
    if entry.value[:1] != COMPRESSED:
        return False
    try:
        return body_of(bytes(flipped)) == body_of(entry.value)
    except CorruptError:
        return False


async def flip(count: int, seed: int) -> list[str]:
    """Flip so many bits, one after the other, and return what was found to be wrong."""
    dice, wrong, store = Random(seed), list[str](), MemoryStore(runner=TaskRunner())
    await store.open()
    async with keepstate.open(store) as ks:
        await write(ks.space(SPACE).history)
        expected, stored = await read(ks), await rows(store)
        assert len(expected) == 5
        places = [(entry, at) for entry in stored for at in range(len(entry.value))]
        for entry, at in dice.sample(places, min(count, len(places))):
            flipped = bytearray(entry.value)
            flipped[at] ^= 1 << dice.randrange(8)
            await store.apply([Batch(SPACE, [Put(entry.key, bytes(flipped))])])
            place = f"byte {at} of {entry.key!r}"
            if not (await ks.space(SPACE).history.verify()).problems and not inflates_alike(entry, flipped):
                wrong.append(f"{place} was not found")
            async with keepstate.open(store) as other:
                states = await read(other)
            wrong += [f"{place} changed {ref}" for ref in states if states[ref] != expected[ref]]
            await store.apply([Batch(SPACE, [Put(entry.key, entry.value)])])
        assert (await ks.space(SPACE).history.verify()).problems == ()
    await store.close()
    return wrong


@pytest.mark.parametrize(
    "count",
    [
        pytest.param(150, marks=pytest.mark.slow),
        pytest.param(4_000, marks=[pytest.mark.deep, pytest.mark.timeout(600)]),
    ],
)
def test_a_flipped_bit_is_found_wherever_it_is(count: int, tally: Tally) -> None:
    wrong = asyncio.run(flip(count, first_seed()))

    assert wrong == []
    tally("Histories: flipped bits", flipped_bits=count, corrupt=len(wrong))
