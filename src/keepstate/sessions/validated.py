"""A state that is validated on both ways, and belongs to one session: nothing wrong is kept, or acted on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from os import PathLike
from typing import Any, Final, Generic, TypeVar, cast

from keepstate._runner import Mode
from keepstate.engine.kernel.arguments import check_name
from keepstate.engine.kernel.executor import reject_coroutine_function
from keepstate.engine.kernel.times import check_duration_ms
from keepstate.engine.space.joint_work import computed
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space
from keepstate.engine.space.transaction import Transaction
from keepstate.sessions.binding import Home
from keepstate.sessions.models import Model
from keepstate.sessions.resource import Kept
from keepstate.sessions.site import Site
from keepstate.stores.protocol import Store

M = TypeVar("M")

STATES: Final = "state/"
"""What the names of states begin with, behind what their place says."""


class ValidatedState(Kept, Generic[M]):
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

    session_id: str

    def __init__(
        self,
        session_id: str,
        model: type[M],
        *,
        name: str | None = None,
        persistence: str | PathLike[str] | Store | Keepstate | None = None,
        space: Space | Transaction | None = None,
        ttl_s: float | None = None,
        _mode: Mode = "async",
    ) -> None:
        home = Home(persistence, space, mode=_mode)
        site = Site(home.place("session", session_id), home.prefix("session", session_id))
        self._home: Home | None = home
        self._closing = home
        self._begin(site, session_id, f"state of session {session_id!r}", Model(model), name, ttl_s)

    def _begin(
        self,
        site: Site,
        id: str,
        what: str,
        model: Model[M],
        name: str | None,
        ttl_s: float | None = None,
    ) -> None:
        if ttl_s is not None:
            check_duration_ms("ttl_s", ttl_s)
        self._site, self.session_id = site, id
        self._model, self._ttl_s = model, ttl_s
        called_so = check_name("name", model.name if name is None else name)
        self._tail, self._what = f"{STATES}{called_so}", f"{called_so} in {what}"

    def __repr__(self) -> str:
        return f"<ValidatedState {self._what} in {self._home or self._site.place!r}>"

    async def get(self) -> M:
        """Return the value; of an absent one that of the model's defaults.

        Raises:
            InvalidError: What is stored is no such value: a ValueError that says what differs.
            NotFoundError: It is absent, and the model has fields without a default.
        """
        prefix = await self._site.to_read()
        stored = None if prefix is None else await self._site.place.documents.get(prefix + self._tail)
        return self._model.empty(self._what) if stored is None else self._model.value(stored, self._what)

    async def put(self, value: M | Mapping[str, Any]) -> M:
        """Keep a value, or one of these fields, and return it.

        Raises:
            InvalidError: It is no such value; nothing was written.
        """
        made, stored = self._model.taken(value, self._what)

        async def work(tx: Transaction, prefix: str) -> None:
            await tx.documents.put(prefix + self._tail, stored, ttl_s=self._ttl_s)

        await self._site.together(work, message=f"put {self._what}")
        return made

    async def update(self, change: Mapping[str, Any] | Callable[[M], M | Awaitable[M]]) -> M:
        """Change the newest value, whoever wrote it, and return what became of it.

        Args:
            change: Fields to change, or a function that is given the value and returns the new one; it may
                be called again.

        Raises:
            InvalidError: What it makes is no such value; nothing was written.
            NotFoundError: It is absent, and the model has fields without a default.
        """
        if not isinstance(change, Mapping) and (self._site.runner.mode == "blocking" or not callable(change)):
            reject_coroutine_function(change)

        async def work(tx: Transaction, prefix: str) -> M:
            stored = await tx.documents.get(prefix + self._tail)
            new = cast("Any", change)
            if not isinstance(change, Mapping):
                old = (
                    self._model.empty(self._what) if stored is None else self._model.value(stored, self._what)
                )
                new = await computed(tx, prefix + self._tail, change, old)
            made, stored = self._model.taken(new, self._what, stored)
            await tx.documents.put(prefix + self._tail, stored, ttl_s=self._ttl_s)
            return made

        return await self._site.together(work, message=f"update {self._what}")

    async def delete(self) -> bool:
        """Remove it, and return whether it existed."""

        async def work(tx: Transaction, prefix: str) -> bool:
            return await tx.documents.delete(prefix + self._tail)

        if await self._site.to_read() is None:
            return False
        return await self._site.together(work, message=f"delete {self._what}")


def state_at(site: Site, id: str, what: str, model: Model[M], name: str | None) -> ValidatedState[M]:
    """Return a state in somebody else's place, who closes it: that of a session, or of a user."""
    state: ValidatedState[M] = _blank(ValidatedState)
    state._home = None  # pyright: ignore[reportPrivateUsage]
    state._begin(site, id, what, model, name)  # pyright: ignore[reportPrivateUsage]
    return state


def _blank(kind: Any) -> Any:
    return kind.__new__(kind)
