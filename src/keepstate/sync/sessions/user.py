"""Blocking twins of `keepstate.sessions.user`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from keepstate._finish import finish
from keepstate.sessions import user as sessions
from keepstate.sync.sessions.validated import ValidatedState
from keepstate.sync.twin import Twin, around_generic

M = TypeVar("M")


class UserState(Twin[sessions.UserState]):
    """What is known of a user, in the space `user/<user_id>`: it outlives sessions, and all of them share it.

    Attributes:
        user_id: Who it is.
    """

    @property
    def user_id(self) -> str:
        """Who it is."""
        return self._inner.user_id

    def get_preferences(self) -> dict[str, Any]:
        """Return what the user prefers; a copy."""
        return finish(self._inner.get_preferences())

    def update_preferences(
        self, change: Mapping[str, Any] | Callable[[dict[str, Any]], dict[str, Any]]
    ) -> dict[str, Any]:
        """Change the newest preferences, whoever wrote them, and return what became of them.

        With a model, `state(Model, name="preferences")` is the same and validates.

        Args:
            change: What to set, by name, or a function that is given all and returns all; it may be called
                again.

        Raises:
            InvalidError: It is neither, or makes no dict whose keys are text.
        """
        return finish(self._inner.update_preferences(change))

    def remember(self, kind: str, item: object) -> int:
        """Add to what happened, and return its number within its kind, from 0.

        Args:
            kind: What happened, such as "past_bookings"; at most 100 bytes.
            item: Any value.
        """
        return finish(self._inner.remember(kind, item))

    def history(self, kind: str, *, limit: int = 20) -> list[Any]:
        """Return the newest of what happened, in order.

        Args:
            kind: What happened.
            limit: How many at the most; 500 is the highest.
        """
        return finish(self._inner.history(kind, limit=limit))

    def histories(self, *, limit: int = 20) -> dict[str, list[Any]]:
        """Return the newest of each kind of what happened; see `history`."""
        return finish(self._inner.histories(limit=limit))

    def state(self, model: type[M], name: str | None = None) -> ValidatedState[M]:
        """Return a state of the user that is validated when it is written and when it is read.

        Args:
            model: A dataclass, msgspec Struct or pydantic class.
            name: What it is called; the model's name if it is not given. `history` is none: it is what
                `remember` keeps.
        """
        answer: ValidatedState[M] = around_generic(ValidatedState, self._inner.state(model, name))
        return answer
