"""The invariant of the index, in all interleavings of the processes that change it, wherever one is killed.

Each story is followed through all its schedules. Each planted bug is found by one of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from keepstate._finish import finish
from keepstate.engine.index import carrier as module
from keepstate.engine.index.carrier import Carrier, Location
from keepstate.engine.index.rows import Row
from keepstate.engine.index.summaries import Reading
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.subjects import Subject
from keepstate.stores.protocol import Batch, Put
from tests.engine.index.interleaving import (
    LOCATION,
    Actor,
    Body,
    Broken,
    World,
    carry,
    delete,
    drop,
    erase,
    explore,
    put,
    sweep,
    together,
)


def _is_gone(world: World) -> None:
    found = finish(world.store.spaces())
    if found:
        raise Broken(f"the tenant was erased, and has the spaces {found}")


STORIES: Mapping[str, tuple[Sequence[Actor], dict[str, Any]]] = {
    "a change": ((Actor("writer", together(put("new"), carry)),), {}),
    "a change that two carry": (
        (Actor("writer", together(put("new"), carry)), Actor("carrier", carry)),
        {"before": put("waits"), "most": 1_500},
    ),
    "a deletion that two carry": (
        (Actor("writer", together(delete, carry)), Actor("carrier", carry)),
        {"before": put("waits"), "most": 1_500},
    ),
    "a drop": ((Actor("dropper", drop), Actor("carrier", carry)), {"before": put("waits"), "most": 500}),
    "a drop and a new life": (
        (Actor("dropper", drop), Actor("writer", put("again"), mortal=False)),
        {"before": put("waits")},
    ),
    "an erasure": (
        (Actor("eraser", erase, mortal=False), Actor("carrier", carry)),
        {"at_end": _is_gone, "before": put("waits"), "only_at_end": True},
    ),
}
LONG: Mapping[str, tuple[Sequence[Actor], dict[str, Any]]] = {
    "two lives": (
        (Actor("writer", together(put("new"), delete, carry), mortal=False), Actor("carrier", carry)),
        {"before": put("waits")},
    ),
    "two kills": (
        (Actor("writer", together(delete, carry)), Actor("carrier", carry)),
        {"before": put("waits"), "kills": 2},
    ),
    "a deletion that two carry, whole": STORIES["a deletion that two carry"],
    "a change that two carry, whole": STORIES["a change that two carry"],
    "a drop, whole": STORIES["a drop"],
    "three processes": (
        (
            Actor("writer", together(put("new"), delete), mortal=False),
            Actor("carrier", carry),
            Actor("other", carry, mortal=False),
        ),
        {},
    ),
    "a drop under a sweep": (
        (Actor("dropper", drop), Actor("sweeper", sweep, mortal=False)),
        {"before": put("waits")},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("story", STORIES)
def test_the_index_is_never_wrong_for_ever(story: str) -> None:
    actors, options = STORIES[story]

    assert explore(actors, **options) > 10


@pytest.mark.deep
@pytest.mark.parametrize("story", LONG)
def test_the_index_is_never_wrong_for_ever_in_long_stories(story: str) -> None:
    actors, options = LONG[story]

    assert explore(actors, **{**options, "most": 200_000}) > 1_000


# ---- planted bugs


class UnmarksAtOnce(Carrier):
    """Deletes the mark of a row that could not be settled, and reconciles nothing."""

    async def reconcile(self, location: Location, mark: bytes | None) -> bool:
        if mark is not None:
            await self._unmark([mark])
        return True


class TakesOlderRows(Carrier):
    """Replaces a row also by an older one."""

    def _stays(self, row: Row, item: Any) -> bool:
        return False


class DeletesAnyOutbox(Carrier):
    """Deletes an outbox whatever its version is."""

    def _settlement(self, stored: str, subject: Subject, item: Any) -> Batch:
        batch = super()._settlement(stored, subject, item)
        return Batch(batch.space, batch.writes)


class LeavesRows(Carrier):
    """Drops a space, and leaves the rows of its subjects."""

    async def _reconcile_space(self, space: str) -> bool:
        return True


class LosesDeliveries(Carrier):
    """Deletes the outbox of a subject whose row it did not write."""

    async def _write_rows(self, items: Any, marks: Any, known: Any = None) -> list[Location]:
        return [*items]


class SettlesFirst(Carrier):
    """Delivers in the wrong order: it deletes the outbox and then writes the row, without a mark."""

    async def _carry_some(self, subjects: Sequence[Location], *, rebuilds: bool) -> set[Location]:
        items = {location: await self.read(location) for location in subjects}
        settled = await self._settle(items)
        await self._write_rows({location: items[location] for location in settled}, {})
        return settled


class BelievesItsReading(Carrier):
    """Does not read again whether the subject of a row that it reconciles has changed meanwhile."""

    async def _is_unchanged(self, location: Location, reading: Reading) -> bool:
        return True


class SetsOverAnything(Carrier):
    """Reconciles a row without the check that it is still the one that was read before the subject."""

    async def _write_rows(self, items: Any, marks: Any, known: Any = None) -> list[Location]:
        if known is not None:
            keys = {location: self.key_of(location) for location in known}
            entries = (await self.store.read(self.space, [*keys.values()])).entries
            known = dict(zip(keys, entries, strict=True))
        return await super()._write_rows(items, marks, known)


class MakesItsIndex(Carrier):
    """Makes the index again if it is gone."""

    async def _unmark(self, marks: Sequence[bytes]) -> None:
        if await self.meta() is None:
            await self.store.apply([Batch(self.space, [Put(layout.INDEX_META, module.encode([1]))])])
        await super()._unmark(marks)


PLANTED: Mapping[type[Carrier], str] = {
    UnmarksAtOnce: "a deletion that two carry",
    TakesOlderRows: "a change that two carry",
    DeletesAnyOutbox: "a change that two carry",
    LosesDeliveries: "a change that two carry",
    SettlesFirst: "a change that two carry",
    LeavesRows: "a drop",
    MakesItsIndex: "an erasure",
}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.deep] * (kind is TakesOlderRows)) for kind in PLANTED]
)
def test_a_planted_bug_is_found(kind: type[Carrier]) -> None:
    actors, options = STORIES[PLANTED[kind]]

    with pytest.raises(Broken):
        explore(actors, kind=kind, **{**options, "most": None, "kills": kind is LeavesRows})


RECONCILED: Mapping[type[Carrier], Body] = {
    BelievesItsReading: together(carry, delete, carry),
    SetsOverAnything: together(put("new"), carry),
}


async def _reconcile(_: Any, carrier: Carrier) -> None:
    await carrier.reconcile(LOCATION, carrier._new_mark(LOCATION))


@pytest.mark.parametrize(
    "kind",
    [Carrier, SetsOverAnything, pytest.param(BelievesItsReading, marks=pytest.mark.deep)],
)
def test_a_planted_bug_of_a_reconciliation_is_found(kind: type[Carrier]) -> None:
    late = Actor("late", _reconcile, mortal=False)

    for planted, body in RECONCILED.items():
        actors = late, Actor("writer", body, mortal=False)
        if kind is planted:
            with pytest.raises(Broken):
                explore(actors, kind=kind, before=put("waits"))
        elif kind is Carrier:
            explore(actors, before=put("waits"), most=400)


def test_a_mark_of_a_drop_under_way_that_is_removed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_STALE_MS", -1)
    actors = Actor("dropper", drop), Actor("sweeper", sweep, mortal=False)

    with pytest.raises(Broken):
        explore(actors)
