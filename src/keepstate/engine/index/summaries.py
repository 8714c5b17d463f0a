"""Summaries of subjects for the index, read from the subjects' own records.

The readers know stored forms, in builtin form, and no class of the application. So every process can carry
what any other one has written, also a worker that never imports the part that wrote it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from keepstate.engine.approvals.records import approval_key, asked_key, decode_approval, mark_key
from keepstate.engine.documents.record import split_record
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.stored import StoredMs, describe
from keepstate.engine.kernel.subjects import APPROVAL, QUEUE, Subject, owner_of, time_in
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.queue import tasks, ticks
from keepstate.errors import ConflictError, CorruptError, UnsupportedError
from keepstate.names import escape
from keepstate.stores.protocol import Entry, Store
from keepstate.values import codec

_ATTEMPTS: Final = 8
_TASKS: Final = 10_000
"""The number of tasks of a state among which the first one of a kind is searched."""
_AT_ONCE: Final = 256
DUE_SINCE_CHANGE: Final = 0
"""Stands for the time of the last change, from which a ready task can be claimed at the latest."""
_OPEN: Final = "open"
_UNREADABLE: Final = "unreadable"
"""The state of a subject whose record is damaged, or was written in a form that this release cannot read."""
_TEXT_CHARS: Final = 200


@dataclass(frozen=True, slots=True)
class Summary:
    """The part of a subject that the index shows.

    Attributes:
        state: Its state.
        owner: Its owner, or None.
        title: Its title, or None.
        due_ms: The time from which it can go on, or None.
        expires_ms: The time at which it ends by itself, or None.
    """

    state: str
    owner: str | None = None
    title: str | None = None
    due_ms: StoredMs | None = None
    expires_ms: StoredMs | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """A subject at one revision of its space.

    Attributes:
        summary: Its summary; None if the subject does not exist.
        revision: The revision.
        now_ms: The space's time.
        outbox: The version of its outbox; 0 if the index shows its last change.
        carried: The version of its carried entry; 0 without one.
        changed_ms: The time of its last change; 0 if it is not known.
        losses: The number of losses of the space's history that the store had noticed.
    """

    summary: Summary | None
    revision: int
    now_ms: int
    outbox: int
    carried: int
    changed_ms: int
    losses: int | None


async def read_subject(store: Store, stored_space: str, space: str, subject: Subject) -> Reading:
    """Read a subject.

    What takes several reads may be of later revisions than the first one. If it is, the subject has changed
    since `revision`, and has a newer outbox than the one that was read.

    Args:
        store: The opened store.
        stored_space: The stored name of the space.
        space: The name of the space, without its tenant.
        subject: The subject.

    Raises:
        ConflictError: A large record was replaced while its parts were read, in each of several attempts.
    """
    attempt = 0
    while True:
        attempt += 1
        unit = Unit(store, stored_space, space)
        keys = _heads(space, subject).values()
        outbox, carried, *entries = await unit.read(subject.outbox_key(), subject.carried_key(), *keys)
        try:
            summary = await _summarise(unit, space, subject, entries)
        except ConflictError:
            if attempt >= _ATTEMPTS:
                raise
            continue
        return Reading(
            summary,
            unit.revision or 0,
            unit.known_now_ms,
            _version(outbox),
            _version(carried),
            max(map(_time_of, (outbox, carried))),
            unit.losses.known,
        )


def _version(entry: Entry | None) -> int:
    return 0 if entry is None else entry.version


def _time_of(entry: Entry | None) -> int:
    """Return the time of a change; 0 if it is not known. Damage of an outbox must not stop its delivery."""
    try:
        return 0 if entry is None else time_in(entry)
    except CorruptError:
        return 0


def _heads(space: str, subject: Subject) -> dict[str, bytes]:
    """Return the keys of the documents that a summary is made of, by their name for the subject."""
    names = _HEADS.get(subject.kind, ())
    prefix = _prefix(space, subject)
    return {name: layout.named_key(layout.DOCUMENTS, prefix + name) for name in names}


def _prefix(space: str, subject: Subject) -> str:
    return "" if owner_of(space) == subject else f"{subject.kind}/{escape(subject.id)}/"


async def _summarise(unit: Unit, space: str, subject: Subject, entries: list[Entry | None]) -> Summary | None:
    if subject.kind == QUEUE:
        return await _summarise_queue(unit, subject.id)
    try:
        if subject.kind == APPROVAL:
            return await _summarise_approval(unit, subject.id)
        found: dict[str, Any] = {}
        for (name, key), entry in zip(_heads(space, subject).items(), entries, strict=True):
            if entry is not None:
                found[name] = codec.to_builtin(split_record(key, await unit.value(entry))[1])
        summary = _SUMMARIES[subject.kind](found)
    except (CorruptError, UnsupportedError):
        summary = Summary(_UNREADABLE)
    if summary is None and subject.kind == "thread" and await _has_thread(unit, space, subject):
        summary = Summary(_OPEN)
    if summary is None:
        return None
    ends = [entry.expires_at_ms or 0 for entry in entries if entry is not None]
    return Summary(
        summary.state[:_TEXT_CHARS],
        summary.owner,
        None if summary.title is None else summary.title[:_TEXT_CHARS],
        summary.due_ms,
        max(ends) if ends and all(ends) else None,
    )


# ---- the kinds


def _text(value: object) -> str | None:
    return value if type(value) is str and value else None


def _title_in(metadata: object) -> str | None:
    return _text(cast("Mapping[str, Any]", metadata).get("title")) if isinstance(metadata, Mapping) else None


def _field(found: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    value = found.get(name)
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else None


def _agent(found: Mapping[str, Any]) -> Summary | None:
    if not found:
        return None
    recovery = _field(found, "recovery")
    return Summary("recovering" if recovery and recovery.get("attempts") else "saved")


def _machine(found: Mapping[str, Any]) -> Summary | None:
    record = _field(found, "machine")
    return None if record is None else Summary(_text(record.get("state")) or "")


def _memory(found: Mapping[str, Any]) -> Summary | None:
    head = _field(found, "memories")
    return None if head is None else Summary(_OPEN, owner=_text(head.get("owner")))


def _session(found: Mapping[str, Any]) -> Summary | None:
    head = _field(found, "session")
    return None if head is None else Summary(_OPEN, owner=_text(head.get("user_id")))


def _team(found: Mapping[str, Any]) -> Summary | None:
    record = _field(found, "team")
    return None if record is None else Summary(_OPEN, title=_title_in(record.get("metadata")))


def _thread(found: Mapping[str, Any]) -> Summary | None:
    record = _field(found, "chat/thread")
    if record is None or record.get("is_going"):
        return None
    return Summary(_OPEN, title=_title_in(record.get("metadata")))


def _workflow(found: Mapping[str, Any]) -> Summary | None:
    record = _field(found, "state")
    state = None if record is None else _field(record, "state")
    status = None if state is None else _field(state, "status")
    if record is None:
        return None
    name = None if status is None else _text(status.get("name"))
    return Summary("" if name is None else name.lower())


_HEADS: Final[Mapping[str, tuple[str, ...]]] = {
    "agent": ("snapshot", "checkpoint", "recovery"),
    "machine": ("machine",),
    "memory": ("memories",),
    "session": ("session",),
    "team": ("team",),
    "thread": ("chat/thread",),
    "workflow": ("state",),
}
_SUMMARIES: Final[Mapping[str, Callable[[Mapping[str, Any]], Summary | None]]] = {
    "agent": _agent,
    "machine": _machine,
    "memory": _memory,
    "session": _session,
    "team": _team,
    "thread": _thread,
    "workflow": _workflow,
}


async def _has_thread(unit: Unit, space: str, subject: Subject) -> bool:
    """Return whether a thread without messages has checkpoints, or documents of a typed state."""
    parts = [layout.name_prefix(layout.DOCUMENTS, _prefix(space, subject))]
    if owner_of(space) == subject:
        parts.append(layout.CHECKPOINTS)
    return any([(await unit.store.scan(unit.space, part, limit=1)).entries for part in parts])


# ---- approvals


async def _summarise_approval(unit: Unit, id: str) -> Summary | None:
    """Return the state of an approval at the unit's time; while it is pending, it is due when it expires."""
    entry, shown, mark = await unit.read(approval_key(id), asked_key(id), mark_key(id))
    if entry is None:
        return None
    record = decode_approval(entry.value, f"approval {id!r}")
    title = None
    if shown is not None:
        found: Any = codec.to_builtin(await unit.value(shown))
        title = (
            _text(cast("Mapping[str, Any]", found).get("question")) if isinstance(found, Mapping) else None
        )
    title = None if title is None else title[:_TEXT_CHARS]
    if record.state != "pending":
        return Summary(record.state, title=title)
    if record.expires_ms is not None and (mark is None or record.expires_ms <= await unit.now_ms()):
        return Summary("expired", title=title)
    return Summary("pending", title=title, due_ms=record.expires_ms)


# ---- queues


async def _summarise_queue(unit: Unit, kind: str) -> Summary | None:
    """Return the head of the tasks of one kind.

    The lease of a claimed task counts as due when it expires as it was claimed: a heartbeat moves it to a
    later time, and the index is not told of it.
    """
    if await _first(unit, layout.READY, kind) is not None:
        return Summary("ready", due_ms=DUE_SINCE_CHANGE)
    heads = {part: await _first(unit, part, kind) for part in (layout.WAITING, layout.CLAIMED)}
    times = [tasks.time_in(part, head.key)[0] for part, head in heads.items() if head is not None]
    tick_ms = await _next_tick_ms(unit, kind)
    if tick_ms is not None:
        times.append(tick_ms)
    if times:
        due_ms = None if min(times) >= tasks.FOREVER_MS else min(times)
        is_waiting = heads[layout.WAITING] is not None or tick_ms is not None
        return Summary("waiting" if is_waiting else "claimed", due_ms=due_ms)
    if await _first(unit, layout.DEAD, kind) is not None:
        return Summary("dead")
    return None


async def _next_tick_ms(unit: Unit, kind: str) -> int | None:
    """Return the time at which the first schedule for tasks of a kind is looked at.

    If the search is given up, any schedule counts.
    """
    after, count = None, 0
    while True:
        page = await unit.store.scan(unit.space, layout.TICKS, after=after, limit=_AT_ONCE)
        due = [ticks.tick_in(entry.key) for entry in page.entries]
        stored = await unit.read(*(ticks.schedule_key(name) for _, name in due)) if due else []
        for (due_ms, _), entry in zip(due, stored, strict=True):
            count += 1
            if entry is not None and (count >= _TASKS or _is_for(entry, kind)):
                return due_ms
        if page.next is None:
            return None
        after = page.next


def _is_for(schedule: Entry, kind: str) -> bool:
    """Return whether a schedule puts tasks of a kind; a damaged one may."""
    try:
        return ticks.decode_schedule(schedule.value, describe(schedule.key)).kind == kind
    except CorruptError:
        return True


async def _first(unit: Unit, part: bytes, kind: str) -> Entry | None:
    """Return the first task of a kind in an index.

    If the search is given up, any task counts: a worker that looks for a task in vain costs less than one
    that never looks.
    """
    after, count = None, 0
    while True:
        page = await unit.store.scan(unit.space, part, after=after, limit=_AT_ONCE)
        for entry in page.entries:
            count += 1
            if tasks.index_in(entry).kind == kind or count >= _TASKS:
                return entry
        if page.next is None:
            return None
        after = page.next
