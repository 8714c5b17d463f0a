"""Puts the documents of a recorded space back as they were; the batch that does so becomes the commit."""

from __future__ import annotations

from collections.abc import Sequence

from keepstate.engine import layout
from keepstate.engine.document_record import joined_record, write_record
from keepstate.engine.history.committing import Order, Outcome
from keepstate.engine.history.heads import Head
from keepstate.engine.history.ledger import Ledger
from keepstate.engine.history.paths import CODEC
from keepstate.engine.recording import expiring
from keepstate.engine.recording.flag import read_flag
from keepstate.engine.scope import Scope
from keepstate.engine.unit import Unit
from keepstate.errors import InvalidError
from keepstate.values import limits
from keepstate.values.codec import canonical, packed
from keepstate.values.contents import open_contents, whole
from keepstate.values.diff import unlike_keys
from keepstate.values.inlining import holds_pickle, inlined
from keepstate.values.merkle import Planted, gather
from keepstate.values.nodes import Entry
from keepstate.values.refs import together


async def put_back(scope: Scope, ledger: Ledger, order: Order, head: Head, state: Planted) -> Outcome:
    """Changes documents to those of a state; they live until they are deleted.

    Returns:
        Where `main` was: the recorder tells the unit what it becomes.

    Raises:
        InvalidError: It is part of a transaction, or more than one batch may have.
    """
    scope.refuse_inside("going back in a recorded space")
    unit, record = ledger.unit, await ledger.record(head.commit)
    ledger.known.add(state.objects)
    now, then = await ledger.serve(together([open_contents(record.root), open_contents(state.encoding)]))
    changed = {_name(was or entry): entry for was, entry in await ledger.serve(unlike_keys(now, then))}
    for name in await _expired(unit):
        if (entry := await ledger.serve(then.find(canonical(name)))) is not None:
            changed.setdefault(name, entry)
    await _read(unit, list(changed))
    for name, entry in changed.items():
        place = layout.named_key(layout.DOCUMENTS, name)
        if entry is not None:
            unit.put(place, await _stored(scope, ledger, place, name, entry))
        elif await unit.get(place) is not None:
            unit.delete(place)
    unit.notes.append((order.author, order.message))
    return Outcome(head.commit, record, head.number, record.root)


def _name(entry: Entry | None) -> str:
    assert entry is not None
    name: str = CODEC.assemble(entry.key, {})
    return name


async def _expired(unit: Unit) -> Sequence[str]:
    """Returns documents that the record still has, and the space has not."""
    flag = read_flag(await unit.get(layout.RECORDED))
    now_ms = await unit.now_ms()
    if flag is None or flag.expiring_ms is None or flag.expiring_ms > now_ms:
        return ()
    # Only looked at: it is the recorder that takes them out of the index.
    return list((await expiring.take_due(Unit(unit.store, unit.space, unit.name), now_ms)).gone.values())


async def _read(unit: Unit, names: Sequence[str]) -> None:
    for begin in range(0, len(names), limits.READ_KEYS):
        some = names[begin : begin + limits.READ_KEYS]
        await unit.read(*(layout.named_key(layout.DOCUMENTS, name) for name in some))


async def _stored(scope: Scope, ledger: Ledger, place: bytes, name: str, entry: Entry) -> bytes:
    (encoding,) = await ledger.serve(whole([entry]))
    body = await ledger.serve(inlined(encoding))
    if not holds_pickle(body):
        return joined_record(place, name, packed(body))
    if scope.home.pickle is None:
        raise InvalidError(
            f"document {name!r} of {scope.name!r} held a pickle; go back by a handle with "
            "pickle=SignedPickle(…)"
        )
    # A pickle in a history is signed for histories, and a document's for its place.
    objects = await ledger.serve(gather([encoding]))
    return write_record(scope, place, name, scope.home.states.assemble(encoding, objects))
