"""The stored records of a thread: the head of the state with its lineage, values, and runs.

A lineage is a random name of a sequence of revisions, so that a revision of another sequence is never
accepted. A state that was dropped and recreated gets a new one, and so does a restored state, whose revisions
may go backwards. Empty states have none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, Literal, TypeVar, cast

import msgspec

from keepstate._clock import Clock
from keepstate.errors import CorruptError
from keepstate.typed.key import EncodedValue, TypedKey, decode_stored
from keepstate.typed.layout import RUN_SLOTS, THREAD_SLOTS
from keepstate.values import codec

NO_LINEAGE: Final = ""
_BEGUN: Final = "begun:"


def first_lineage(clock: Clock) -> str:
    """Return a lineage for a state that begins with its first batch."""
    return _BEGUN + new_lineage(clock)


def new_lineage(clock: Clock) -> str:
    """Return a lineage for a restored state."""
    return clock.random_bytes(8).hex()


def continues_lineage(lineage: str, revision: int, before: str) -> bool:
    """Return whether a state of a lineage has been at a revision of the lineage `before`.

    An empty state before its first batch is continued by the state that begins with it, but not by a restored
    one.
    """
    return lineage == before or ((revision, before) == (0, NO_LINEAGE) and lineage.startswith(_BEGUN))


Value = TypeVar("Value")
R = TypeVar("R", bound=msgspec.Struct)

_LATER = frozenset({"cleared"})
"""Fields added after the first release of the format, omitted if empty, so that bytes do not change."""
RECENT_NAMES = 32
"""Number of recently changed slots that the head names, so that a reader can fetch only these."""


class Head(msgspec.Struct, frozen=True):
    """The head of a thread's state.

    Attributes:
        revision: The number of batches applied.
        lineage: The lineage of the revision; empty before the first batch.
        removed: The revision that last removed values, except values of ended runs.
        cleared: The revision that last removed values of ended runs.
        floor: All slots changed after this revision are in `recent`, except those of runs with an id, whose
            values only the holder of the run changes.
        recent: The revisions of the slots that changed last.
        runs: The runs that have values, in the order of their beginning, each with the revision of its last
            change.
    """

    revision: int = 0
    lineage: str = ""
    removed: int = 0
    floor: int = 0
    recent: dict[str, int] = {}
    runs: dict[str, int] = {}
    cleared: int = 0
    later: dict[str, Any] = {}
    """Fields added by a later version of keepstate; they are written back unchanged."""

    def after(self, changed: Collection[str], run_id: str, *, removes: bool) -> Head:
        """Return the head after a batch that changes these slots."""
        revision, floor = self.revision + 1, self.floor
        here = sorted(slot for slot in changed if not run_id or slot.startswith(THREAD_SLOTS))
        recent = {slot: made for slot, made in self.recent.items() if slot not in here}
        recent |= dict.fromkeys(here, revision)
        while len(recent) > RECENT_NAMES:
            floor = max(floor, recent.pop(next(iter(recent))))
        runs = self.runs
        if any(slot.startswith(RUN_SLOTS) for slot in changed):
            runs = {**runs, run_id: revision}
        removed = revision if removes else self.removed
        return msgspec.structs.replace(
            self, revision=revision, removed=removed, floor=floor, recent=recent, runs=runs
        )

    def after_clearing(self, cleared: Mapping[str, Collection[str]], begun: str) -> Head:
        """Return the head after the start of the run `begun` has removed slots of some runs."""
        if not any(cleared.values()):
            return self
        shared = cleared.get("", ())
        head = self.after(shared, "", removes=bool(shared or cleared.get(begun)))
        touched = {run: head.revision for run, slots in cleared.items() if slots}
        return msgspec.structs.replace(head, runs={**head.runs, **touched}, cleared=head.revision)

    def removed_at(self, slot: str, run_id: str) -> int:
        """Return the last revision that may have removed the value of an empty slot."""
        is_of_ended = slot.startswith(RUN_SLOTS) and run_id != "" and run_id not in self.runs
        return max(self.removed, self.cleared) if is_of_ended else self.removed

    def with_lineage(self, clock: Clock) -> Head:
        """Return the head with a lineage, which is new if this is the head before the first batch."""
        is_first = (self.revision, self.lineage) == (0, NO_LINEAGE)
        return msgspec.structs.replace(self, lineage=first_lineage(clock)) if is_first else self

    def continues(self, revision: int, lineage: str) -> bool:
        """Return whether the state has been at this revision of this lineage."""
        return continues_lineage(self.lineage, revision, lineage)

    def changed_since(self, revision: int, lineage: str, run_id: str) -> set[str] | None:
        """Return the slots changed after a revision, or None if they are not known."""
        if not self.continues(revision, lineage) or not self.floor <= revision <= self.revision:
            return None
        if run_id and self.runs.get(run_id, self.cleared) > revision:
            return None
        missed = {slot for slot, made in self.recent.items() if made > revision}
        return {slot for slot in missed if not run_id or slot.startswith(THREAD_SLOTS)}


class ValueRecord(msgspec.Struct, frozen=True):
    """The stored record of a value.

    Attributes:
        value: The JSON form.
        version: The version of the class that encoded it.
        revision: The state revision that wrote it.
    """

    value: Any
    version: int
    revision: int = 0

    def decode(self, key: type[TypedKey[Value]]) -> Value:
        """Return the value; see `decode_stored`."""
        return decode_stored(key, self.value, self.version)

    def to_encoded(self) -> EncodedValue:
        """Return the in-memory form."""
        return EncodedValue(codec.encode(self.value), self.version, self.revision)


class RunRecord(msgspec.Struct, frozen=True):
    """The record of a run.

    Attributes:
        run_id: Id of the run.
        thread_id: Id of the thread.
        status: The status; `failed` means that the run ended with an error.
        fence: The token of the lease; it is larger for each process that takes over the run.
        steps: Number of steps that began to commit.
        pending: The names of the last step's tools that are not applied yet.
        messages: Number of messages that the run appended.
        revision: The revision of the thread's state after the last step.
        author: The author of the run, or None.
    """

    run_id: str
    thread_id: str
    status: Literal["running", "finished", "failed"] = "running"
    fence: int = 0
    steps: int = 0
    pending: list[str] = []
    messages: int = 0
    revision: int = 0
    author: str | None = None
    later: dict[str, Any] = {}
    """Fields added by a later version of keepstate; they are written back unchanged."""


def read_record(kind: type[R], document: str, value: object) -> R:
    """Return the record in a document.

    Raises:
        CorruptError: The document is not a valid record.
    """
    try:
        record = msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise CorruptError(f"Document {document!r} is damaged: {error}", place=document) from error
    known = kind.__struct_fields__
    if "later" not in known or not isinstance(value, dict):
        return record
    stored = cast("dict[str, Any]", value)
    later = {name: field for name, field in stored.items() if name not in known}
    return msgspec.structs.replace(record, later=later) if later else record


def to_document(record: msgspec.Struct) -> dict[str, Any]:
    """Return the stored form of a record."""
    fields = msgspec.structs.asdict(record)
    later: dict[str, Any] = fields.pop("later", {})
    return {name: value for name, value in fields.items() if value or name not in _LATER} | later


def value_document(stored: EncodedValue) -> dict[str, Any]:
    """Return the stored form of a value."""
    return to_document(ValueRecord(stored.raw, stored.version, stored.revision))
