"""Subjects of `find`: sessions, threads, agents, workflows, teams, machines, memories, approvals and queues.

A batch that changes a subject also writes the subject's outbox entry: `outbox find KIND ID`. The entry is
overwritten, never queued, and says that the index does not show the subject as of this revision. Invariant:
the entry follows from the keys that the batch writes, so no writer can change a subject without it. A batch
that changes no subject is not touched.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Annotated, Final, NamedTuple

import msgspec

from keepstate.engine.kernel import layout
from keepstate.engine.kernel.stored import corrupt_error, decode_stored, describe
from keepstate.names import unescape
from keepstate.stores.protocol import Entry
from keepstate.values.key import pack, unpack

INDEX: Final = "find"
"""The name of the index that `find` reads."""
QUEUE: Final = "queue"
"""The kind of a subject that is the tasks of one kind in the queue of a space."""
HOMED: Final = ("agent", "machine", "memory", "session", "team", "thread", "workflow")
"""The kinds of subjects that have a space of their own, or documents with names `KIND/ID/…` in another."""
APPROVAL: Final = "approval"
"""The kind of a subject that is an approval of a space."""
KINDS: Final = tuple(sorted((*HOMED, QUEUE, APPROVAL)))

_ID_BYTES: Final = 400
"""A longer id would make the key of an outbox too long; such a subject is not listed."""
_SPACES: Final = 4_096
FOREIGN: Final = tuple(layout.DOCUMENTS + f"{kind}/".encode() for kind in HOMED)
"""The prefixes of the keys of subjects that are in the space of another one, or of none; sorted."""
_OWN: Final = (layout.DOCUMENTS, layout.CHECKPOINTS)
"""The prefixes of the keys that belong to the subject whose space it is."""
_MEMBERS: Final = ("team", b"agent")
"""The agents of a team in its own space are its members, and no subjects."""


class Subject(NamedTuple):
    """The kind and the id of a subject in a space."""

    kind: str
    id: str

    def outbox_key(self) -> bytes:
        """Return the key of its outbox."""
        return _outbox_key(self.kind, self.id)

    def carried_key(self) -> bytes:
        """Return the key of the entry that remembers its last change."""
        return CARRIED + pack(self.kind, self.id)


@lru_cache(maxsize=_SPACES)
def _outbox_key(kind: str, id: str) -> bytes:
    return OUTBOXES + pack(kind, id)


OUTBOXES: Final = layout.OUTBOX + pack(INDEX)
"""The prefix of the keys of all outboxes of a space."""
CARRIED: Final = layout.CARRIED + pack(INDEX)
LISTED_QUEUES: Final = CARRIED + pack(QUEUE)
"""The prefix of the entries of a space's queues that the index lists."""


class ChangeTime(msgspec.Struct, array_like=True, frozen=True):
    """The content of an outbox: the time of the change, 0 if the writer did not know it."""

    changed_ms: Annotated[int, msgspec.Meta(ge=0)] = 0


@lru_cache(maxsize=_SPACES)
def owner_of(space: str) -> Subject | None:
    """Return the subject whose own space this is, by the space's name without its tenant."""
    kind, _, id = space.partition("/")
    return Subject(kind, id) if id and kind in HOMED else None


def changed_subjects(space: str, keys: Iterable[bytes]) -> set[Subject]:
    """Return the subjects that a batch changes, apart from queues, by the keys that it writes.

    Args:
        space: The name of the space, without its tenant.
        keys: The keys.
    """
    own, found = owner_of(space), set[Subject]()
    for key in keys:
        if key.startswith(FOREIGN):
            kind, id, *_ = key[len(layout.DOCUMENTS) :].split(b"/", 2)
            if own is not None and (own.kind, kind) == _MEMBERS:
                found.add(own)
                continue
            # The id of a cut name may be cut itself, and such an id is too long in any case.
            if 0 < len(id) <= _ID_BYTES and (subject := _subject(kind, id)) is not None:
                found.add(subject)
        elif key.startswith(layout.APPROVALS):
            found.add(Subject(APPROVAL, _approval_in(key)))
        elif own is not None and key.startswith(_OWN):
            found.add(own)
    return found


def _approval_in(key: bytes) -> str:
    match unpack(key[len(layout.APPROVALS) :]):
        case (str(id),):
            return id
        case _:
            raise corrupt_error(describe(key), "it names no approval")


def _subject(kind: bytes, segment: bytes) -> Subject | None:
    try:
        return Subject(kind.decode(), unescape(segment.decode()))
    except UnicodeDecodeError:
        return None


def subject_in(prefix: bytes, entry: Entry) -> Subject:
    """Return the subject of an outbox or a carried entry, given the prefix of its key."""
    match unpack(entry.key[len(prefix) :]):
        case (str(kind), str(id)):
            return Subject(kind, id)
        case _:
            raise corrupt_error(describe(entry.key), "it names no subject")


def encode_time(changed_ms: int) -> bytes:
    """Return the value of an outbox or a carried entry."""
    return msgspec.msgpack.encode(ChangeTime(changed_ms))


def time_in(entry: Entry) -> int:
    """Return the time of the change in an outbox or a carried entry."""
    return decode_stored(entry.value, ChangeTime, entry.key).changed_ms
