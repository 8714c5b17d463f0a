"""The documents of a space as the state of a commit: each by its name."""

from __future__ import annotations

from collections.abc import Mapping

from keepstate.engine import layout
from keepstate.engine.document_record import decoded, name_and_value
from keepstate.engine.scope import Scope
from keepstate.engine.unit import Unit
from keepstate.errors import InvalidError
from keepstate.stores.protocol import Entry as Stored
from keepstate.values.codec import SIGNED, body_of, canonical
from keepstate.values.contents import closed, open_contents, replanted, whole
from keepstate.values.merkle import Planted, shared
from keepstate.values.nodes import MAP_STYLE, Entry, item, refs_in
from keepstate.values.patch import Edits, edited
from keepstate.values.refs import Fetching, together


def planted(scope: Scope, place: bytes, stored: bytes) -> tuple[str, Planted]:
    """Returns the name of a document that is stored so, and its value as a part of a state.

    Raises:
        InvalidError: It holds a pickle, and this handle cannot sign it anew.
    """
    name, encoded = name_and_value(place, stored)
    if not encoded.startswith(SIGNED):
        return name, replanted(body_of(encoded))
    if scope.home.pickle is None:
        raise InvalidError(
            f"document {name!r} of {scope.name!r} holds a pickle; begin to record by a handle with "
            "pickle=SignedPickle(…)"
        )
    # A pickle is signed for its place, and a history has another.
    return name, scope.home.states.plant(decoded(scope, place, encoded))


async def name_of_removed(unit: Unit, place: bytes) -> str:
    """Returns the name of a document that the unit removes; it has read it."""
    if not layout.is_cut(layout.DOCUMENTS, place):
        return layout.name_of(layout.DOCUMENTS, place)
    entry = unit.found(place)
    assert entry is not None
    return name_and_value(place, await unit.value(entry))[0]


def changed(root: bytes, puts: Mapping[str, Planted], gone: list[str]) -> Fetching[Planted]:
    """Returns a state in which some documents are others or gone, without the objects that it has already."""
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


def _without_shared(value: Planted, old: Entry) -> Fetching[Planted]:
    there = yield from shared((yield from whole((old,))), value.objects)
    return Planted(value.encoding, {name: data for name, data in value.objects.items() if name not in there})


def all_of(documents: Mapping[str, Planted]) -> Fetching[Planted]:
    """Returns the state of these documents."""
    entries = [
        item(value.encoding, is_deep=bool(refs_in(value.encoding)), key=canonical(name))
        for name, value in documents.items()
    ]
    made = yield from closed(MAP_STYLE, entries)
    below = {name: data for value in documents.values() for name, data in value.objects.items()}
    return Planted(made.encoding, below | made.objects)


async def scanned(scope: Scope, unit: Unit) -> tuple[dict[str, Planted], list[Stored]]:
    """Returns all documents of the space, and the entries of those that expire."""
    documents: dict[str, Planted] = {}
    expiring: list[Stored] = []
    async for entry in unit.scan(layout.DOCUMENTS):
        name, value = planted(scope, entry.key, await unit.value(entry))
        documents[name] = value
        if entry.expires_at_ms is not None:
            expiring.append(entry)
    return documents, expiring
