"""Takes a whole history out of a space, and brings one in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from keepstate.engine.history.bundle import Bundle
from keepstate.engine.history.grafts import put_grafts
from keepstate.engine.history.heads import MAIN, Head, heads, put_head, read_head
from keepstate.engine.history.objects import UnitObjects, packed
from keepstate.engine.history.session import HistorySession
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.key_text import describe
from keepstate.errors import AlreadyExistsError
from keepstate.values import limits
from keepstate.values.merkle import reach
from keepstate.values.refs import Kind, Ref

_Named: TypeAlias = tuple[bytes, str, Head]
"""Which of the two it is, its name, and where it stands."""


async def taken_out(session: HistorySession) -> Bundle:
    """Return all that branches and tags lead to."""
    bundle = Bundle(branches=await _heads(session, layout.BRANCHES), tags=await _heads(session, layout.TAGS))
    grafts = await session.grafts()
    todo = [head.commit for head in (*bundle.branches.values(), *bundle.tags.values())]
    known: set[bytes] = set()
    while todo:
        id = todo.pop()
        if id in bundle.commits:
            continue
        record = await session.record(id)
        bundle.commits[id] = record.encoding()
        if id in grafts:
            bundle.grafts[id] = grafts[id]
        roots = record.roots()

        def take(ref: Ref, data: bytes, roots: dict[bytes, bytes] = roots) -> None:
            if ref.name not in roots:
                bundle.objects[ref.name] = Kind(ref.kind), data

        await session.serve(reach([record.root], known, take), keep=False)
        known.difference_update(roots)  # another commit may not carry them
        todo += await session.parents(id)
    return bundle


async def _heads(session: HistorySession, part: bytes) -> dict[str, Head]:
    # Read again, so that what is missing then is told apart from what was deleted meanwhile.
    names = [name async for name, _ in heads(session.unit, part)]
    found = [(name, await read_head(session.unit, part, name)) for name in names]
    return {name: head for name, head in found if head is not None}


async def brought_in(session: HistorySession, bundle: Bundle, most: int | None = None) -> bool:
    """Write a history, and return whether all of it is there now; if not, the same call goes on.

    The branch `main` comes last. What branches and tags lead to that are there already is not written again.

    Args:
        session: Where it is written.
        bundle: The history.
        most: So many branches and tags at once.

    Raises:
        AlreadyExistsError: A branch or tag of the same name stands on another commit.
    """
    absent = await _absent(session, bundle)
    now = absent[:most]
    new = bundle if len(now) == len(bundle.branches) + len(bundle.tags) else _part(bundle, now, absent)
    for part, name, head in now:
        if part is layout.BRANCHES:
            await session.refuse_recorded(name)
        put_head(session.unit, part, name, head)
    objects = UnitObjects(session.unit)
    for object_name, (_, data) in new.objects.items():
        objects.put(object_name, data)
    for id, record in new.commits.items():
        session.unit.put_object(layout.COMMITS + id, packed(record))
    grafts = await session.grafts()
    if (all_grafts := {**grafts, **new.grafts}) != grafts:
        put_grafts(session.unit, all_grafts)
    return len(now) == len(absent)


async def _absent(session: HistorySession, bundle: Bundle) -> list[_Named]:
    """Return the branches and tags that are not there, `main` last; the batch stands on the others."""
    named = _named(bundle)
    keys = [layout.named_key(part, name) for part, name, _ in named]
    for begin in range(0, len(keys), limits.READ_KEYS):
        await session.unit.read(*keys[begin : begin + limits.READ_KEYS])
    absent: list[_Named] = []
    for key, (part, name, head) in zip(keys, named, strict=True):
        there = await read_head(session.unit, part, name)
        if there is None:
            absent.append((part, name, head))
        elif there != head:
            raise AlreadyExistsError(
                f"{describe(key)} of {session.unit.space!r} is another one; "
                "bring the history into another space"
            )
    return sorted(absent, key=lambda one: one[:2] == (layout.BRANCHES, MAIN))


def _named(bundle: Bundle) -> list[_Named]:
    return [
        (part, name, head)
        for part, heads in ((layout.BRANCHES, bundle.branches), (layout.TAGS, bundle.tags))
        for name, head in heads.items()
    ]


def _part(bundle: Bundle, now: Sequence[_Named], absent: Sequence[_Named]) -> Bundle:
    """Return what some branches and tags lead to, without the commits of those that are there."""
    to_come = {one[:2] for one in absent}
    there = [head.commit for part, name, head in _named(bundle) if (part, name) not in to_come]
    return bundle.led_to([head.commit for _, _, head in now], bundle.reached(there))
