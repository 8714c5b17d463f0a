"""What a session was at a moment, made of the documents that its space had then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from keepstate.sessions.conversation_documents import EDITS, MESSAGES, TALK, ConversationRecord
from keepstate.sessions.generations import HEAD, HeadRecord, life_prefix
from keepstate.sessions.messages import Message
from keepstate.sessions.validated import STATES


@dataclass(frozen=True, slots=True)
class SessionMoment:
    """A session as it was at one moment.

    Attributes:
        life: Which of its lives it was, from 1; 0 if it was new, and nothing of it was there.
        user_id: Whose it was, or None.
        messages: The conversation.
        states: The states by name, `task` among them, as they are stored.
    """

    life: int
    user_id: str | None = None
    messages: list[Message] = field(default_factory=list[Message])
    states: dict[str, Any] = field(default_factory=dict[str, Any])


def moment_in(documents: Mapping[str, Any], prefix: str) -> SessionMoment:
    """Return the session that documents were at a moment."""
    head = documents.get(prefix + HEAD)
    if not isinstance(head, HeadRecord):
        return SessionMoment(0)
    life = life_prefix(prefix, head.life)
    record = documents.get(life + TALK, ConversationRecord())
    said = {int(number): message for number, message in _below(documents, life + MESSAGES).items()}
    edits = {int(number): message for number, message in _below(documents, life + EDITS).items()}
    messages = [edits.get(number, said[number]) for number in sorted(said) if number >= record.begin]
    return SessionMoment(head.life, head.user_id, messages, _below(documents, life + STATES))


def _below(documents: Mapping[str, Any], begin: str) -> dict[str, Any]:
    return {name[len(begin) :]: documents[name] for name in documents if name.startswith(begin)}
