"""Public results of a session: its task, its context for a model, and the session at a past moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec

from keepstate.sessions.conversation_documents import EDITS, MESSAGES, RECORD, ConversationRecord
from keepstate.sessions.entries import message_in
from keepstate.sessions.messages import Message
from keepstate.sessions.namespace import HEAD, HeadRecord, generation_prefix
from keepstate.sessions.validated import STATES
from keepstate.values.builtin import json_form

TaskStatus = Literal["pending", "in_progress", "waiting", "completed", "failed", "cancelled"]


@dataclass
class TaskState:
    """The task of a session.

    Attributes:
        task_id: Id of the task, if it has one.
        goal: The goal.
        status: The status.
        steps_completed: Number of completed steps.
        steps_remaining: Number of remaining steps.
        current_step: The step in progress.
        data: Intermediate results.
    """

    task_id: str | None = None
    goal: str = ""
    status: TaskStatus = "pending"
    steps_completed: Annotated[int, msgspec.Meta(ge=0)] = 0
    steps_remaining: Annotated[int, msgspec.Meta(ge=0)] = 0
    current_step: str | None = None
    data: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class SessionContext:
    """Everything to pass to a model, within a token budget.

    Attributes:
        recent: The messages in the context, in order.
        session: The states of the session by name, including `task`.
        user: `preferences` and `history` of the user, and the user's other states by name; empty without a
            user.
        tokens: The total number of tokens.
    """

    recent: list[Message]
    session: dict[str, Any]
    user: dict[str, Any]
    tokens: int

    @property
    def background(self) -> Message | None:
        """A system message with the states of session and user; None if there are none."""
        return build_background(self.session, self.user)


def build_background(session: Mapping[str, Any], user: Mapping[str, Any]) -> Message | None:
    """Return a system message with the states as JSON; None if there are none."""
    known = {name: part for name, part in (("session", session), ("user", user)) if part}
    if not known:
        return None
    return {"role": "system", "content": msgspec.json.encode(json_form(known)).decode()}


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
    numbers = record.numbers(0, max(said, default=-1) + 1)
    messages = [edits.get(number, message_in(said[number])) for number in numbers if number in said]
    return SessionMoment(head.life, head.user_id, messages, _with_prefix(documents, life + STATES))


def _with_prefix(documents: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {name[len(prefix) :]: documents[name] for name in documents if name.startswith(prefix)}
