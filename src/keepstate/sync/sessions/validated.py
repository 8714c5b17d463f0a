"""Blocking twins of `keepstate.sessions.validated`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar, Unpack

from keepstate._finish import finish
from keepstate.sessions import validated as sessions
from keepstate.sync.binding import Resource, StorageOptions
from keepstate.sync.twin import inner_options

M = TypeVar("M")


class ValidatedState(Resource[sessions.ValidatedState[M]], Generic[M]):
    """A value of a model, in the space `session/<session_id>`, for use without a `Session`.

    The value does not end with the session. `Session.state` is a different state that does, even under the
    same name.

    The stored form is the fields by name. Fields that the model does not know, because a newer version of the
    application wrote them, are preserved when others change. For a registered model the object is stored with
    its version, and `upcast` updates older ones.

    Args:
        session_id: Id of the session; other ids do not see the state.
        model: A dataclass, msgspec Struct or pydantic class; ranges in its annotations are enforced.
        name: Name of the state; the model's name by default.
        persistence: A URL, the path of an SQLite file, an open store, or a handle on one.
        space: Instead: a space, or a transaction whose batch all changes join.
        ttl_s: Seconds after the last write until the state expires; None means never.

    Attributes:
        session_id: Id of the session.
    """

    def __init__(
        self,
        session_id: str,
        model: type[M],
        *,
        name: str | None = None,
        ttl_s: float | None = None,
        **storage: Unpack[StorageOptions],
    ) -> None:
        super().__init__(
            sessions.ValidatedState(session_id, model, name=name, ttl_s=ttl_s, **inner_options(storage))
        )

    @property
    def session_id(self) -> str:
        """Id of the session."""
        return self._inner.session_id

    def get(self) -> M:
        """Return the value; if it does not exist, the model's defaults.

        Raises:
            InvalidError: The stored value is not valid: a ValueError that names the difference.
            NotFoundError: The value does not exist, and the model has fields without a default.
        """
        return finish(self._inner.get())

    def put(self, value: M | Mapping[str, Any]) -> M:
        """Store a value, given as an object or as fields, and return it.

        Raises:
            InvalidError: The value is not valid; nothing was written.
        """
        return finish(self._inner.put(value))

    def update(self, change: Mapping[str, Any] | Callable[[M], M]) -> M:
        """Change the latest value and return the new one.

        Args:
            change: Fields to change, or a function that gets the value and returns the new one; it may be
                called more than once.

        Raises:
            InvalidError: The result is not valid; nothing was written.
            NotFoundError: The value does not exist, and the model has fields without a default.
        """
        return finish(self._inner.update(change))

    def delete(self) -> bool:
        """Delete the value, and return whether it existed."""
        return finish(self._inner.delete())
