"""What stands in a thread's documents: the head of the state, values, and the records of runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal, TypeVar, cast

import msgspec

from keepstate._clock import Clock
from keepstate.errors import CorruptError
from keepstate.typed import epoch as lineages
from keepstate.typed.encoded_value import Kept
from keepstate.typed.layout import RUN_SLOTS, THREAD_SLOTS
from keepstate.values import codec

R = TypeVar("R", bound=msgspec.Struct)

_LATER = frozenset({"cleared"})
"""Fields that the first records had not: left out where they say nothing, so that these are as they were."""
RECENT_NAMES = 32
"""So many of the slots that were changed last are named in the head: who missed only these reads no more."""


class Head(msgspec.Struct, frozen=True):
    """How far the state of a thread is.

    Attributes:
        revision: Counts its batches.
        lineage: Which counting it is; none before the first batch.
        removed: The revision that last removed values, but for those of runs that have ended.
        cleared: The revision that last removed values of runs that have ended.
        floor: All slots that were changed after this revision are in `recent`, but for those of runs that
            have an id: only who does a run changes its values.
        recent: The slots that were changed last, and by which revision.
        runs: The runs that have values of their own, the one that began last at the end, and the revision
            that last changed one.
    """

    revision: int = 0
    lineage: str = ""
    removed: int = 0
    floor: int = 0
    recent: dict[str, int] = {}
    runs: dict[str, int] = {}
    cleared: int = 0
    later: dict[str, Any] = {}
    """Fields that a later version of keepstate has added; they are written again unchanged."""

    def after(self, changed: Collection[str], run_id: str, *, removes: bool) -> Head:
        """Return the head once a batch has changed these slots."""
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
        """Return the head once slots of some runs were removed, because the run `begun` begins."""
        if not any(cleared.values()):
            return self
        shared = cleared.get("", ())
        head = self.after(shared, "", removes=bool(shared or cleared.get(begun)))
        touched = {run: head.revision for run, slots in cleared.items() if slots}
        return msgspec.structs.replace(head, runs={**head.runs, **touched}, cleared=head.revision)

    def removed_at(self, slot: str, run_id: str) -> int:
        """Return the revision that may have removed the value of a slot in which there is none."""
        is_of_ended = slot.startswith(RUN_SLOTS) and run_id != "" and run_id not in self.runs
        return max(self.removed, self.cleared) if is_of_ended else self.removed

    def begun(self, clock: Clock) -> Head:
        """Return the head that a first batch is applied to: of a state that can be told from others."""
        is_first = (self.revision, self.lineage) == (0, lineages.NONE)
        return msgspec.structs.replace(self, lineage=lineages.begun(clock)) if is_first else self

    def continues(self, revision: int, lineage: str) -> bool:
        """Return whether the state has been at this revision of this lineage."""
        return lineages.continues(self.lineage, revision, lineage)

    def changed_since(self, revision: int, lineage: str, run_id: str) -> set[str] | None:
        """Return the slots changed after a revision; None if that is not known."""
        if not self.continues(revision, lineage) or not self.floor <= revision <= self.revision:
            return None
        if run_id and self.runs.get(run_id, self.cleared) > revision:
            return None
        missed = {slot for slot, made in self.recent.items() if made > revision}
        return {slot for slot in missed if not run_id or slot.startswith(THREAD_SLOTS)}


class ValueRecord(msgspec.Struct, frozen=True):
    """A value as it is stored.

    Attributes:
        value: Its JSON form.
        version: The version of the class that made it.
        revision: The revision of the state that wrote it.
    """

    value: Any
    version: int
    revision: int = 0

    def kept(self) -> Kept:
        """Return it as it stands in memory."""
        return Kept(codec.encode(self.value), self.version, self.revision)


class RunRecord(msgspec.Struct, frozen=True):
    """What is known of a run.

    Attributes:
        run_id: Its id.
        thread_id: Its thread.
        status: Whether it goes on; one that did not end well is `failed`.
        fence: The token of the lease that it is done under; each process that takes it over has a higher one.
        steps: How many steps it has begun to commit.
        pending: The tools of the last step that have not been applied yet.
        messages: How many messages it has added.
        revision: The revision of the thread's state after its last step.
        author: Who does it, or None.
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
    """Fields that a later version of keepstate has added; they are written again unchanged."""


def read_record(kind: type[R], document: str, value: object) -> R:
    """Return what a document holds.

    Raises:
        CorruptError: It holds no such record.
    """
    try:
        record = msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise CorruptError(f"document {document!r} is damaged: {error}", place=document) from error
    known = kind.__struct_fields__
    if "later" not in known or not isinstance(value, dict):
        return record
    stored = cast("dict[str, Any]", value)
    later = {name: field for name, field in stored.items() if name not in known}
    return msgspec.structs.replace(record, later=later) if later else record


def plain(record: msgspec.Struct) -> dict[str, Any]:
    """Return a record as a document holds it."""
    fields = msgspec.structs.asdict(record)
    later: dict[str, Any] = fields.pop("later", {})
    return {name: value for name, value in fields.items() if value or name not in _LATER} | later


def kept_record(stored: Kept) -> dict[str, Any]:
    """Return what a document holds of a value."""
    return plain(ValueRecord(stored.raw, stored.version, stored.revision))
