"""The documents of a space as the state of a commit, by name."""

from __future__ import annotations

from collections.abc import Mapping

from keepstate.engine.documents.record import decode_value, split_record
from keepstate.engine.history.state_encoding import edit_state
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.executor import Executor
from keepstate.engine.kernel.unit import Unit
from keepstate.errors import InvalidError
from keepstate.stores.protocol import Entry as Stored
from keepstate.values.codec import SIGNED, body_of, canonical
from keepstate.values.contents import close_contents, open_contents, split_objects, whole
from keepstate.values.merkle import MerkleValue, find_shared
from keepstate.values.nodes import MAP_STYLE, Entry, item, refs_in
from keepstate.values.patch import Edits
from keepstate.values.refs import Fetching


def to_part(executor: Executor, key: bytes, stored: bytes) -> tuple[str, MerkleValue]:
    """Return the name of a stored document, and its value as a part of a state.

    Raises:
        InvalidError: It contains a pickle, and this handle cannot sign it again.
    """
    name, encoded = split_record(key, stored)
    if not encoded.startswith(SIGNED):
        return name, split_objects(body_of(encoded))
    if executor.home.pickle is None:
        raise InvalidError(
            f"document {name!r} of {executor.name!r} contains a pickle; start to record with a handle "
            "that has pickle=SignedPickle(…)"
        )
    # A pickle in a document is signed for the key of the document, and one in a history for histories.
    return name, executor.home.states.to_merkle(decode_value(executor, key, encoded))


async def name_of_removed(unit: Unit, key: bytes) -> str:
    """Return the name of a document that the unit has read and removes."""
    if not layout.is_cut(layout.DOCUMENTS, key):
        return layout.name_of(layout.DOCUMENTS, key)
    entry = unit.as_read(key)
    assert entry is not None
    return split_record(key, await unit.value(entry))[0]


def change_documents(root: bytes, puts: Mapping[str, MerkleValue], gone: list[str]) -> Fetching[MerkleValue]:
    """Return a state with some documents replaced or removed, without the objects that it has already."""
    # Documents have no order. Sorted keys make equal documents equal states, and need no object for an order.
    edits = Edits(puts={canonical(name): value for name, value in puts.items()}, is_sorted=True)
    large = [key for key, value in edits.puts.items() if value.objects]
    if large:
        contents = yield from open_contents(root)
        for key in large:
            old = yield from contents.find(key)
            if old is not None:
                edits.puts[key] = yield from _without_shared(edits.puts[key], old)
    return (yield from edit_state(root, edits, [canonical(name) for name in gone]))


def _without_shared(value: MerkleValue, old: Entry) -> Fetching[MerkleValue]:
    known = yield from find_shared((yield from whole((old,))), value.objects)
    return MerkleValue(
        value.encoding, {name: data for name, data in value.objects.items() if name not in known}
    )


def join_documents(documents: Mapping[str, MerkleValue]) -> Fetching[MerkleValue]:
    """Return the state that consists of these documents."""
    entries = [
        item(value.encoding, is_deep=bool(refs_in(value.encoding)), key=canonical(name))
        for name, value in documents.items()
    ]
    made = yield from close_contents(MAP_STYLE, sorted(entries, key=lambda entry: entry.key))
    below = {name: data for value in documents.values() for name, data in value.objects.items()}
    return MerkleValue(made.encoding, below | made.objects)


async def read_documents(executor: Executor, unit: Unit) -> tuple[dict[str, MerkleValue], list[Stored]]:
    """Return all documents of the space, and the entries of documents that will expire."""
    documents: dict[str, MerkleValue] = {}
    expiring: list[Stored] = []
    async for entry in unit.scan(layout.DOCUMENTS):
        name, value = to_part(executor, entry.key, await unit.value(entry))
        documents[name] = value
        if entry.expires_at_ms is not None:
            expiring.append(entry)
    return documents, expiring
