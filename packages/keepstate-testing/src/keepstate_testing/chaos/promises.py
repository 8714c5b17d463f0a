"""The promises of a space's parts to the workload: counters, accounts, the queue, leases, bookings.

Pure functions of the clients' records and of the space's end. The log has each step of a document, so every
value is judged and not only the last one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from keepstate.engine.kernel import layout
from keepstate.engine.queue import tasks
from keepstate.stores.protocol import Change
from keepstate.values import codec
from keepstate.values.key import unpack
from keepstate_testing.chaos.workload import ACCOUNTS, COUNTER, DONE, FIRST_BALANCE, GUARDED
from keepstate_testing.proof.bookings import double_bookings
from keepstate_testing.proof.ending import End
from keepstate_testing.proof.findings import Findings, Kind
from keepstate_testing.proof.operations import History

_ACCOUNT_KEYS: Final = {layout.named_key(layout.DOCUMENTS, name) for name in ACCOUNTS}


def promises(history: History, end: End) -> Findings:
    """Return each promise of a part that was broken."""
    found = Findings()
    _counters(history, end, found)
    _accounts(history, end, found)
    _queue(history, end, found)
    _leases(history, end, found)
    for text in double_bookings(end.log):
        found.add(Kind.DISORDERED, history.space, text)
    return found


def _steps(end: End, name: str) -> Iterator[tuple[Change, Any, Any]]:
    """Yield each change of a document with its old and new value, None for absent."""
    key = layout.named_key(layout.DOCUMENTS, name)
    for change in end.log:
        if change.key == key:
            yield change, _value(change.old), _value(change.new)


def _value(stored: bytes | None) -> Any:
    return None if stored is None else codec.decode(stored)


def _counters(history: History, end: End, found: Findings) -> None:
    for name in (COUNTER, DONE):
        for change, old, new in _steps(end, name):
            if new != (old or 0) + 1:
                found.add(Kind.LOST, history.space, f"{name} went from {old} to {new} at {change.revision}")
    counted = sum(1 for _ in _steps(end, COUNTER))
    acknowledged = sum(note.what == "counted" for note in history.notes)
    if counted < acknowledged:
        found.add(Kind.LOST, history.space, f"{acknowledged} increments acknowledged, {counted} made")


def _accounts(history: History, end: End, found: Findings) -> None:
    moved = Counter[int]()
    for change in end.log:
        if change.key in _ACCOUNT_KEYS:
            before = FIRST_BALANCE if change.old is None else _value(change.old)
            moved[change.revision] += _value(change.new) - before
    for revision, amount in moved.items():
        if amount:
            found.add(Kind.PARTIAL, history.space, f"{amount} came from nowhere at revision {revision}")
    for note in history.notes:
        if note.what == "unbalanced":
            found.add(Kind.DISORDERED, history.space, f"a transaction saw accounts that sum to {note.number}")


def _queue(history: History, end: End, found: Findings) -> None:
    indexes = {
        state: [key for key in end.entries if key.startswith(index)]
        for state, index in layout.INDEXES.items()
    }
    known = {unpack(key[len(layout.TASKS) :])[0] for key in end.entries if key.startswith(layout.TASKS)}
    done = {tasks.time_in(layout.DONE, key)[1] for key in indexes["done"]}
    for note in history.notes:
        if note.what == "put" and note.about not in known:
            found.add(Kind.LOST, history.space, f"task {note.about} was put and is gone")
        if note.what == "completed" and note.about not in done:
            found.add(Kind.LOST, history.space, f"task {note.about} was completed and is not done")
    completed = Counter(note.about for note in history.notes if note.what == "completed")
    for task, times in completed.items():
        if times > 1:
            found.add(Kind.APPLIED_TWICE, history.space, f"task {task} was completed {times} times")
    counted = sum(1 for _ in _steps(end, DONE))
    if counted != len(done) or len(indexes["done"]) != len(done):
        text = f"{len(done)} tasks are done under {len(indexes['done'])} entries; {counted} were counted"
        found.add(Kind.APPLIED_TWICE if counted > len(done) else Kind.LOST, history.space, text)
    if (places := sum(map(len, indexes.values()))) != len(known):
        found.add(Kind.PARTIAL, history.space, f"{len(known)} tasks stand in {places} places")


def _leases(history: History, end: End, found: Findings) -> None:
    highest = 0
    for change, _, token in _steps(end, GUARDED):
        if token < highest:
            text = f"the holder with token {token} wrote at {change.revision}, after {highest}"
            found.add(Kind.DISORDERED, history.space, text)
        highest = max(highest, token)
