"""The documents of a space as the state of a commit: each by its name."""

from __future__ import annotations

from collections.abc import Mapping

from keepstate.engine.documents.record import decode_value, split_record
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.executor import Executor
from keepstate.engine.kernel.unit import Unit
from keepstate.errors import InvalidError
from keepstate.stores.protocol import Entry as Stored
from keepstate.values.codec import SIGNED, body_of, canonical
from keepstate.values.contents import closed, open_contents, replanted, whole
from keepstate.values.merkle import MerkleValue, shared
from keepstate.values.nodes import MAP_STYLE, Entry, item, refs_in
from keepstate.values.patch import Edits, edited
from keepstate.values.refs import Fetching, together


def planted(executor: Executor, place: bytes, stored: bytes) -> tuple[str, MerkleValue]:
    """Return the name of a document that is stored so, and its value as a part of a state.

    Raises:
        InvalidError: It holds a pickle, and this handle cannot sign it anew.
    """
    name, encoded = split_record(place, stored)
    if not encoded.startswith(SIGNED):
        return name, replanted(body_of(encoded))
    if executor.home.pickle is None:
        raise InvalidError(
            f"document {name!r} of {executor.name!r} holds a pickle; begin to record by a handle with "
            "pickle=SignedPickle(…)"
        )
    # A pickle is signed for its place, and a history has another.
    return name, executor.home.states.to_merkle(decode_value(executor, place, encoded))


async def name_of_removed(unit: Unit, place: bytes) -> str:
    """Return the name of a document that the unit removes; it has read it."""
    if not layout.is_cut(layout.DOCUMENTS, place):
        return layout.name_of(layout.DOCUMENTS, place)
    entry = unit.as_read(place)
    assert entry is not None
    return split_record(place, await unit.value(entry))[0]


def changed(root: bytes, puts: Mapping[str, MerkleValue], gone: list[str]) -> Fetching[MerkleValue]:
    """Return a state in which some documents are others or gone, without the objects that it has already."""
    edits = Edits(puts={canonical(name): value for name, value in puts.items()})
    large = [key for key, value in edits.puts.items() if value.objects]
    if gone or large:
        contents = yield from open_contents(root)
        steps = [canonical(name) for name in gone]
        there = yield from together([contents.find(key) for key in steps])
        edits.removed = {key for key, entry in zip(steps, there, strict=True) if entry is not None}
        for key in large:
            old = yield from contents.find(key)
            if old is not None:
                edits.puts[key] = yield from _without_shared(edits.puts[key], old)
    return (yield from edited(root, edits))


def _without_shared(value: MerkleValue, old: Entry) -> Fetching[MerkleValue]:
    there = yield from shared((yield from whole((old,))), value.objects)
    return MerkleValue(
        value.encoding, {name: data for name, data in value.objects.items() if name not in there}
    )


def all_of(documents: Mapping[str, MerkleValue]) -> Fetching[MerkleValue]:
    """Return the state of these documents."""
    entries = [
        item(value.encoding, is_deep=bool(refs_in(value.encoding)), key=canonical(name))
        for name, value in documents.items()
    ]
    made = yield from closed(MAP_STYLE, entries)
    below = {name: data for value in documents.values() for name, data in value.objects.items()}
    return MerkleValue(made.encoding, below | made.objects)


async def scanned(executor: Executor, unit: Unit) -> tuple[dict[str, MerkleValue], list[Stored]]:
    """Return all documents of the space, and the entries of those that expire."""
    documents: dict[str, MerkleValue] = {}
    expiring: list[Stored] = []
    async for entry in unit.scan(layout.DOCUMENTS):
        name, value = planted(executor, entry.key, await unit.value(entry))
        documents[name] = value
        if entry.expires_at_ms is not None:
            expiring.append(entry)
    return documents, expiring
