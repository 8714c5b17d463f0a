"""A session at a past moment, built from the documents that its space had then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from keepstate.sessions.conversation_documents import EDITS, MESSAGES, RECORD, ConversationRecord
from keepstate.sessions.generations import HEAD, HeadRecord, generation_prefix
from keepstate.sessions.messages import Message
from keepstate.sessions.validated import STATES


@dataclass(frozen=True, slots=True)
class SessionMoment:
    """A session at one moment.

    Attributes:
        life: Its generation, from 1; 0 if the session was new and had no documents.
        user_id: The owner, or None.
        messages: The conversation.
        states: The states by name, including `task`, in their stored form.
    """

    life: int
    user_id: str | None = None
    messages: list[Message] = field(default_factory=list[Message])
    states: dict[str, Any] = field(default_factory=dict[str, Any])


def build_moment(documents: Mapping[str, Any], prefix: str) -> SessionMoment:
    """Build a session from the documents of one moment."""
    head = documents.get(prefix + HEAD)
    if not isinstance(head, HeadRecord):
        return SessionMoment(0)
    life = generation_prefix(prefix, head.life)
    record = documents.get(life + RECORD, ConversationRecord())
    said = {int(number): message for number, message in _with_prefix(documents, life + MESSAGES).items()}
    edits = {int(number): message for number, message in _with_prefix(documents, life + EDITS).items()}
    messages = [edits.get(number, said[number]) for number in sorted(said) if number >= record.begin]
    return SessionMoment(head.life, head.user_id, messages, _with_prefix(documents, life + STATES))


def _with_prefix(documents: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {name[len(prefix) :]: documents[name] for name in documents if name.startswith(prefix)}
