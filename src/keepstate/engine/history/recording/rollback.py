"""Puts the documents of a recorded space back as they were; the batch that does so becomes the commit."""

from __future__ import annotations

from collections.abc import Sequence

from keepstate.engine.documents.record import join_record, write_record
from keepstate.engine.history.commit_request import CommitRequest, CommitResult
from keepstate.engine.history.heads import Head
from keepstate.engine.history.paths import CODEC
from keepstate.engine.history.recording import expiry
from keepstate.engine.history.recording.flag import read_flag
from keepstate.engine.history.session import HistorySession
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.executor import Executor
from keepstate.engine.kernel.unit import Unit
from keepstate.errors import InvalidError
from keepstate.values import limits
from keepstate.values.codec import canonical, packed
from keepstate.values.contents import open_contents, whole
from keepstate.values.diff import unlike_keys
from keepstate.values.inline import holds_pickle, inlined
from keepstate.values.merkle import MerkleValue, gather
from keepstate.values.nodes import Entry
from keepstate.values.refs import together


async def put_back(
    executor: Executor, session: HistorySession, request: CommitRequest, head: Head, state: MerkleValue
) -> CommitResult:
    """Change documents to those of a state; they live until they are deleted.

    Returns:
        Where `main` was: the recorder tells the unit what it becomes.

    Raises:
        InvalidError: It is part of a transaction, or more than one batch may have.
    """
    executor.require_outside_transaction("going back in a recorded space")
    unit, record = session.unit, await session.record(head.commit)
    session.known.add(state.objects)
    now, then = await session.serve(together([open_contents(record.root), open_contents(state.encoding)]))
    changed = {_name(was or entry): entry for was, entry in await session.serve(unlike_keys(now, then))}
    for name in await _expired(unit):
        if (entry := await session.serve(then.find(canonical(name)))) is not None:
            changed.setdefault(name, entry)
    await _read(unit, list(changed))
    for name, entry in changed.items():
        place = layout.named_key(layout.DOCUMENTS, name)
        if entry is not None:
            unit.put(place, await _stored(executor, session, place, name, entry))
        elif await unit.get(place) is not None:
            unit.delete(place)
    unit.notes.append((request.author, request.message))
    return CommitResult(head.commit, record, head.number, record.root)


def _name(entry: Entry | None) -> str:
    assert entry is not None
    name: str = CODEC.assemble(entry.key, {})
    return name


async def _expired(unit: Unit) -> Sequence[str]:
    """Return documents that the record still has, and the space has not."""
    flag = read_flag(await unit.get(layout.RECORDED))
    now_ms = await unit.now_ms()
    if flag is None or flag.expiring_ms is None or flag.expiring_ms > now_ms:
        return ()
    # Only looked at: it is the recorder that takes them out of the index.
    return list((await expiry.take_due(Unit(unit.store, unit.space, unit.name), now_ms)).gone.values())


async def _read(unit: Unit, names: Sequence[str]) -> None:
    for begin in range(0, len(names), limits.READ_KEYS):
        some = names[begin : begin + limits.READ_KEYS]
        await unit.read(*(layout.named_key(layout.DOCUMENTS, name) for name in some))


async def _stored(
    executor: Executor, session: HistorySession, place: bytes, name: str, entry: Entry
) -> bytes:
    (encoding,) = await session.serve(whole([entry]))
    body = await session.serve(inlined(encoding))
    if not holds_pickle(body):
        return join_record(place, name, packed(body))
    if executor.home.pickle is None:
        raise InvalidError(
            f"document {name!r} of {executor.name!r} held a pickle; go back by a handle with "
            "pickle=SignedPickle(…)"
        )
    # A pickle in a history is signed for histories, and a document's for its place.
    objects = await session.serve(gather([encoding]))
    return write_record(executor, place, name, executor.home.states.assemble(encoding, objects))
