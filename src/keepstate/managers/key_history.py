"""The history of a key, read from the record of its space."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from keepstate.engine.space.joint_work import is_recorded
from keepstate.engine.space.space import Space, Transaction
from keepstate.errors import InvalidError, NotFoundError


@dataclass(frozen=True, slots=True)
class StateMoment:
    """The value of a key at one time.

    Attributes:
        value: The value from that time on.
        at: Time of the write by the writer's clock, UTC.
        author: Author of the write, or None.
        message: Message of the write.
        commit: The id of the commit of `main` that has the value.
    """

    value: Any
    at: datetime
    author: str | None
    message: str
    commit: str


async def read_key_history(space: Space | Transaction, name: str, limit: int) -> list[StateMoment]:
    """Return the values of a document since it was last absent, newest first.

    Raises:
        InvalidError: The space does not record.
    """
    history = space.history
    if not await is_recorded(space):
        if await space.documents.entry(name) is None:
            return []
        raise InvalidError(f"{space!r} does not record changes. Turn it on with StateConfig(record=True).")
    values: list[StateMoment] = []
    ref = "main"
    while len(values) < limit:
        try:
            commit = (await history.blame((name,), ref)).commit
        except NotFoundError:
            break
        value = (await history.checkout(commit, load=[name]))[name]
        values.append(StateMoment(value, commit.created_at, commit.author, commit.message, commit.id))
        if not commit.parents:
            break
        ref = commit.parents[0]
    return values
