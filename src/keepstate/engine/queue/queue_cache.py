"""Knowledge of a process about a queue between its calls: time, rules, ready tasks of one revision.

Nothing here is believed. A batch that builds on it checks the versions and the revision that it stands for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

from keepstate._runner import reentrant_lock
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.store_abilities import LossDetector
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.queue import tasks
from keepstate.engine.queue.rules import KnownRules, known_rules
from keepstate.errors import ConflictError
from keepstate.stores.protocol import Entry, Store

if TYPE_CHECKING:
    from keepstate.engine.kernel.executor import Executor

T = TypeVar("T")

_MOST_VIEWED: Final = 64
_VIEWED_BYTES: Final = 4 << 10
"""Size of the largest payload that a view keeps."""
_LONGEST_PAUSE: Final = 256
"""Number of claims that do not look at a view after many refusals in a row."""
_LONGEST_WAIT_S: Final = 1.0
_TIME_VALID_S: Final = 60.0
_LOOK_EVERY_S: Final = 5.0
"""Seconds between looks for endings of tasks that killed processes have left."""


class ReadyView:
    """The ready index of a space at one revision.

    Attributes:
        revision: The revision.
        entries: The record and the payload of each ready task by index key, in the order of claiming; None
            for a task of which this process knows only that it is there.
        losses: Detects that the store lost the revision.
    """

    def __init__(self, revision: int, losses: LossDetector) -> None:
        self.revision, self.losses = revision, losses
        self.entries: dict[bytes, tuple[Entry, Entry] | None] = {}

    def first(self, most: int) -> list[tuple[bytes, Entry, Entry]]:
        """Return the first tasks, as many as are known completely without a gap."""
        found: list[tuple[bytes, Entry, Entry]] = []
        for key in sorted(self.entries)[:most]:
            known = self.entries[key]
            if known is None:
                break
            found.append((key, *known))
        return found


class QueueCache:
    """Cache of the time, the rules and the ready tasks of one space, shared by all objects of one handle.

    Attributes:
        rules: The rules of the queue as they were read last.
        settled: The version of the rules under which all lines have a turn by these rules, or wait by them.
        next_ms: The earliest time at which a limit lets a task start that it held back; None without one.
    """

    def __init__(self) -> None:
        self.rules = KnownRules()
        self.settled = 0
        self.next_ms: int | None = None
        self._lock = reentrant_lock()
        self._view: ReadyView | None = None
        self._pause = 0
        self._longest_pause = 1
        self._time: tuple[int, float] | None = None
        self._looked_at_s: float | None = None

    # ---- time

    def learn_time(self, now_ms: int, awake_s: float) -> None:
        """Remember the space's time at a moment of this process."""
        self._time = now_ms, awake_s

    def now_ms(self, awake_s: float) -> int | None:
        """Return the space's time as this process expects it, late by a call at most; None if unknown."""
        if self._time is None or awake_s - self._time[1] > _TIME_VALID_S:
            return None
        now_ms, then_s = self._time
        return now_ms + max(int((awake_s - then_s) * 1000), 0)

    def is_look_due(self, now_s: float) -> bool:
        """Return whether it is time to look for endings of killed processes, and begin the next interval."""
        if self._looked_at_s is None or now_s - self._looked_at_s < _LOOK_EVERY_S:
            self._looked_at_s = now_s if self._looked_at_s is None else self._looked_at_s
            return False
        self._looked_at_s = now_s
        return True

    # ---- rules

    async def confirm_rules(self, store: Store, space: str, version: int, revision: int) -> bool:
        """Return whether the rules of a version still held at a revision; if not, learn the present ones."""
        if self.rules.version == version and self.rules.revision < revision:
            reading = await store.read(space, [layout.QUEUE_RULES])
            self.rules = known_rules(reading.entries[0], reading.revision)
        return self.rules.version == version

    def learn_rules(self, entry: Entry | None, unit: Unit, version: int) -> bool:
        """Learn the rules that a unit has read, and return whether they are those of a version."""
        self.rules = known_rules(entry, unit.revision or 0)
        return self.rules.version == version

    def wake_at(self, at_ms: int) -> None:
        """Note a time of the space at which a task can start that a limit held back."""
        if self.next_ms is None or at_ms < self.next_ms:
            self.next_ms = at_ms

    def next_start_s(self, awake_s: float) -> float:
        """Return the seconds until a limit lets a task start that it held back."""
        if self.next_ms is None or (now_ms := self.now_ms(awake_s)) is None:
            return _LONGEST_WAIT_S
        return max((self.next_ms - now_ms) / 1000, 0.001)

    # ---- batches of one task

    async def change(
        self,
        executor: Executor,
        work: Callable[[Unit], Awaitable[T]],
        task_id: str,
        supposed: Mapping[bytes, Entry | None],
    ) -> tuple[T, Entry | None]:
        """Run work on one task, and return its result and the written record; None if nothing was written.

        The work first runs on entries that are only supposed. If its batch, which checks them, is refused, or
        if it writes nothing, it runs again on what is read.

        Args:
            executor: The executor of the space.
            work: The work.
            task_id: The id of the task.
            supposed: Entries by key; empty to read at once.
        """
        clock = executor.clock
        now_ms = self.now_ms(clock.awake_or_asleep_s()) if supposed else None
        units: list[Unit] = []

        async def on_supposed(unit: Unit) -> T:
            assert now_ms is not None
            unit.assume_cached(supposed, 0, now_ms)
            units.append(unit)
            return await work(unit)

        async def on_read(unit: Unit) -> T:
            units.append(unit)
            answer = await work(unit)
            self.learn_time(await unit.now_ms(), clock.awake_or_asleep_s())
            return answer

        if now_ms is not None:
            with suppress(ConflictError):
                answer, revision = await executor.run(on_supposed, attempts=1)
                if revision:
                    return answer, self._note_task(task_id, units[-1], revision)
        answer, revision = await executor.run(on_read)
        return answer, self._note_task(task_id, units[-1], revision) if revision else None

    def _note_task(self, task_id: str, unit: Unit, revision: int) -> Entry | None:
        """Note what a batch made of a task, and return the task's record."""
        stored = unit.as_applied(tasks.task_key(task_id), revision)
        if stored is None or stored.version != revision:
            if not unit.written(layout.READY) and not unit.appended_under(layout.READY):
                self.note(revision)  # a step: no task has moved
            return None
        if self._view is None:
            return stored
        if len(unit.written(layout.TASKS)) > 1:  # followers became ready, or a leader was written
            with self._lock:
                self._view = None
            return stored
        record = tasks.decode_record(stored.value, f"task {task_id!r}")
        former, payload = (
            unit.as_read(stored.key),
            unit.as_applied(tasks.payload_key(task_id), revision),
        )
        left = None
        if former is not None:
            left = tasks.index_key(tasks.decode_record(former.value, f"task {task_id!r}"), former.version)
        if record.state != "ready":
            self.note(revision, left=left)
        else:
            known = None if payload is None else (stored, payload)
            self.note(revision, left=left, key=tasks.index_key(record, revision), task=known)
        return stored

    # ---- the view

    def take_view(self) -> ReadyView | None:
        """Return the view for one claim, and forget it; None without one, and for a time after a refusal."""
        with self._lock:
            view, self._view = self._view, None
            if self._pause:
                self._pause -= 1
                return None
            return None if view is None or view.losses.has_lost_history else view

    def keep_view(self, view: ReadyView) -> None:
        """Remember a view, unless a newer one is known."""
        with self._lock:
            if len(view.entries) <= _MOST_VIEWED and (
                self._view is None or self._view.revision < view.revision
            ):
                self._view = view

    def refuse(self) -> None:
        """Note that a view was stale: another process writes to the space."""
        with self._lock:
            self._view, self._pause = None, self._longest_pause
            self._longest_pause = min(2 * self._longest_pause, _LONGEST_PAUSE)

    def confirm(self) -> None:
        """Note that a view was right."""
        self._longest_pause = 1

    def note(
        self,
        revision: int,
        *,
        left: bytes | None = None,
        key: bytes | None = None,
        task: tuple[Entry, Entry] | None = None,
    ) -> None:
        """Note a batch of this process on one task.

        Args:
            revision: The revision of the batch.
            left: The former index key of the task.
            key: The task's key in the index of ready tasks, if it is there now.
            task: The task's record and payload, if both are known.
        """
        with self._lock:
            view = self._view
            if view is None:
                return
            if revision != view.revision + 1 or len(view.entries) >= _MOST_VIEWED:
                self._view = None
                return
            view.revision = revision
            if left is not None:
                view.entries.pop(left, None)
            if key is not None:
                view.entries[key] = None if task and len(task[1].value) > _VIEWED_BYTES else task
