"""Takes a whole history out of a space, and brings one in."""

from __future__ import annotations

from keepstate.engine import layout
from keepstate.engine.describing import describe
from keepstate.engine.history.bundle import Bundle
from keepstate.engine.history.grafts import put_grafts
from keepstate.engine.history.heads import Head, heads, put_head, read_head
from keepstate.engine.history.ledger import Ledger
from keepstate.engine.history.objects import UnitObjects, packed
from keepstate.errors import AlreadyExistsError
from keepstate.values.merkle import reach
from keepstate.values.refs import Kind, Ref


async def taken_out(ledger: Ledger) -> Bundle:
    """Returns all that branches and tags lead to."""
    bundle = Bundle(branches=await _heads(ledger, layout.BRANCHES), tags=await _heads(ledger, layout.TAGS))
    grafts = await ledger.grafts()
    todo = [head.commit for head in (*bundle.branches.values(), *bundle.tags.values())]
    known: set[bytes] = set()
    while todo:
        id = todo.pop()
        if id in bundle.commits:
            continue
        record = await ledger.record(id)
        bundle.commits[id] = record.encoding()
        if id in grafts:
            bundle.grafts[id] = grafts[id]
        roots = record.roots()

        def take(ref: Ref, data: bytes, roots: dict[bytes, bytes] = roots) -> None:
            if ref.name not in roots:
                bundle.objects[ref.name] = Kind(ref.kind), data

        await ledger.serve(reach([record.root], known, take), keep=False)
        known.difference_update(roots)  # another commit may not carry them
        todo += await ledger.parents(id)
    return bundle


async def _heads(ledger: Ledger, part: bytes) -> dict[str, Head]:
    # Read again, so that what is missing then is told apart from what was deleted meanwhile.
    names = [name async for name, _ in heads(ledger.unit, part)]
    found = [(name, await read_head(ledger.unit, part, name)) for name in names]
    return {name: head for name, head in found if head is not None}


async def brought_in(ledger: Ledger, bundle: Bundle) -> int:
    """Writes a history, and returns how many commits it has.

    Raises:
        AlreadyExistsError: A branch or tag of the same name stands on another commit.
    """
    for part, named in ((layout.BRANCHES, bundle.branches), (layout.TAGS, bundle.tags)):
        for name, head in named.items():
            there = await read_head(ledger.unit, part, name)
            if there is not None and there != head:
                what = describe(layout.named_key(part, name))
                raise AlreadyExistsError(
                    f"{what} of {ledger.unit.space!r} is another one; bring the history into another space"
                )
            if there is None and part is layout.BRANCHES:
                await ledger.refuse_recorded(name)
            put_head(ledger.unit, part, name, head)
    objects = UnitObjects(ledger.unit)
    for object_name, (_, data) in bundle.objects.items():
        objects.put(object_name, data)
    for id, record in bundle.commits.items():
        ledger.unit.put_object(layout.COMMITS + id, packed(record))
    grafts = await ledger.grafts()
    if (all_grafts := {**grafts, **bundle.grafts}) != grafts:
        put_grafts(ledger.unit, all_grafts)
    return len(bundle.commits)
