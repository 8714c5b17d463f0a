"""The state of a user across sessions: preferences, history, and states with a model.

Each kind of history is a sequence of numbered documents, so adding an item costs the same however many there
are.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

from keepstate.engine.kernel.arguments import check_text
from keepstate.engine.space.space import Transaction
from keepstate.engine.usage.ledger import UsageLedger
from keepstate.errors import InvalidError
from keepstate.names import escape
from keepstate.sessions.models import Model
from keepstate.sessions.namespace import Namespace
from keepstate.sessions.validated import (
    STATES,
    PlainState,
    ValidatedState,
    make_state,
)
from keepstate.values import limits

M = TypeVar("M")

_PREFERENCES: Final = f"{STATES}preferences"
_KINDS: Final = "history"
_KIND_BYTES: Final = 100
_MOST: Final = 500


class UserState:
    """The state of a user, in the space `user/<user_id>`. It outlives sessions, and all of them share it.

    Attributes:
        user_id: Id of the user.
    """

    user_id: str

    def __init__(self, user_id: str, namespace: Namespace) -> None:
        self.user_id, self._namespace = user_id, namespace
        self._preferences = PlainState(namespace, _PREFERENCES, f"the preferences of user {user_id!r}")

    def __repr__(self) -> str:
        return f"<UserState {self.user_id!r} in {self._namespace.target!r}>"

    async def get_preferences(self) -> dict[str, Any]:
        """Return a copy of the user's preferences."""
        return await self._preferences.get()

    async def update_preferences(
        self,
        change: Mapping[str, Any] | Callable[[dict[str, Any]], dict[str, Any] | Awaitable[dict[str, Any]]],
    ) -> dict[str, Any]:
        """Change the latest preferences and return the new ones.

        The same preferences with validation are `state(Model, name="preferences")`.

        Args:
            change: Keys to set, or a function that gets all preferences and returns the new ones; it may be
                called more than once.

        Raises:
            InvalidError: The change is neither, or its result is not a dict with text keys.
        """
        return await self._preferences.update(change, f"preferences of {self.user_id}")

    async def remember(self, kind: str, item: object) -> int:
        """Add an item to the user's history, and return its number within its kind, from 0.

        Args:
            kind: Kind of the item, such as "past_bookings"; at most 100 bytes.
            item: Any value.
        """
        segment = _segment(kind)

        async def work(tx: Transaction, prefix: str) -> int:
            counts = await self._counts(tx, prefix)
            number = counts.get(kind, 0)
            await tx.documents.put(prefix + _KINDS, {**counts, kind: number + 1})
            await tx.documents.put(_item(prefix, segment, number), item)
            return number

        return await self._namespace.together(work, message=f"remember {kind}")

    async def history(self, kind: str, *, limit: int = 20) -> list[Any]:
        """Return the newest items of a kind, in order.

        Args:
            kind: Kind of the items.
            limit: Maximum number of items, at most 500.
        """
        segment = _segment(kind)
        _check_limit(limit)
        prefix = await self._namespace.to_read() or ""
        count = (await self._counts(self._namespace.target, prefix)).get(kind, 0)
        return await self._items(prefix, segment, count, limit)

    async def histories(self, *, limit: int = 20) -> dict[str, list[Any]]:
        """Return the newest items of each kind; see `history`."""
        _check_limit(limit)
        prefix = await self._namespace.to_read() or ""
        counts = await self._counts(self._namespace.target, prefix)
        return {
            kind: await self._items(prefix, _segment(kind), count, limit) for kind, count in counts.items()
        }

    def state(self, model: type[M], name: str | None = None) -> ValidatedState[M]:
        """Return a state of the user that is validated on write and on read.

        Args:
            model: A dataclass, msgspec Struct or pydantic class.
            name: Name of the state; the model's name by default. `history` is reserved for `remember`.
        """
        made = Model(model)
        if (made.name if name is None else name) == "history":
            raise InvalidError("`name` is 'history', which is reserved for remember(). Choose another name.")
        return make_state(self._namespace, self.user_id, f"state of user {self.user_id!r}", made, name)

    @property
    def usage(self) -> UsageLedger:
        """The usage of the user, of what was counted here, and its budgets; see `UsageLedger.within`."""
        return self._namespace.ledger

    # ---- its documents

    async def _counts(self, target: Any, prefix: str) -> dict[str, int]:
        counts: dict[str, int] = await target.documents.get(prefix + _KINDS, {}, type=dict[str, int])
        return counts

    async def _items(self, prefix: str, segment: str, count: int, limit: int) -> list[Any]:
        names = [_item(prefix, segment, number) for number in range(max(0, count - limit), count)]
        entries = await self._namespace.target.documents.entries(*names) if names else {}
        return [entries[name].value for name in names if name in entries]


def _item(prefix: str, segment: str, number: int) -> str:
    return f"{prefix}{_KINDS}/{segment}/{number:012d}"


def _segment(kind: str) -> str:
    if not 0 < len(check_text("kind", kind).encode()) <= _KIND_BYTES:
        raise InvalidError(f"`kind` is {kind!r}. It must have 1 to {_KIND_BYTES} bytes of UTF-8.")
    return escape(kind)


def _check_limit(limit: int) -> None:
    limits.admit_count("limit", limit, most=_MOST)
