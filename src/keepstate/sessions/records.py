"""Public results of a session: its task, and the context for a model."""

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
