"""A flipped bit anywhere in a history is found, and what is whole of it can be saved."""

from __future__ import annotations

from random import Random
from typing import Any

import keepstate
from keepstate import Space
from keepstate.cli.damage import StoreSource
from keepstate.engine.history.record import Graft, decode_grafts, encode_grafts
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.large_values import parse_manifest
from keepstate.engine.repair.verifier import Problem, Verifier
from keepstate.errors import CorruptError
from keepstate.stores.protocol import Applied, Batch, Delete, Entry, Put
from keepstate.values.codec import COMPRESSED, body_of
from tests.engine.test_restoring import SPACE, remains_of, restored

PARTS = (layout.COMMITS, layout.STATES, layout.BRANCHES, layout.TAGS, layout.GRAFTS)
MESSAGES = [f"message {n} " * 5 for n in range(300)]


async def written(space: Space) -> None:
    """Write a history that has a record of each kind."""
    history = space.history
    keys = {f"key {n}": n for n in reversed(range(900))}
    await history.commit({"messages": MESSAGES, "keys": keys, "again": {"of": MESSAGES, "text": "x" * 5_000}})
    await history.branch("side")
    await history.append("messages", "side", branch="side")
    for n in range(3):
        await history.append("messages", n)
    await history.merge("side", rules={(): "append"})
    await history.tag("v1", at="main~1")
    await history.append("messages", "last")
    await history.prune(keep_last=3)


async def entries(space: Space) -> list[Entry]:
    store = await space.executor.home.opened()
    return [entry for part in PARTS for entry in (await store.scan(space.executor.stored_name, part)).entries]


def content(stored: bytes | bytearray) -> bytes | None:
    """Return what an object's bytes say, None if they cannot be read."""
    try:
        return body_of(bytes(stored)) if stored[:1] == COMPRESSED else bytes(stored)
    except CorruptError:
        return None


async def found(space: Space) -> list[Problem]:
    """Return what `doctor --verify` finds."""
    source = StoreSource(await space.executor.home.opened())
    verifier = Verifier(source, SPACE)
    return [p async for page in source.pages(SPACE) for e in page for p in await verifier.problems(e)]


async def put(space: Space, *writes: Put | Delete) -> None:
    (outcome,) = await (await space.executor.home.opened()).apply([Batch(SPACE, list(writes))])
    assert isinstance(outcome, Applied)


async def test_a_whole_history_has_no_problem(space: Space) -> None:
    space = space.executor.home.space(SPACE)  # type: ignore[attr-defined]
    await written(space)

    assert {entry.key[: len(part)] for entry in await entries(space) for part in PARTS} >= set(PARTS)
    assert (await space.history.verify()).problems == ()
    assert await found(space) == []


async def test_a_flipped_bit_is_found_wherever_it_is() -> None:
    chance = Random(1)
    async with keepstate.open("memory://") as ks:
        space = ks.space(SPACE)
        await written(space)
        missed: list[Any] = []
        for entry in await entries(space):
            bits = range(8 * len(entry.value))
            for bit in chance.sample(bits, 2 if entry.key.startswith(layout.STATES) else 25):
                damaged = bytearray(entry.value)
                damaged[bit // 8] ^= 1 << bit % 8
                if content(damaged) == content(entry.value):
                    continue  # a bit that the compression ignores
                await put(space, Put(entry.key, bytes(damaged)))
                if not await found(space):
                    missed.append(("doctor", entry.key, bit))
                if bit % 7 == 0 and not (await space.history.verify()).problems:
                    missed.append(("verify", entry.key, bit))
            await put(space, Put(entry.key, entry.value))

        assert missed == []


async def test_a_missing_record_is_found_and_said_of_the_commit_that_lacks_it() -> None:
    async with keepstate.open("memory://") as ks:
        space = ks.space(SPACE)
        await written(space)
        for entry in await entries(space):
            if entry.key.startswith(PARTS[:2]):
                await put(space, Delete(entry.key))

                problems = await found(space)
                assert problems
                assert all("missing" in problem.what for problem in problems)
                assert (await space.history.verify()).problems
                await put(space, Put(entry.key, entry.value))


async def test_a_history_is_restored_with_its_space() -> None:
    async with keepstate.open("memory://") as ks, keepstate.open("memory://") as into:
        await written(ks.space(SPACE))
        assert await restored(ks, into) == []

        history = into.space(SPACE).history
        assert (await history.verify()).problems == ()
        assert [c.id async for c in history.log()] == [c.id async for c in ks.space(SPACE).history.log()]
        assert (await history.append("messages", "goes on")).number == 7


async def test_what_is_whole_of_a_damaged_history_is_restored() -> None:
    async with keepstate.open("memory://") as ks, keepstate.open("memory://") as into:
        space = ks.space(SPACE, record=True)
        for n in range(40):
            await space.documents.put(f"doc {n}", f"{n} " * 99)
        await space.history.tag("early", at="main#1")
        lost = layout.COMMITS + bytes.fromhex((await space.history.find("main#20")).id)
        problems = await restored(ks, into, without=[lost])

        again = into.space(SPACE)
        assert [problem.key for problem in problems] == [lost]
        assert len(await again.at()) == 40
        assert len(await again.at("main#30")) == 30
        assert len(await again.at("early")) == 1
        await again.documents.put("doc 0", "goes on")
        assert (await again.at())["doc 0"] == "goes on"


async def test_documents_go_on_where_their_record_is_damaged() -> None:
    async with keepstate.open("memory://") as ks, keepstate.open("memory://") as into:
        space = ks.space(SPACE, record=True)
        for n in range(300):
            await space.documents.put(f"doc {n}", f"{n} " * 99)
        remains = await remains_of(ks)
        objects = [e.key for e in remains._entries[SPACE].values() if e.key.startswith(layout.STATES)]
        problems = await restored(ks, into, without=objects[::2])
        assert any(problem.key.startswith(layout.BRANCHES) for problem in problems)

        again = into.space(SPACE)
        for n in range(300):
            await again.documents.put(f"doc {n}", n)
        assert dict(await again.at()) == {f"doc {n}": n for n in range(300)}


def test_what_stands_for_pruned_parents_is_never_taken_for_a_value_in_parts() -> None:
    for number in range(1_500):
        grafts = {number.to_bytes(20): Graft([b"\0" * 20], number, True, 1)}

        stored = encode_grafts(grafts)

        assert parse_manifest(stored, "grafts") is None
        assert decode_grafts(stored) == grafts
