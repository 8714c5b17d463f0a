"""Blocking twins of `keepstate.sessions.user`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from keepstate._finish import finish
from keepstate.sessions import user as sessions
from keepstate.sync.ledger import UsageLedger
from keepstate.sync.sessions.validated import ValidatedState
from keepstate.sync.twin import Twin, around_generic

M = TypeVar("M")


class UserState(Twin[sessions.UserState]):
    """The state of a user, in the space `user/<user_id>`. It outlives sessions, and all of them share it.

    Attributes:
        user_id: Id of the user.
    """

    @property
    def user_id(self) -> str:
        """Id of the user."""
        return self._inner.user_id

    def get_preferences(self) -> dict[str, Any]:
        """Return a copy of the user's preferences."""
        return finish(self._inner.get_preferences())

    def update_preferences(
        self, change: Mapping[str, Any] | Callable[[dict[str, Any]], dict[str, Any]]
    ) -> dict[str, Any]:
        """Change the latest preferences and return the new ones.

        The same preferences with validation are `state(Model, name="preferences")`.

        Args:
            change: Keys to set, or a function that gets all preferences and returns the new ones; it may be
                called more than once.

        Raises:
            InvalidError: The change is neither, or its result is not a dict with text keys.
        """
        return finish(self._inner.update_preferences(change))

    def remember(self, kind: str, item: object) -> int:
        """Add an item to the user's history, and return its number within its kind, from 0.

        Args:
            kind: Kind of the item, such as "past_bookings"; at most 100 bytes.
            item: Any value.
        """
        return finish(self._inner.remember(kind, item))

    def history(self, kind: str, *, limit: int = 20) -> list[Any]:
        """Return the newest items of a kind, in order.

        Args:
            kind: Kind of the items.
            limit: Maximum number of items, at most 500.
        """
        return finish(self._inner.history(kind, limit=limit))

    def histories(self, *, limit: int = 20) -> dict[str, list[Any]]:
        """Return the newest items of each kind; see `history`."""
        return finish(self._inner.histories(limit=limit))

    def state(self, model: type[M], name: str | None = None) -> ValidatedState[M]:
        """Return a state of the user that is validated on write and on read.

        Args:
            model: A dataclass, msgspec Struct or pydantic class.
            name: Name of the state; the model's name by default. `history` is reserved for `remember`.
        """
        answer: ValidatedState[M] = around_generic(ValidatedState, self._inner.state(model, name))
        return answer

    @property
    def usage(self) -> UsageLedger:
        """The usage of the user, of what was counted here, and its budgets; see `UsageLedger.within`."""
        return UsageLedger(self._inner.usage)
