"""Blocking twins of `keepstate.sessions.validated`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from os import PathLike
from typing import Any, Generic, TypeVar

from keepstate._finish import finish
from keepstate.sessions import validated as sessions
from keepstate.stores.protocol import Store
from keepstate.sync.keepstate import Keepstate
from keepstate.sync.sessions.resource import Kept
from keepstate.sync.space import Space
from keepstate.sync.transaction import Transaction
from keepstate.sync.twin import inner_of

M = TypeVar("M")


class ValidatedState(Kept[sessions.ValidatedState[M]], Generic[M]):
    """A value of a model, in the space `session/<session_id>`, for use without a `Session`.

    It does not end with that; `Session.state` is another state, which does, even under the same name.

    What is stored are its fields by name. One that the model does not know, for a newer version of the
    application wrote it, is kept when others are changed. Of a model that is registered the object is stored,
    with its version, and older ones are brought up to date by `upcast`.

    Args:
        session_id: Whose state it is; nobody else sees it by another id.
        model: A dataclass, msgspec Struct or pydantic class; ranges in its annotations count.
        name: What the state is called; the model's name if it is not given.
        persistence: A URL, the path of an SQLite file, an open store, or a handle on one.
        space: Instead: a space, or a transaction whose batch all changes join.
        ttl_s: Lets it expire so many seconds after it was written last.

    Attributes:
        session_id: Whose state it is.
    """

    def __init__(
        self,
        session_id: str,
        model: type[M],
        *,
        name: str | None = None,
        persistence: str | PathLike[str] | Store | Keepstate | None = None,
        space: Space | Transaction | None = None,
        ttl_s: float | None = None,
    ) -> None:
        super().__init__(
            sessions.ValidatedState(
                session_id,
                model,
                name=name,
                persistence=inner_of(persistence) if isinstance(persistence, Keepstate) else persistence,
                space=inner_of(space)
                if isinstance(space, Space)
                else inner_of(space)
                if isinstance(space, Transaction)
                else space,
                ttl_s=ttl_s,
                _mode="blocking",
            )
        )

    @property
    def session_id(self) -> str:
        """Whose state it is."""
        return self._inner.session_id

    def get(self) -> M:
        """Return the value; of an absent one that of the model's defaults.

        Raises:
            InvalidError: What is stored is no such value: a ValueError that says what differs.
            NotFoundError: It is absent, and the model has fields without a default.
        """
        return finish(self._inner.get())

    def put(self, value: M | Mapping[str, Any]) -> M:
        """Keep a value, or one of these fields, and return it.

        Raises:
            InvalidError: It is no such value; nothing was written.
        """
        return finish(self._inner.put(value))

    def update(self, change: Mapping[str, Any] | Callable[[M], M]) -> M:
        """Change the newest value, whoever wrote it, and return what became of it.

        Args:
            change: Fields to change, or a function that is given the value and returns the new one; it may
                be called again.

        Raises:
            InvalidError: What it makes is no such value; nothing was written.
            NotFoundError: It is absent, and the model has fields without a default.
        """
        return finish(self._inner.update(change))

    def delete(self) -> bool:
        """Remove it, and return whether it existed."""
        return finish(self._inner.delete())
