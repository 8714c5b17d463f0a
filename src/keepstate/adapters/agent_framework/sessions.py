"""`KeepstateSessionStore`: sessions of agents with versions, each in a space of its own."""

from __future__ import annotations

import json
import warnings
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any, ClassVar, Final, NamedTuple, Self, Unpack, cast
from weakref import WeakKeyDictionary

from keepstate.adapters.base import Adapter, AdapterOptions, StoreLike
from keepstate.engine.history.revisions import Revision
from keepstate.engine.space.joint_work import run_in_transaction
from keepstate.engine.space.space import Space, Transaction
from keepstate.errors import ConflictError, MissingExtraError
from keepstate.names import DEFAULT_URL
from keepstate.sessions.namespace import HEAD, HeadRecord, generation_prefix

try:
    from agent_framework import AgentSession, SessionStore
except ImportError as error:
    raise MissingExtraError.of("agent-framework", "agent-framework-core") from error

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the framework warns where its experimental class is extended, once

    class _FrameworkStore(SessionStore):
        """The framework's own store."""


_SESSION: Final = "session"


class _Read(NamedTuple):
    """The generation and the version of the stored session that an object was read from, or stored as."""

    prefix: str
    version: int


_ABSENT: Final = _Read("", 0)


class KeepstateSessionStore(Adapter, _FrameworkStore):
    """A session store of the Agent Framework on a keepstate store.

    A session object remembers which version it was read from. To store it after another writer has stored the
    session is a `ConflictError`, so no writer's changes disappear. A session object that was not read from
    this store replaces what is there, as in the framework's own stores.

    Args:
        store: A store URL, the path of an SQLite file, an open store, or a handle on one.
        owner: The person whose sessions these are, if any. `erase(owner)` removes all sessions of an owner.
        options: `tenant`, `author`, `encryption`, `record` and `ttl_s`; see `AdapterOptions`.

    Raises:
        InvalidError: An argument is wrong, or the URL names no store.
    """

    kind: ClassVar[str] = "agent-sessions"
    log_kept: ClassVar[int] = 8  # each change has the whole session

    def __init__(
        self,
        store: StoreLike = DEFAULT_URL,
        *,
        owner: str | None = None,
        **options: Unpack[AdapterOptions],
    ) -> None:
        super().__init__(store, **options)
        self._owner = owner
        self._read = WeakKeyDictionary[AgentSession, dict[str, _Read]]()

    def of(self, owner: str) -> Self:
        """Return the store of the sessions of another owner, with the same handles, without a call to it.

        To close it closes no handle.
        """
        other = self._copy()
        other._owner = owner
        return other

    def name_of(self, session_id: str) -> str:
        """Return the name of the space of a session, for `ks.space(name)` and the command line."""
        SessionStore.validate_session_id(session_id)
        return self.space_name(session_id, owner=self._owner)

    async def get(self, session_id: str, *, at: Revision | None = None) -> AgentSession | None:
        """Return a copy of a session, or None if it is absent.

        Args:
            session_id: The id, any text but the empty one.
            at: A moment of a session with `record=True`: the id of a commit, `main~3`, or a time. By default
                now. A session of the past has no version, so to store it brings the past back.

        Raises:
            NotFoundError: There is no such moment, or nothing was recorded.
            ValueError: The id is empty.
        """
        name = self.name_of(session_id)
        bound = self.space(session_id, owner=self._owner)
        if at is not None:
            past = await bound.call(lambda space: _session_at(space, at))
            return None if past is None else AgentSession.from_dict(past)

        async def read(tx: Transaction) -> tuple[str, int, Any] | None:
            prefix = await self.life(tx).to_read()
            entry = None if prefix is None else await tx.documents.entry(prefix + _SESSION)
            return None if prefix is None or entry is None else (prefix, entry.version, entry.value)

        found = await bound.call(lambda space: run_in_transaction(space, read))
        if found is None:
            return None
        prefix, version, value = found
        session = AgentSession.from_dict(value)
        self._remember(session, name, _Read(prefix, version))
        return session

    async def set(self, session_id: str, session: AgentSession) -> None:
        """Store a copy of a session. A cancelled caller waits until it is stored or rejected.

        Raises:
            ConflictError: Another writer has stored or deleted the session since it was read. Read it again
                and repeat the change, or use `update`.
            TypeError: The session is of a subclass, or its state has a value that JSON does not have. Its
                class needs `register_state_type`.
            ValueError: The id is empty, or a number is not finite.
        """
        name = self.name_of(session_id)
        plain = _plain(session)
        known = self._read.get(session, {}).get(name)

        async def write(tx: Transaction) -> str | None:
            life = self.life(tx)
            before = await life.to_read()
            entry = None if before is None else await tx.documents.entry(before + _SESSION)
            now = _ABSENT if entry is None else _Read(before or "", entry.version)
            if known not in (None, now):
                return None  # and not an error, which would repeat the transaction
            prefix = await life.to_write(tx)
            await tx.documents.put(prefix + _SESSION, plain)
            return prefix

        space = self.space(session_id, owner=self._owner)
        done = await space.transact(write, message="set the session")
        if done.value is None:
            raise ConflictError(
                f"session {session_id!r} was stored or deleted by another writer since it was read; get() it "
                "again and repeat the change, or use update()",
                space=name,
            )
        self._remember(session, name, _Read(done.value, done.revision))

    async def update(
        self, session_id: str, change: Callable[[AgentSession], Awaitable[None] | None]
    ) -> AgentSession:
        """Change a session, or a new one, and repeat that until no other writer came in between.

        Args:
            session_id: The id.
            change: A function that changes the session that it gets. It may be called several times.

        Returns:
            The session as it was stored.
        """
        while True:
            session = await self.get(session_id)
            if session is None:
                session = AgentSession(session_id=session_id)
                self._remember(session, self.name_of(session_id), _ABSENT)
            done = change(session)
            if isawaitable(done):
                await done
            try:
                await self.set(session_id, session)
            except ConflictError:
                continue
            return session

    async def delete(self, session_id: str) -> None:
        """Delete a session, if it is there.

        Raises:
            ValueError: The id is empty.
        """
        self.name_of(session_id)
        await self.space(session_id, owner=self._owner).clear()

    def _remember(self, session: AgentSession, name: str, read: _Read) -> None:
        self._read.setdefault(session, {})[name] = read


def _plain(session: AgentSession) -> dict[str, Any]:
    """Return a session as plain data, by the framework's own serializer and then JSON."""
    if type(session) is not AgentSession:
        raise TypeError(f"the session is a {type(session).__name__}; only an AgentSession itself comes back")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of values without a form in JSON, rejected below
        stored = session.to_dict()
    try:
        return cast("dict[str, Any]", json.loads(json.dumps(stored, allow_nan=False)))
    except TypeError as error:
        raise TypeError(
            f"the state of session {session.session_id!r} cannot be stored: {error}. Register its class with "
            "agent_framework.register_state_type"
        ) from error


async def _session_at(space: Space, at: Revision) -> Any:
    documents = await space.at(at)
    head = documents.get(HEAD)
    if not isinstance(head, HeadRecord):
        return None
    return documents.get(generation_prefix("", head.life) + _SESSION)
