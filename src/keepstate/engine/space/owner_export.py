"""Export of what belongs to one owner: the spaces of the owner's subjects, and their parts of shared spaces.

A space of the owner alone is exported whole. From a shared space, everything is that an erasure of the owner
removes: what has a name under the prefixes of the owner's subjects, with the parts of its large values, and
the places of its tasks, approvals and schedules in the order of their lists. The turns of keys are computed
for a queue without limits, because those of the space also belong to others. The moments at which documents
changed are written for readers. The first `find` after an import makes the index of them all. Checkpoints of
frameworks are left out and named, because they are of no use without the whole history.

Of a session that several users owned, the file has the generations of this owner, and no other name. The
revision of such a space is the last one of its exported entries.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any, Final

import msgspec

from keepstate.engine.documents.record import join_record, split_record
from keepstate.engine.documents.write_rules import read_rules
from keepstate.engine.index.carrier import Carrier
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.arguments import check_name
from keepstate.engine.kernel.executor import Home
from keepstate.engine.kernel.large_values import parse_manifest, part_keys_in
from keepstate.engine.kernel.stored import describe
from keepstate.engine.queue.lines import line_of, turn_key, turn_of_first
from keepstate.engine.queue.rules import QueueRules
from keepstate.engine.queue.tasks import id_in
from keepstate.engine.space.export import Exported, Source, write_export
from keepstate.engine.space.expunge import APPROVALS, CHECKPOINTS, SCHEDULES, STREAMS, TASKS, USAGE
from keepstate.engine.space.owner_history import moments
from keepstate.engine.space.owners import HEADS, LIVES, UNOWNED, OwnedPart, OwnerSearch
from keepstate.names import stored_name
from keepstate.stores.protocol import Entry, Store
from keepstate.values import codec
from keepstate.values.key import pack, unpack

_NAMED: Final = (*STREAMS, *TASKS, *SCHEDULES, *APPROVALS, *USAGE)
"""Parts whose keys begin with a name under the prefixes."""
_LISTED: Final = (layout.ASSIGNED, layout.TICKS)
"""Parts whose keys end with the id of an approval, or the name of a schedule."""


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
        self.prefixes = tuple(prefixes)
        self._begins = tuple(begin for prefix in prefixes for begin in _begins(prefix))
        self._checkpoints = tuple(part + pack(prefix)[:-1] for prefix in prefixes for part in CHECKPOINTS)
        self.checkpoints = 0

    def select(self, entries: Sequence[Entry]) -> list[Entry]:
        """Return the entries of the owner, in order, and count what is left out."""
        chosen = [entry for entry in entries if self._has(entry)]
        self.checkpoints = sum(entry.key.startswith(self._checkpoints) for entry in entries)
        parts = part_keys_in(entry.value for entry in chosen)
        chosen += [entry for entry in entries if entry.key in parts]
        chosen = [self._without_others(entry) for entry in chosen]
        return sorted([*chosen, *_turns(chosen), *_size_of_blobs(chosen)], key=lambda entry: entry.key)

    def _has(self, entry: Entry) -> bool:
        key = entry.key
        if key.startswith(layout.FOLLOWERS):
            return all(self._is_own(name) for name in unpack(key[len(layout.FOLLOWERS) :]))
        if key in self._exact or key.startswith(self._begins):
            return True
        if key.startswith(tuple(layout.INDEXES.values())):
            return self._is_own(id_in(entry))
        listing = next((part for part in _LISTED if key.startswith(part)), None)
        return listing is not None and self._is_own(unpack(key[len(listing) :])[-1])

    def _is_own(self, name: object) -> bool:
        return isinstance(name, str) and name.startswith(self.prefixes)

    def _without_others(self, entry: Entry) -> Entry:
        """Return the list of a session's owners with no name but this one; other entries as they are."""
        if entry.key not in self._lives:
            return entry
        name, encoded = split_record(entry.key, entry.value)
        lives: dict[str, Any] = codec.decode(encoded)
        owners = [[life, user if user == self._owner else None] for life, user in lives["owners"]]
        value = join_record(entry.key, name, codec.encode(lives | {"owners": owners}))
        return msgspec.structs.replace(entry, value=value)


def _begins(prefix: str) -> list[bytes]:
    documents, blobs = layout.name_prefix(layout.DOCUMENTS, prefix), layout.BLOBS + prefix.encode()
    return [documents, blobs, *(part + pack(prefix)[:-1] for part in _NAMED)]


def _turns(entries: Sequence[Entry]) -> list[Entry]:
    """Return a turn for each line of tasks among the entries, as a queue without rules has it."""
    rules, made, lines = QueueRules(), list[Entry](), set[bytes]()
    for entry in sorted(entries, key=lambda entry: entry.key):
        if not entry.key.startswith(layout.LINED):
            continue
        line = line_of(entry)
        if line.name not in lines:  # the first task of its line
            lines.add(line.name)
            turn = turn_of_first(rules, line, entry)
            key = turn_key(rules, turn)
            made.append(msgspec.structs.replace(entry, key=line.key_of_entry, value=key))
            made.append(msgspec.structs.replace(entry, key=key, value=msgspec.msgpack.encode(turn)))
    return made


def _size_of_blobs(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entry with the total size of the blobs among the entries."""
    blobs = [entry for entry in entries if entry.key.startswith(layout.BLOBS)]
    if not blobs:
        return []
    total = 0
    for entry in blobs:
        manifest = parse_manifest(entry.value, describe(entry.key))
        total += len(entry.key) + (len(entry.value) if manifest is None else manifest.size_bytes)
    last = max(blobs, key=lambda entry: entry.version)
    return [msgspec.structs.replace(last, key=layout.BLOBS_SIZE, value=msgspec.msgpack.encode(total))]


async def export_owner(home: Home, tenant: str | None, owner: str, path: str) -> Exported:
    """Write what belongs to an owner into a new file, and return a report."""
    check_name("owner", owner)
    carrier = Carrier(await home.opened(), tenant, home.clock)
    search = OwnerSearch(carrier, owner)
    parts: dict[str, _Part] = {}
    head = {"tenant": tenant, "owner": owner}
    exported = await write_export(
        carrier.store, head, _sources(carrier.store, search, owner, tenant, parts), path
    )
    checkpoints = [
        f"checkpoints of this owner in the shared space {name!r}: {part.checkpoints:,}"
        for name, part in parts.items()
        if part.checkpoints
    ]
    return replace(exported, not_included=[*checkpoints, *search.left, UNOWNED])


async def _sources(
    store: Store, search: OwnerSearch, owner: str, tenant: str | None, parts: dict[str, _Part]
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
            stored = stored_name(tenant, space)
            rules = read_rules((await store.read(stored, [layout.RULES])).entries[0])
            told = (
                partial(moments, store, stored, parts[space].prefixes, owner) if rules.is_recorded else None
            )
            yield Source(stored, parts[space].select, told)
