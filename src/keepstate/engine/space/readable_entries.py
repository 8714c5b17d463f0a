"""Readable part of an entry in an export: the word and the name of its line, and a value in JSON.

Entries without a value of their own, such as places in an index, have neither. An import reads none of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from keepstate.engine.approvals.records import decode_approval, decode_line
from keepstate.engine.documents.record import split_record
from keepstate.engine.events.record import EventRecord
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.stored import decode_stored, to_datetime
from keepstate.engine.queue.step_records import decode_step
from keepstate.engine.queue.tasks import decode_record
from keepstate.values import codec
from keepstate.values.builtin import json_form
from keepstate.values.key import unpack


def _value(stored: bytes) -> Any:
    return json_form(codec.to_builtin(stored))


def _event(stored: bytes) -> Any:
    return _value(bytes(decode_stored(stored, EventRecord, "an event").data))


def _task(stored: bytes) -> Any:
    record = decode_record(stored, "a task")
    return {"state": record.state, "kind": record.kind, "put_at": _time(record.put_at_ms)}


def _step(stored: bytes) -> Any:
    record = decode_step(stored, "a step")
    return None if record.value is None else _value(record.value)


def _approval(stored: bytes) -> Any:
    record = decode_approval(stored, "an approval")
    answer = {} if record.value is None else {"answer": _value(record.value)}
    return {"state": record.state, "asked_by": record.asker, "asked_at": _time(record.asked_ms), **answer}


def _decision(stored: bytes) -> Any:
    line = decode_line(stored, "a line of a log")
    answer = {} if line.value is None else {"answer": _value(line.value)}
    return {"kind": line.kind, "by": line.by, "at": _time(line.at_ms), "note": line.note, **answer}


def _time(at_ms: int) -> str:
    return to_datetime(at_ms).isoformat()


_PARTS: Final[dict[bytes, tuple[str, Callable[[bytes], Any]]]] = {
    layout.EVENTS: ("event", _event),
    layout.TASKS: ("task", _task),
    layout.PAYLOADS: ("payload", _value),
    layout.RESULTS: ("result", _value),
    layout.MESSAGES: ("message_to", _value),
    layout.STEPS: ("step_of", _step),
    layout.STEP_VALUES: ("step_of", _value),
    layout.PLANNED: ("schedule", _value),
    layout.APPROVALS: ("approval", _approval),
    layout.ASKED: ("approval", _value),
    layout.DECIDED: ("approval", _decision),
}
"""The word of the entries of a part, and the function that returns what their values say."""


def is_readable(key: bytes) -> bool:
    """Return whether the entry with a key has something that a person reads."""
    return key.startswith((layout.DOCUMENTS, *_PARTS))


def read_entry(key: bytes, whole: bytes) -> dict[str, Any]:
    """Return the word with the name, and the value.

    Args:
        key: The key of an entry that `is_readable`.
        whole: The stored value, large ones whole.
    """
    if key.startswith(layout.DOCUMENTS):
        name, encoded = split_record(key, whole)
        return {"document": name, "value": _value(encoded)}
    part = next(part for part in _PARTS if key.startswith(part))
    word, read = _PARTS[part]
    return {word: unpack(key[len(part) :])[0], "value": read(whole)}
