"""Lines: ready tasks of one priority, kind and key, of which only one turn stands in the order of claiming.

A task arrives in the ready index. A claim that meets a task with a key moves it into
its line; so it does with tasks of a kind that has a lane, and with all tasks under aging. Each line with
tasks has exactly one turn: in the order of claiming, among those that are blocked, or among those that are
held until a time. A claim of the first task of a line moves its turn after the others of its priority, so
that keys take turns. A line whose key is at a limit waits among the blocked ones and costs no claim
anything, until a slot of the key is freed.

Invariant: a batch that adds to a line writes its entry in `layout.LINES`, and a batch that removes a turn for
good checks that entry. A line with tasks therefore never loses its turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from keepstate.engine.kernel import layout
from keepstate.engine.kernel.stored import corrupt_error, decode_stored, describe
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.queue import tasks
from keepstate.engine.queue.rules import QueueRules
from keepstate.engine.queue.slots import counter_name, short_name
from keepstate.stores.protocol import Entry
from keepstate.values.key import STAMP_SIZE, Stamp, pack, unpack

_encode: Final = msgspec.msgpack.Encoder().encode


class LinedRecord(msgspec.Struct, array_like=True, frozen=True):
    """The value of a lined task's index entry: that of a ready task, and the time from which it waits."""

    id: str
    kind: str
    key: str | None
    at_ms: int


class Line(msgspec.Struct, array_like=True, frozen=True):
    """The tasks of one priority, kind and key."""

    priority: int
    kind: str
    key: str | None

    @property
    def name(self) -> bytes:
        """The name of the line in keys. No name begins another one's."""
        text = short_name(self.kind, 0) if self.key is None else short_name(self.kind, 1, self.key)
        return pack(-self.priority) + text

    @property
    def key_of_entry(self) -> bytes:
        """The key of the line's entry, which has the key of its turn."""
        return layout.LINES + self.name

    @property
    def tasks_prefix(self) -> bytes:
        """The prefix of the index keys of its tasks, in order of arrival."""
        return layout.LINED + self.name


class Turn(msgspec.Struct, array_like=True, frozen=True):
    """The place of a line in the order of claiming.

    Attributes:
        line: The line.
        epoch: The epoch of the order.
        order: The order by priority and aging; the least is first.
        revision: The revision of the arrival, or that at which the line's last task was claimed.
        index: The index of the arrival in its batch; above all of these after a claim.
    """

    line: Line
    epoch: int
    order: int
    revision: int
    index: int

    @property
    def rank(self) -> tuple[int, int, int]:
        """The rank in the order of claiming; the least is first."""
        return self.order, self.revision, self.index


def stamp_in(key: bytes) -> Stamp:
    """Return the stamp in the index key of a ready task."""
    match unpack(key[-STAMP_SIZE:]):
        case (Stamp() as stamp,):
            return stamp
        case _:
            raise corrupt_error(describe(key), "the key of a ready task must end with a stamp")


def rank_of_arrival(index: Entry) -> tuple[int, int, int]:
    """Return the rank of a task that stands in the ready index outside of lines, without aging."""
    match unpack(index.key[len(layout.READY) :]):
        case (int(order), Stamp() as stamp):
            return order, stamp.revision, stamp.index
        case _:
            raise corrupt_error(describe(index.key), "it is not the key of a ready task")


def line_of(index: Entry) -> Line:
    """Return the line of a task that waits in one, by its index entry."""
    record = decode_stored(index.value, LinedRecord, index.key)
    match unpack_first(index.key[len(layout.LINED) :]):
        case int(order):
            return Line(-order, record.kind, record.key)
        case _:
            raise corrupt_error(describe(index.key), "it is not the key of a task in a line")


def turn_of_first(rules: QueueRules, line: Line, first: Entry) -> Turn:
    """Return the turn of a line by the arrival of its first task."""
    stamp = stamp_in(first.key)
    record = decode_stored(first.value, LinedRecord, first.key)
    order = rules.order_of(line.priority, record.at_ms)
    return Turn(line, rules.order_epoch, order, stamp.revision, stamp.index)


def decode_turn(entry: Entry) -> Turn:
    """Return the turn in an entry.

    Raises:
        CorruptError: The entry is not one of a turn.
    """
    return decode_stored(entry.value, Turn, entry.key)


def turns_prefix(rules: QueueRules, lane: int) -> bytes:
    """Return the prefix of the keys of the turns of a lane."""
    return layout.TURNS + pack(rules.order_epoch, lane)


def turn_key(rules: QueueRules, turn: Turn) -> bytes:
    """Return the key of a turn in the order of claiming."""
    lane = rules.lane_of(turn.line.kind)
    return layout.TURNS + pack(turn.epoch, lane, *turn.rank) + turn.line.name


def blocked_prefix(rules: QueueRules, counter: bytes) -> bytes:
    """Return the prefix of the keys of the lines that wait for a slot of a counter."""
    return layout.BLOCKED + pack(rules.limit_epoch) + counter


def put_turn(unit: Unit, key: bytes, turn: Turn) -> None:
    """Write a turn under a key, and note the key in the line's entry."""
    unit.put(key, _encode(turn))
    unit.put(turn.line.key_of_entry, key)


def give_turn(unit: Unit, rules: QueueRules, turn: Turn) -> None:
    """Put a line into the order of claiming."""
    put_turn(unit, turn_key(rules, turn), turn)


def block_turn(unit: Unit, rules: QueueRules, turn: Turn, counter: bytes) -> None:
    """Let a line wait for a slot of a counter."""
    put_turn(unit, blocked_prefix(rules, counter) + pack(*turn.rank) + turn.line.name, turn)
    ask_others(unit, rules, turn.line, counter)


def hold_turn(unit: Unit, rules: QueueRules, turn: Turn, until_ms: int) -> None:
    """Let a line wait until a time."""
    put_turn(unit, layout.HELD + pack(rules.limit_epoch, until_ms) + turn.line.name, turn)
    ask_others(unit, rules, turn.line, None)


def end_line(unit: Unit, rules: QueueRules, line: Line) -> None:
    """Remove the entry of a line without tasks. The caller has read it in this unit, and deletes the turn."""
    unit.delete(line.key_of_entry)
    ask_others(unit, rules, line, None)


def ask_others(unit: Unit, rules: QueueRules, line: Line, counter: bytes | None) -> None:
    """Let the next claim look at lines that wait for a slot which this line had the turn to take.

    Args:
        unit: The unit to write to.
        rules: The rules of the queue.
        line: The line that does not take a slot.
        counter: The counter that blocks it; its slots are all taken.
    """
    for limit in rules.limits_of(line.kind, line.key):
        if limit.each_key and limit.running is not None:
            other = counter_name(limit.id, line.key)
            if other != counter:
                unit.put(layout.FREED + other, b"")


def epoch_in(part: bytes, key: bytes) -> int:
    """Return the epoch in the key of a turn."""
    match unpack_first(key[len(part) :]):
        case int(epoch):
            return epoch
        case _:
            raise corrupt_error(describe(key), "it does not begin with an epoch")


def unpack_first(packed: bytes) -> Any:
    """Return the first segment of a packed path."""
    return unpack(packed)[0]


def held_until(key: bytes) -> int:
    """Return the time in the key of a line that is held."""
    match unpack(key[len(layout.HELD) :]):
        case (int(), int(until_ms), *_):
            return until_ms
        case _:
            raise corrupt_error(describe(key), "it does not contain a time")


def add_to_line(unit: Unit, rules: QueueRules, index: Entry, record: tasks.TaskRecord) -> LinedRecord:
    """Move a ready task into its line. Return the content of its index entry."""
    line = Line(record.priority, record.kind, record.key)
    stamp = stamp_in(index.key)
    lined = LinedRecord(record.id, record.kind, record.key, record.due_at_ms)
    unit.delete(index.key)
    moved = msgspec.structs.replace(
        record, place=line.tasks_prefix, placed_at=stamp.revision, stamp_index=stamp.index
    )
    unit.put(tasks.index_key(moved, 0), _encode(lined))
    unit.put(tasks.task_key(record.id), tasks.encode_record(moved))
    return lined


def first_turns(
    unit: Unit,
    rules: QueueRules,
    added: Sequence[tuple[Entry, tasks.TaskRecord]],
    entries: dict[bytes, Entry | None],
) -> None:
    """Move ready tasks into their lines, and give a turn to each line that had none.

    Args:
        unit: The unit, which has read the records and the entries of the lines.
        rules: The rules of the queue.
        added: The tasks in order, each with its index entry.
        entries: The entries of their lines, by key.
    """
    begun: set[bytes] = set()
    for index, record in added:
        line = Line(record.priority, record.kind, record.key)
        lined = add_to_line(unit, rules, index, record)
        key = line.key_of_entry
        if key in begun:
            continue
        begun.add(key)
        known = entries[key]
        if known is not None:
            unit.put(key, known.value)  # so that a batch that removes the turn fails
            continue
        stamp = stamp_in(index.key)
        order = rules.order_of(line.priority, lined.at_ms)
        give_turn(unit, rules, Turn(line, rules.order_epoch, order, stamp.revision, stamp.index))
