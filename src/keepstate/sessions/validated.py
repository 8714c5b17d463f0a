"""States by name: a model that is validated on write and on read, or a dict without a model.

A dict has text keys, which users set by name, or which a function replaces. Keys are checked on write. Reads
accept other keys, so that a state written by other means can be read and repaired.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Generic, TypeAlias, TypeVar, Unpack, cast

from keepstate.binding import Resource, StorageOptions, StoreBinding
from keepstate.engine.kernel.arguments import check_duration_ms, check_name, check_text_keys
from keepstate.engine.kernel.executor import reject_coroutine_function
from keepstate.engine.space.joint_work import apply_change
from keepstate.engine.space.space import Space, Transaction
from keepstate.errors import InvalidError
from keepstate.sessions.models import Model
from keepstate.sessions.namespace import Namespace

State: TypeAlias = dict[str, Any]
Change: TypeAlias = Mapping[str, Any] | Callable[[State], State | Awaitable[State]]


class PlainState:
    """A state without a model: a dict whose keys users set by name, or that a function replaces.

    Args:
        namespace: The namespace of the state.
        tail: The name of its document, after the prefix of the namespace.
        what: Its name in error messages.
    """

    def __init__(self, namespace: Namespace, tail: str, what: str) -> None:
        self._namespace, self._tail, self._what = namespace, tail, what

    async def get(self) -> State:
        """Return the state, or an empty dict if there is none."""
        prefix = await self._namespace.to_read()
        return {} if prefix is None else await self._read(self._namespace.target, prefix + self._tail)

    async def _read(self, target: Space | Transaction, name: str) -> State:
        state: State = await target.documents.get(name, {}, type=dict[Any, Any])
        return state

    async def update(self, change: Change, message: str) -> State:
        """Apply a change to the latest state and return the new one.

        Raises:
            InvalidError: The change is neither a dict with text keys nor a function of the mode, or the
                function returned something other than a dict with text keys.
        """
        given: object = change
        if isinstance(given, Mapping):
            check_text_keys("`change`", cast("Mapping[str, Any]", given))
        elif not callable(given):
            raise InvalidError(f"`change` is {given!r}. Pass a dict of keys to set, or a function.")
        elif self._namespace.runner.mode == "blocking":
            reject_coroutine_function(given)

        async def work(tx: Transaction, prefix: str) -> State:
            name = prefix + self._tail
            old = await self._read(tx, name)
            if isinstance(change, Mapping):
                made = {**old, **change}
            else:
                new: object = await apply_change(tx, name, change, old)
                if not isinstance(new, dict):
                    raise InvalidError(f"The function for {self._what} returned {new!r}. Return a dict.")
                made = check_text_keys(self._what, cast("dict[str, Any]", new))
            await tx.documents.put(name, made)
            return made

        return await self._namespace.together(work, message=message)


M = TypeVar("M")

STATES: Final = "state/"
"""The name prefix of states, after the prefix of their namespace."""


class ValidatedState(Resource, Generic[M]):
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

    session_id: str

    def __init__(
        self,
        session_id: str,
        model: type[M],
        *,
        name: str | None = None,
        ttl_s: float | None = None,
        **storage: Unpack[StorageOptions],
    ) -> None:
        binding = StoreBinding(storage)
        namespace = Namespace(*binding.locate("session", session_id))
        self._binding: StoreBinding | None = binding
        self._closing = binding
        self._begin(namespace, session_id, f"state of session {session_id!r}", Model(model), name, ttl_s)

    def _begin(
        self,
        namespace: Namespace,
        id: str,
        what: str,
        model: Model[M],
        name: str | None,
        ttl_s: float | None = None,
    ) -> None:
        if ttl_s is not None:
            check_duration_ms("ttl_s", ttl_s)
        self._namespace, self.session_id = namespace, id
        self._model, self._ttl_s = model, ttl_s
        checked_name = check_name("name", model.name if name is None else name)
        self._tail, self._what = f"{STATES}{checked_name}", f"{checked_name} in {what}"

    def __repr__(self) -> str:
        return f"<ValidatedState {self._what} in {self._binding or self._namespace.target!r}>"

    async def get(self) -> M:
        """Return the value; if it does not exist, the model's defaults.

        Raises:
            InvalidError: The stored value is not valid: a ValueError that names the difference.
            NotFoundError: The value does not exist, and the model has fields without a default.
        """
        prefix = await self._namespace.to_read()
        stored = None if prefix is None else await self._namespace.target.documents.get(prefix + self._tail)
        return self._model.decode_value(stored, self._what)

    async def put(self, value: M | Mapping[str, Any]) -> M:
        """Store a value, given as an object or as fields, and return it.

        Raises:
            InvalidError: The value is not valid; nothing was written.
        """
        made, stored = self._model.encode_value(value, self._what)

        async def work(tx: Transaction, prefix: str) -> None:
            await tx.documents.put(prefix + self._tail, stored, ttl_s=self._ttl_s)

        await self._namespace.together(work, message=f"put {self._what}")
        return made

    async def update(self, change: Mapping[str, Any] | Callable[[M], M | Awaitable[M]]) -> M:
        """Change the latest value and return the new one.

        Args:
            change: Fields to change, or a function that gets the value and returns the new one; it may be
                called more than once.

        Raises:
            InvalidError: The result is not valid; nothing was written.
            NotFoundError: The value does not exist, and the model has fields without a default.
        """
        if not isinstance(change, Mapping) and (
            self._namespace.runner.mode == "blocking" or not callable(change)
        ):
            reject_coroutine_function(change)

        async def work(tx: Transaction, prefix: str) -> M:
            stored = await tx.documents.get(prefix + self._tail)
            new = cast("Any", change)
            if not isinstance(change, Mapping):
                old = self._model.decode_value(stored, self._what)
                new = await apply_change(tx, prefix + self._tail, change, old)
            made, stored = self._model.encode_value(new, self._what, stored)
            await tx.documents.put(prefix + self._tail, stored, ttl_s=self._ttl_s)
            return made

        return await self._namespace.together(work, message=f"update {self._what}")

    async def delete(self) -> bool:
        """Delete the value, and return whether it existed."""

        async def work(tx: Transaction, prefix: str) -> bool:
            return await tx.documents.delete(prefix + self._tail)

        if await self._namespace.to_read() is None:
            return False
        return await self._namespace.together(work, message=f"delete {self._what}")


def make_state(
    namespace: Namespace, id: str, what: str, model: Model[M], name: str | None
) -> ValidatedState[M]:
    """Return a state in the namespace of a session or user, which also releases the store."""
    state: ValidatedState[M] = _blank(ValidatedState)
    state._binding = None  # pyright: ignore[reportPrivateUsage]
    state._begin(namespace, id, what, model, name)  # pyright: ignore[reportPrivateUsage]
    return state


def _blank(kind: Any) -> Any:
    return kind.__new__(kind)
