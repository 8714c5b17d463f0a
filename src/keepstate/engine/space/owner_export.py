"""Export of what belongs to one owner: the spaces of the owner's subjects, and their parts of shared spaces.

A space of the owner alone is exported whole. From a shared space, the documents, streams and usage under the
prefixes of the owner's subjects are, with the parts of their large values. The first `find` after an import
makes the index of them all. Not exported are the history of a shared space, and tasks, approvals and the like
under these prefixes, because they have entries in common with those of others. The report names them. Of a
session that several users owned, the file has the generations of this owner, and no other name. The revision
of such a space is the last one of its exported entries.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Final

import msgspec

from keepstate.engine.documents.record import join_record, split_record
from keepstate.engine.documents.write_rules import read_rules
from keepstate.engine.index.carrier import Carrier
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.arguments import check_name
from keepstate.engine.kernel.executor import Home
from keepstate.engine.kernel.large_values import part_keys_in
from keepstate.engine.space.export import Exported, Source, write_export
from keepstate.engine.space.expunge import USAGE
from keepstate.engine.space.owners import HEADS, LIVES, UNOWNED, OwnedPart, OwnerSearch
from keepstate.names import stored_name
from keepstate.stores.protocol import Entry
from keepstate.values import codec
from keepstate.values.key import pack

_STREAMS: Final = (
    *(layout.EVENTS, layout.HEADS, layout.HAPPENED, layout.DROPPED, layout.FOLDS, layout.CURSORS),
)
_LEFT_OUT: Final = {
    layout.TASKS: "tasks",
    layout.SCHEDULES: "schedules",
    layout.APPROVALS: "approvals",
    layout.BLOBS: "blobs",
    layout.BRANCHES: "branches",
    layout.TAGS: "tags",
}
_BY_NAME: Final = (layout.BRANCHES, layout.TAGS)


class _Part:
    """The entries of one shared space that belong to the owner.

    Args:
        owner: The owner.
        owned: What belongs to the owner in this space.
    """

    def __init__(self, owner: str, owned: Sequence[OwnedPart]) -> None:
        self._owner = owner
        self._lives = {layout.named_key(layout.DOCUMENTS, one.prefix + LIVES) for one in owned if one.lives}
        exact = {
            layout.named_key(layout.DOCUMENTS, one.prefix + HEADS[one.subject.kind][0])
            for one in owned
            if one.is_head and one.subject is not None
        }
        self._exact = exact | self._lives
        prefixes = [
            prefix
            for one in owned
            for prefix in ([f"{one.prefix}life/{life}/" for life in one.lives] if one.lives else [one.prefix])
        ]
        self._begins = tuple(begin for prefix in prefixes for begin in _begins(prefix, (*_STREAMS, *USAGE)))
        self._others = {begin: what for part, what in _LEFT_OUT.items() for begin in _others(part, prefixes)}
        self.left_out = Counter[str]()

    def select(self, entries: Sequence[Entry]) -> list[Entry]:
        """Return the entries of the owner, in order, and count what is left out."""
        chosen = [entry for entry in entries if self._has(entry)]
        parts = part_keys_in(entry.value for entry in chosen)
        chosen += [entry for entry in entries if entry.key in parts]
        for begin, what in self._others.items():
            self.left_out[what] += sum(entry.key.startswith(begin) for entry in entries)
        return [self._without_others(entry) for entry in sorted(chosen, key=lambda entry: entry.key)]

    def _has(self, entry: Entry) -> bool:
        return entry.key in self._exact or entry.key.startswith(self._begins)

    def _without_others(self, entry: Entry) -> Entry:
        """Return the list of a session's owners with no name but this one; other entries as they are."""
        if entry.key not in self._lives:
            return entry
        name, encoded = split_record(entry.key, entry.value)
        lives: dict[str, Any] = codec.decode(encoded)
        owners = [[life, user if user == self._owner else None] for life, user in lives["owners"]]
        value = join_record(entry.key, name, codec.encode(lives | {"owners": owners}))
        return msgspec.structs.replace(entry, value=value)


def _begins(prefix: str, parts: Sequence[bytes]) -> list[bytes]:
    return [layout.name_prefix(layout.DOCUMENTS, prefix), *(part + pack(prefix)[:-1] for part in parts)]


def _others(part: bytes, prefixes: Sequence[str]) -> list[bytes]:
    if part == layout.BLOBS:
        return [part + prefix.encode() for prefix in prefixes]
    if part in _BY_NAME:
        return [layout.name_prefix(part, prefix) for prefix in prefixes]
    return [part + pack(prefix)[:-1] for prefix in prefixes]


async def export_owner(home: Home, tenant: str | None, owner: str, path: str) -> Exported:
    """Write what belongs to an owner into a new file, and return a report."""
    check_name("owner", owner)
    carrier = Carrier(await home.opened(), tenant, home.clock)
    search = OwnerSearch(carrier, owner)
    parts: dict[str, _Part] = {}
    recorded: list[str] = []
    head = {"tenant": tenant, "owner": owner}
    exported = await write_export(carrier.store, head, _sources(search, owner, tenant, parts), path)
    for name in parts:
        stored = stored_name(tenant, name)
        rules = read_rules((await carrier.store.read(stored, [layout.RULES])).entries[0])
        if rules.is_recorded:
            recorded.append(f"the history of the shared space {name!r}")
    named = [
        f"{what} of this owner in the shared space {name!r}: {count:,}"
        for name, part in parts.items()
        for what, count in sorted(part.left_out.items())
        if count
    ]
    return replace(exported, not_included=[*named, *recorded, *search.left, UNOWNED])


async def _sources(
    search: OwnerSearch, owner: str, tenant: str | None, parts: dict[str, _Part]
) -> AsyncIterator[Source]:
    """Yield the spaces with something of the owner, and note those that are shared."""
    owned = defaultdict[str, list[OwnedPart]](list)
    async with aclosing(search.find()) as found:
        async for one in found:
            owned[one.space].append(one)
    for space, ones in owned.items():
        if any(not one.prefix and not one.lives for one in ones):
            yield Source(stored_name(tenant, space), None)
        else:
            parts[space] = _Part(owner, ones)
            yield Source(stored_name(tenant, space), parts[space].select)
