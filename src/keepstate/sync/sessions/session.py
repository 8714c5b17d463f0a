"""Blocking twins of `keepstate.sessions.session`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, TypeVar, Unpack

from keepstate._finish import entered, finish, finish_each
from keepstate.engine.history.revisions import Revision
from keepstate.engine.kernel.layout import MAIN
from keepstate.sessions import session as sessions
from keepstate.sessions.namespace import AnyUser
from keepstate.sessions.session_records import SessionContext, SessionMoment, TaskState
from keepstate.sessions.session_watch import SessionChange
from keepstate.sync.binding import Resource, StorageOptions
from keepstate.sync.ledger import UsageLedger
from keepstate.sync.sessions.conversation import Conversation
from keepstate.sync.sessions.user import UserState
from keepstate.sync.sessions.validated import ValidatedState
from keepstate.sync.twin import around, around_generic, inner_options, receiving, single_use

M = TypeVar("M")
T = TypeVar("T")


class Session(Resource[sessions.Session]):
    """The state of one session, in the space `session/<session_id>`, and of its user, in `user/<user_id>`.

    A session never ends by itself unless `ttl_s` is given. With `ttl_s`, a session that was not used for that
    time, by the store's clock, starts again empty. Only `at` still reads the earlier messages, as long as the
    space's history reaches back. Reading counts as use, up to a sixteenth of the time late.

    The first user who writes to a session owns it. Only this user opens it from then on: other users, and
    callers without a user, get `NotOwnerError`. Until then any user can become its owner by a write.

    Args:
        session_id: Id of the session, any text.
        user_id: The user who opens it; `ANY_USER` opens the sessions of all users.
        persistence: A URL, the path of an SQLite file, an open store, or a handle on one. Without it and
            `space` the session is in memory that this process shares.
        space: Instead: a space, or a transaction whose batch all changes join. If it is the session's own
            space, the session is the same as with `persistence`, and the user's space is in the same store.
            In any other space, session and user are stored together.
        ttl_s: Seconds after the last use until the session ends; None, the default, means never. Of several
            values that a session was written with, the longest applies; reading does not change it.

    Attributes:
        session_id: Id of the session.
        user_id: The user who opened it, None, or `ANY_USER`.
    """

    def __init__(
        self,
        session_id: str,
        *,
        user_id: str | AnyUser | None = None,
        ttl_s: float | None = None,
        **storage: Unpack[StorageOptions],
    ) -> None:
        super().__init__(sessions.Session(session_id, user_id=user_id, ttl_s=ttl_s, **inner_options(storage)))

    @property
    def session_id(self) -> str:
        """Id of the session."""
        return self._inner.session_id

    @property
    def user_id(self) -> str | AnyUser | None:
        """The user who opened it, None, or `ANY_USER`."""
        return self._inner.user_id

    @property
    def conversation(self) -> Conversation:
        """The conversation, with a context of 8,000 tokens; see `Conversation.within`."""
        return Conversation(self._inner.conversation)

    @property
    def task(self) -> ValidatedState[TaskState]:
        """The session's task."""
        answer: ValidatedState[TaskState] = around_generic(ValidatedState, self._inner.task)
        return answer

    @property
    def user(self) -> UserState:
        """The state of the user, shared by all sessions.

        Raises:
            InvalidError: The session was opened without a user, or with `ANY_USER`.
        """
        return UserState(self._inner.user)

    @property
    def usage(self) -> UsageLedger:
        """The usage of the session, over all its generations, and its budgets. It does not end with it."""
        return UsageLedger(self._inner.usage)

    def state(self, model: type[M], name: str | None = None) -> ValidatedState[M]:
        """Return a state of the session that is validated on write and on read.

        Args:
            model: A dataclass, msgspec Struct or pydantic class.
            name: Name of the state; the model's name by default. `task` replaces the model `TaskState`.
        """
        answer: ValidatedState[M] = around_generic(ValidatedState, self._inner.state(model, name))
        return answer

    def get_state(self) -> dict[str, Any]:
        """Return a copy of the state without a model, which `update` writes."""
        return finish(self._inner.get_state())

    def update(
        self, change: Mapping[str, Any] | Callable[[dict[str, Any]], dict[str, Any]]
    ) -> dict[str, Any]:
        """Change the latest state without a model, and return the new state.

        No lock is held: after a conflict the change is applied again to the newer state. The same state with
        validation is `state(Model, name="data")`.

        Args:
            change: Keys to set, or a function that gets the whole state and returns the new one; it may be
                called more than once.

        Raises:
            InvalidError: The change is neither, or its result is not a dict with text keys.
        """
        return finish(self._inner.update(change))

    def get_context(self, max_tokens: int = 8000, *, history: int = 20) -> SessionContext:
        """Return recent messages, session and user together, within a token budget.

        States and preferences are always included in full. The user's history is halved until states,
        preferences and history leave half of the budget to the conversation, if possible.

        Args:
            max_tokens: The token budget.
            history: Maximum number of items of each kind of the user's history.

        Raises:
            InvalidError: The parts that cannot be trimmed exceed the budget.
        """
        return finish(self._inner.get_context(max_tokens, history=history))

    def transact(self, fn: Callable[[Session], T], *, attempts: int | None = None, message: str = "") -> T:
        """Call `fn(session)` and apply its changes as one batch; call it again after a conflict.

        Use it for changes that must survive concurrent writes to the session, such as an answer. Calls of one
        process run one after another. `fn` must use only the session that it is given.

        Args:
            fn: Changes conversation, task and states. It may be called more than once, so it must have no
                other effect.
            attempts: Maximum number of calls of `fn`; None, the default, retries until that is hopeless.
            message: Description of the change, shown in the space's history.

        Returns:
            The value that `fn` returned.

        Raises:
            AttemptsExhaustedError: Every attempt met a conflict; nothing was applied.
            LeaseLostError: The session is inside `exclusive`, and its time is up; nothing was applied.
        """
        return finish(
            self._inner.transact(
                receiving(lambda inner: around(Session, inner), fn), attempts=attempts, message=message
            )
        )

    @single_use
    def transaction(self, *, message: str = "") -> Generator[Session]:
        """Yield the session; apply all changes of the block to conversation, task and states as one batch.

        The user has a space of its own, so it cannot be part of the transaction unless `space=` was given.

        The block runs once. With concurrent writers, use `transact`, which retries after a conflict.

        Args:
            message: Description of the change, shown in the space's history.

        Raises:
            ConflictError: Data that the block read has changed, such as the conversation by another message;
                nothing was applied.
        """
        with entered(self._inner.transaction(message=message)) as inner:
            yield around(Session, inner)

    @single_use
    def exclusive(self, *, ttl_s: float = 30, wait_s: float = 10) -> Generator[Session]:
        """Yield the session under a lease, so that only one `exclusive` block of it runs at a time.

        Writes by the yielded session are fenced: after the lease has expired, none of them is applied. Writes
        outside of `exclusive` blocks are not held up.

        Args:
            ttl_s: Seconds until the lease expires, unless `renew` is called.
            wait_s: Maximum seconds to wait for another block.

        Raises:
            ConflictError: Another block ran for all of `wait_s`.
            LeaseLostError: A write came after the lease had expired.
            NotOwnerError: Another user owns the session; no lease was taken.
        """
        with entered(self._inner.exclusive(ttl_s=ttl_s, wait_s=wait_s)) as inner:
            yield around(Session, inner)

    def renew(self, ttl_s: float | None = None) -> None:
        """Renew the lease of `exclusive` for its time, or for `ttl_s` seconds from now.

        Raises:
            InvalidError: This session was not yielded by `exclusive`.
            LeaseLostError: The lease had expired.
        """
        finish(self._inner.renew(ttl_s))

    def position(self) -> str:
        """Return the position of now: `watch(after=position)` yields the changes that come after this call.

        Take it before you read the session, and no change is missed between reading and watching.

        Raises:
            InvalidError: The session is inside a transaction.
            NotOwnerError: Another user owns the session.
        """
        return finish(self._inner.position())

    def watch(self, *, after: str | None = None) -> Iterator[SessionChange]:
        """Yield each change of conversation, forks, task, states and user, in order.

        The iteration never ends by itself. It reads the logs of the session's space and of the user's, and
        writes nothing. `Conversation.follow` also tells of replies while they are being said.

        Args:
            after: Start after a `position`, of a change or of `position`, from any process. The session was
                opened with a user, or without one, as this one. The default is now.

        Raises:
            CompactedError: A log no longer reaches back to the position.
            HistoryLostError: The store has lost the history that the position belongs to.
            InvalidError: The position belongs to another session, or this one is inside a transaction.
            NotOwnerError: Another user owns the session, or becomes its owner meanwhile.
        """
        return finish_each(self._inner.watch(after=after))

    def is_new(self) -> bool:
        """Return whether the session is unused or has ended. Does not count as use."""
        return finish(self._inner.is_new())

    def end(self) -> bool:
        """End the session, as if its TTL had expired, and return whether it was live."""
        return finish(self._inner.end())

    def sweep(self) -> int:
        """Delete the documents of the session's ended generations, and return their number.

        The space's history still has them, as far as it reaches back. `Sessions.sweep` sweeps all sessions.
        """
        return finish(self._inner.sweep())

    def at(self, ref: Revision = MAIN) -> SessionMoment:
        """Return the session at a past moment, of this generation or an earlier one.

        Args:
            ref: The moment: a time, `main~3` for three changes before the last, `main#37`, or a commit.

        Raises:
            NotOwnerError: Another user owned it then, or became the owner of that generation later.
            NotFoundError: Nothing was recorded then, or the space is not recorded.
        """
        return finish(self._inner.at(ref))
