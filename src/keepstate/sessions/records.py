"""What a session returns: a task, and all that a model is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec

from keepstate.sessions.messages import Message
from keepstate.values.builtin import json_form

TaskStatus = Literal["pending", "in_progress", "waiting", "completed", "failed", "cancelled"]


@dataclass
class TaskState:
    """What a session works on.

    Attributes:
        task_id: Which task, if it has an id.
        goal: What is to be reached.
        status: How it stands.
        steps_completed: How many steps are done.
        steps_remaining: How many are still to be done.
        current_step: The step that is being done.
        data: What was found out on the way.
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
    """All that a model is told, within a budget of tokens.

    Attributes:
        recent: The messages of the conversation that are in the context, in order.
        session: The states of the session by name, `task` among them.
        user: `preferences` and `history` of the user, and other states by name; empty without one.
        tokens: How many all of it has.
    """

    recent: list[Message]
    session: dict[str, Any]
    user: dict[str, Any]
    tokens: int

    @property
    def background(self) -> Message | None:
        """A system message that says what is known of session and user; None if nothing is."""
        return told(self.session, self.user)


def told(session: Mapping[str, Any], user: Mapping[str, Any]) -> Message | None:
    """Return the message that says what is known, as JSON; None if nothing is."""
    known = {name: part for name, part in (("session", session), ("user", user)) if part}
    if not known:
        return None
    return {"role": "system", "content": msgspec.json.encode(json_form(known)).decode()}
