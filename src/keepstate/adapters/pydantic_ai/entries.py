"""Messages and records of Pydantic AI as plain values, the entries of a save, and the collection of records.

Values pass through Pydantic AI's own serializers. What they refuse is refused here, before anything is
written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from keepstate.engine.documents.collection import Collection
from keepstate.engine.space.space import Space, Transaction
from keepstate.errors import InvalidError, MissingExtraError

try:
    from pydantic import TypeAdapter
    from pydantic_ai.conversation_store import ConversationEntry, ConversationRecord
    from pydantic_ai.messages import ModelMessagesTypeAdapter

    from keepstate.adapters.pydantic_values import PLAIN, dump
except ImportError as error:
    raise MissingExtraError.of("pydantic-ai", "pydantic-ai-slim from 2.66 on") from error

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
RECORDS: Final = TypeAdapter(list[ConversationRecord], config=PLAIN)


@dataclass(slots=True)
class NewEntry:
    """An entry to write: as plain values, with the approximate size of its message."""

    id: str
    parent_id: str | None
    message: Any
    size_bytes: int


def dump_entries(entries: Sequence[ConversationEntry], conversation_id: str) -> list[NewEntry]:
    """Return new entries of a conversation in their plain form.

    Raises:
        InvalidError: Pydantic AI cannot serialize a message, or two entries have one id.
    """
    dumped: list[NewEntry] = []
    for entry in entries:
        what = f"entry {entry.id!r} of conversation {conversation_id!r}"
        message = dump(ModelMessagesTypeAdapter, [entry.message], what)[0]
        size_bytes = len(ModelMessagesTypeAdapter.dump_json([entry.message]))
        dumped.append(NewEntry(entry.id, entry.parent_id, message, size_bytes))
    if len({entry.id for entry in dumped}) < len(dumped):
        raise InvalidError(f"two new entries of conversation {conversation_id!r} have the same id")
    return dumped


def microseconds(time: datetime) -> int:
    """Return a time as microseconds since 1970; one without a zone is in UTC."""
    aware = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return (aware - _EPOCH) // timedelta(microseconds=1)


# ---- records


def conversations_in(target: Space | Transaction) -> Collection[dict[str, Any]]:
    """Return the conversations of a space."""
    return target.collection("conversation", dict[str, Any], index={"updated": _by_time, "scope": _by_scope})


def _by_time(stored: Mapping[str, Any]) -> tuple[int]:
    return (stored["updated_us"],)


def _by_scope(stored: Mapping[str, Any]) -> tuple[str, int] | None:
    return None if stored["scope"] is None else (stored["scope"], stored["updated_us"])


def record_in(stored: Mapping[str, Any]) -> ConversationRecord:
    """Return the record of a stored conversation."""
    return RECORDS.validate_python([stored["record"]])[0]
