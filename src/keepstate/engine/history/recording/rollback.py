"""Restores the documents of a recorded space to an earlier state, in the batch that becomes the commit."""

from __future__ import annotations

from collections.abc import Sequence

from keepstate.engine.documents.record import join_record, write_record
from keepstate.engine.documents.write_rules import mark_changed, read_rules
from keepstate.engine.history.commit_request import CommitRequest, CommitResult
from keepstate.engine.history.paths import CODEC
from keepstate.engine.history.record import Head
from keepstate.engine.history.recording import expiry
from keepstate.engine.history.session import HistorySession
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.executor import Executor
from keepstate.engine.kernel.recorded import Note
from keepstate.engine.kernel.unit import Unit
from keepstate.errors import InvalidError
from keepstate.values import limits
from keepstate.values.codec import canonical, pack_body
from keepstate.values.contents import holds_pickle, inline_objects, open_contents, whole
from keepstate.values.diff import unlike_keys
from keepstate.values.merkle import MerkleValue, gather
from keepstate.values.nodes import Entry
from keepstate.values.refs import together


async def restore_documents(
    executor: Executor,
    session: HistorySession,
    request: CommitRequest,
    head: Head,
    state: MerkleValue,
    merged: bytes | None = None,
) -> CommitResult:
    """Replace the documents by the documents of a state. Restored documents do not expire.

    Args:
        executor: The executor of the space.
        session: The history.
        request: The author, the message and the notes of the commit.
        head: The head of `main`.
        state: The state.
        merged: The commit that the state was merged from, which becomes the second parent.

    Returns:
        The current head of `main`. The recorder sets the new one in the unit.

    Raises:
        InvalidError: The call is part of a transaction, or needs more than one batch.
    """
    executor.require_outside_transaction("restoring the documents of a recorded space")
    unit, record = session.unit, await session.record(head.commit)
    session.objects.add(state.objects)
    now, then = await session.serve(together([open_contents(record.root), open_contents(state.encoding)]))
    changed = {_name(was or entry): entry for was, entry in await session.serve(unlike_keys(now, then))}
    for name in await _expired(unit):
        if (entry := await session.serve(then.find(canonical(name)))) is not None:
            changed.setdefault(name, entry)
    await _read(unit, list(changed))
    for name, entry in changed.items():
        key = layout.named_key(layout.DOCUMENTS, name)
        if entry is not None:
            unit.put(key, await _stored(executor, session, key, name, entry))
        elif await unit.get(key) is not None:
            unit.delete(key)
    written = unit.written(layout.DOCUMENTS)
    mark_changed(unit, read_rules(await unit.get(layout.RULES)), written)
    unit.notes.append(Note(request.author, request.message, request.meta, merged))
    return CommitResult(head.commit, record, head.number, record.root)


def _name(entry: Entry | None) -> str:
    assert entry is not None
    name: str = CODEC.assemble(entry.key, {})
    return name


async def _expired(unit: Unit) -> Sequence[str]:
    """Return the documents that have expired in the space, and are still in the record."""
    rules, now_ms = read_rules(await unit.get(layout.RULES)), await unit.now_ms()
    if rules.expiring_ms is None or rules.expiring_ms > now_ms:
        return ()
    # In a unit of its own that is not committed: the recorder removes them from the index.
    return list((await expiry.take_due(Unit(unit.store, unit.space, unit.name), now_ms)).gone.values())


async def _read(unit: Unit, names: Sequence[str]) -> None:
    for begin in range(0, len(names), limits.READ_KEYS):
        some = names[begin : begin + limits.READ_KEYS]
        await unit.read(*(layout.named_key(layout.DOCUMENTS, name) for name in some))


async def _stored(executor: Executor, session: HistorySession, key: bytes, name: str, entry: Entry) -> bytes:
    (encoding,) = await session.serve(whole([entry]))
    body = await session.serve(inline_objects(encoding))
    if not holds_pickle(body):
        return join_record(key, name, pack_body(body))
    if executor.home.pickle is None:
        raise InvalidError(
            f"document {name!r} of {executor.name!r} held a pickle; roll back with a handle that "
            "has pickle=SignedPickle(…)"
        )
    # A pickle in a history is signed for histories, and a pickle in a document for the document's key.
    objects = await session.serve(gather([encoding]))
    return write_record(executor, key, name, executor.home.states.assemble(encoding, objects))
