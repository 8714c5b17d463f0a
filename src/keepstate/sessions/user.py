"""What is known of a user across sessions: what they prefer, what happened, and any state with a model.

Each kind of thing that happened is a line of documents with numbers, so that to remember one more costs the
same however much is remembered.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

from keepstate.engine.kernel.arguments import check_text
from keepstate.engine.space.transaction import Transaction
from keepstate.errors import InvalidError
from keepstate.home import quoted
from keepstate.sessions.changes import admit_change, changed, read
from keepstate.sessions.models import Model
from keepstate.sessions.site import Site
from keepstate.sessions.validated import STATES, ValidatedState, state_at
from keepstate.values import limits

M = TypeVar("M")

_PREFERENCES: Final = f"{STATES}preferences"
_KINDS: Final = "history"
_KIND_BYTES: Final = 100
_MOST: Final = 500


class UserState:
    """What is known of a user, in the space `user/<user_id>`: it outlives sessions, and all of them share it.

    Attributes:
        user_id: Who it is.
    """

    user_id: str

    def __init__(self, user_id: str, site: Site) -> None:
        self.user_id, self._site = user_id, site

    def __repr__(self) -> str:
        return f"<UserState {self.user_id!r} in {self._site.place!r}>"

    async def get_preferences(self) -> dict[str, Any]:
        """Return what the user prefers; a copy."""
        prefix = await self._site.to_read()
        return await read(self._site.place, f"{prefix}{_PREFERENCES}")

    async def update_preferences(
        self,
        change: Mapping[str, Any] | Callable[[dict[str, Any]], dict[str, Any] | Awaitable[dict[str, Any]]],
    ) -> dict[str, Any]:
        """Change the newest preferences, whoever wrote them, and return what became of them.

        With a model, `state(Model, name="preferences")` is the same and validates.

        Args:
            change: What to set, by name, or a function that is given all and returns all; it may be called
                again.

        Raises:
            InvalidError: It is neither, or makes no dict whose keys are text.
        """
        admit_change(change, self._site.runner.mode)

        async def work(tx: Transaction, prefix: str) -> dict[str, Any]:
            what = f"the preferences of user {self.user_id!r}"
            return await changed(tx, prefix + _PREFERENCES, change, what)

        return await self._site.together(work, message=f"preferences of {self.user_id}")

    async def remember(self, kind: str, item: object) -> int:
        """Add to what happened, and return its number within its kind, from 0.

        Args:
            kind: What happened, such as "past_bookings"; at most 100 bytes.
            item: Any value.
        """
        segment = _segment(kind)

        async def work(tx: Transaction, prefix: str) -> int:
            counts = await self._counts(tx, prefix)
            number = counts.get(kind, 0)
            await tx.documents.put(prefix + _KINDS, {**counts, kind: number + 1})
            await tx.documents.put(_item(prefix, segment, number), item)
            return number

        return await self._site.together(work, message=f"remember {kind}")

    async def history(self, kind: str, *, limit: int = 20) -> list[Any]:
        """Return the newest of what happened, in order.

        Args:
            kind: What happened.
            limit: How many at the most; 500 is the highest.
        """
        segment = _segment(kind)
        _admit_limit(limit)
        prefix = await self._site.to_read() or ""
        count = (await self._counts(self._site.place, prefix)).get(kind, 0)
        return await self._items(prefix, segment, count, limit)

    async def histories(self, *, limit: int = 20) -> dict[str, list[Any]]:
        """Return the newest of each kind of what happened; see `history`."""
        _admit_limit(limit)
        prefix = await self._site.to_read() or ""
        counts = await self._counts(self._site.place, prefix)
        return {
            kind: await self._items(prefix, _segment(kind), count, limit) for kind, count in counts.items()
        }

    def state(self, model: type[M], name: str | None = None) -> ValidatedState[M]:
        """Return a state of the user that is validated when it is written and when it is read.

        Args:
            model: A dataclass, msgspec Struct or pydantic class.
            name: What it is called; the model's name if it is not given. `history` is none: it is what
                `remember` keeps.
        """
        made = Model(model)
        if (made.name if name is None else name) == "history":
            raise InvalidError("`name` is 'history', which is what remember() keeps; give another name")
        return state_at(self._site, self.user_id, f"state of user {self.user_id!r}", made, name)

    # ---- its documents

    async def _counts(self, place: Any, prefix: str) -> dict[str, int]:
        counts: dict[str, int] = await place.documents.get(prefix + _KINDS, {}, type=dict[str, int])
        return counts

    async def _items(self, prefix: str, segment: str, count: int, limit: int) -> list[Any]:
        names = [_item(prefix, segment, number) for number in range(max(0, count - limit), count)]
        entries = await self._site.place.documents.entries(*names) if names else {}
        return [entries[name].value for name in names if name in entries]


def _item(prefix: str, segment: str, number: int) -> str:
    return f"{prefix}{_KINDS}/{segment}/{number:012d}"


def _segment(kind: str) -> str:
    if not 0 < len(check_text("kind", kind).encode()) <= _KIND_BYTES:
        raise InvalidError(f"`kind` is {kind!r}; it has 1 to {_KIND_BYTES} bytes of UTF-8")
    return quoted(kind)


def _admit_limit(limit: int) -> None:
    limits.admit_count("limit", limit)
    if limit > _MOST:
        raise InvalidError(f"`limit` is {limit}; at most {_MOST}")
