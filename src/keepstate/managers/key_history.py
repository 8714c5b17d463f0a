"""What a key has been, read from the record of its space."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from keepstate.engine.space.joint_work import is_recorded
from keepstate.engine.space.space import Space
from keepstate.engine.space.transaction import Transaction
from keepstate.errors import InvalidError, NotFoundError


@dataclass(frozen=True, slots=True)
class StateMoment:
    """What a key became at one moment.

    Attributes:
        value: Its value from then on.
        at: When, by the clock of who wrote it, UTC.
        author: Who wrote it, or None.
        message: What for.
        commit: The id of the commit of `main` that has it.
    """

    value: Any
    at: datetime
    author: str | None
    message: str
    commit: str


async def moments_of(space: Space | Transaction, name: str, limit: int) -> list[StateMoment]:
    """Return what a document has been since it was last absent, the newest first.

    Raises:
        InvalidError: The space records nothing.
    """
    history = space.history
    if not await is_recorded(space):
        if await space.documents.entry(name) is None:
            return []
        raise InvalidError(f"{space!r} keeps no record; ask for it by StateConfig(record=True)")
    moments: list[StateMoment] = []
    ref = "main"
    while len(moments) < limit:
        try:
            commit = (await history.blame((name,), ref)).commit
        except NotFoundError:
            break
        value = (await history.checkout(commit, load=[name]))[name]
        moments.append(StateMoment(value, commit.created_at, commit.author, commit.message, commit.id))
        if not commit.parents:
            break
        ref = commit.parents[0]
    return moments
