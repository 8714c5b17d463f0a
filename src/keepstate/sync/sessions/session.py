"""Blocking twins of `keepstate.sessions.session`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from os import PathLike
from typing import Any, TypeVar

from keepstate._finish import entered, finish
from keepstate.engine.history.heads import MAIN
from keepstate.engine.history.revisions import Revision
from keepstate.sessions import session as sessions
from keepstate.sessions.generations import AnyUser
from keepstate.sessions.records import SessionContext, TaskState
from keepstate.sessions.session_state import SessionMoment
from keepstate.stores.protocol import Store
from keepstate.sync.keepstate import Keepstate
from keepstate.sync.sessions.conversation import Conversation
from keepstate.sync.sessions.resource import Kept
from keepstate.sync.sessions.user import UserState
from keepstate.sync.sessions.validated import ValidatedState
from keepstate.sync.space import Space
from keepstate.sync.transaction import Transaction
from keepstate.sync.twin import around, around_generic, inner_of, receiving, single_use

M = TypeVar("M")
T = TypeVar("T")


class Session(Kept[sessions.Session]):
    """The state of one session, in the space `session/<session_id>`; of its user, in `user/<user_id>`.

    A session never ends by itself unless `ttl_s` is given. With `ttl_s`, a session that was not used for that
    time, by the store's clock, starts again empty: only `at` still reads the earlier messages, while the
    space keeps them. Reading counts as use, up to a sixteenth of the time late.

    The first user who writes to a session owns it. Only this user opens it from then on: other users, and
    callers without a user, get `NotOwnerError`. Until then any user can become its owner by a write.

    Args:
        session_id: Which session; any text.
        user_id: The user who opens it; `ANY_USER` opens the sessions of all users.
        persistence: A URL, the path of an SQLite file, an open store, or a handle on one. Without it and
            `space` it is in memory that this process shares.
        space: Instead: a space, or a transaction whose batch all changes join. The session's own space is the
            same place as with `persistence`, and the user's space is next to it. In any other space session
            and user are together.
        ttl_s: Seconds after the last use until the session ends; None, the default, means never. Of several
            values that a session was written with, the longest applies; reading does not change it.

    Attributes:
        session_id: Which session.
        user_id: The user who opened it, None, or `ANY_USER`.
    """

    def __init__(
        self,
        session_id: str,
        *,
        user_id: str | AnyUser | None = None,
        persistence: str | PathLike[str] | Store | Keepstate | None = None,
        space: Space | Transaction | None = None,
        ttl_s: float | None = None,
    ) -> None:
        super().__init__(
            sessions.Session(
                session_id,
                user_id=user_id,
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
        """Which session."""
        return self._inner.session_id

    @property
    def user_id(self) -> str | AnyUser | None:
        """The user who opened it, None, or `ANY_USER`."""
        return self._inner.user_id

    @property
    def conversation(self) -> Conversation:
        """Return what is said in the session, with a context of 8,000 tokens; see `Conversation.within`."""
        return Conversation(self._inner.conversation)

    @property
    def task(self) -> ValidatedState[TaskState]:
        """Return what the session works on."""
        answer: ValidatedState[TaskState] = around_generic(ValidatedState, self._inner.task)
        return answer

    @property
    def user(self) -> UserState:
        """Return what is known of the user, in all sessions.

        Raises:
            InvalidError: The session was opened for no user, or for any.
        """
        return UserState(self._inner.user)

    def state(self, model: type[M], name: str | None = None) -> ValidatedState[M]:
        """Return a state of the session that is validated when it is written and when it is read.

        Args:
            model: A dataclass, msgspec Struct or pydantic class.
            name: What it is called; the model's name if it is not given. `task` puts another model in the
                place of `TaskState`.
        """
        answer: ValidatedState[M] = around_generic(ValidatedState, self._inner.state(model, name))
        return answer

    def get_state(self) -> dict[str, Any]:
        """Return what `update` has kept, without a model; a copy."""
        return finish(self._inner.get_state())

    def update(
        self, change: Mapping[str, Any] | Callable[[dict[str, Any]], dict[str, Any]]
    ) -> dict[str, Any]:
        """Change the newest state without a model, whoever wrote it, and return what became of it.

        Nothing is locked: who was overtaken does it again on what is there then. With a model,
        `state(Model, name="data")` is the same state and validates.

        Args:
            change: What to set, by name, or a function that is given all and returns all; it may be called
                again.

        Raises:
            InvalidError: It is neither, or makes no dict whose keys are text.
        """
        return finish(self._inner.update(change))

    def get_context(self, max_tokens: int = 8000, *, history: int = 20) -> SessionContext:
        """Return recent messages, session and user together, within a budget of tokens.

        States and preferences are whole. The user's history gives way until both leave half of the budget to
        the conversation, if they can.

        Args:
            max_tokens: The budget.
            history: How many of each kind of the user's history at the most.

        Raises:
            InvalidError: What does not give way is more than the budget.
        """
        return finish(self._inner.get_context(max_tokens, history=history))

    def transact(self, fn: Callable[[Session], T], *, attempts: int | None = None, message: str = "") -> T:
        """Call `fn(turn)` and apply its changes as one batch; calls it again after a conflict.

        For what must not be lost if others write to the session at the same time, such as an answer. Calls of
        one process follow one another. `fn` changes the session that it is given, and no other.

        Args:
            fn: Changes conversation, task and states. May be called again, so it does nothing else.
            attempts: The most calls of `fn`; None, the default, retries until that is hopeless.
            message: Describes the change; the record of the space shows it.

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
        """Yield the session, and apply what its body does to conversation, task and states as one batch.

        The user stands in a space of its own and cannot be part of it, unless `space=` was given.

        The body runs once. Where others may write to the session at the same time, use `transact`, which runs
        again after a conflict.

        Args:
            message: Says what it is for; what is recorded of it tells so.

        Raises:
            ConflictError: What the body had read has changed, such as the conversation by another message;
                nothing was applied.
        """
        with entered(self._inner.transaction(message=message)) as inner:
            yield around(Session, inner)

    @single_use
    def exclusive(self, *, ttl_s: float = 30, wait_s: float = 10) -> Generator[Session]:
        """Yield the session to one at a time: no other `exclusive` block of it runs meanwhile.

        What is written by what it yields is fenced: once the time is up, and another may have entered,
        nothing of it is applied any more. What others write without such a block is not held up.

        Args:
            ttl_s: For how long, unless `renew` is called; then others may enter.
            wait_s: How long to wait for who is inside.

        Raises:
            ConflictError: Somebody else is inside all that time.
            LeaseLostError: Raised by a write that came too late.
            NotOwnerError: Another user owns the session; this holds up nobody.
        """
        with entered(self._inner.exclusive(ttl_s=ttl_s, wait_s=wait_s)) as inner:
            yield around(Session, inner)

    def renew(self, ttl_s: float | None = None) -> None:
        """Stay inside `exclusive` for its time from now on, or for `ttl_s`.

        Raises:
            InvalidError: This is not what an `exclusive` block has yielded.
            LeaseLostError: The time was up.
        """
        finish(self._inner.renew(ttl_s))

    def is_new(self) -> bool:
        """Whether nobody has used it, or not for its time; asking is no use of it."""
        return finish(self._inner.is_new())

    def end(self) -> bool:
        """Let it be new again, as if its time were up, and return whether it was not."""
        return finish(self._inner.end())

    def sweep(self) -> int:
        """Remove what it left when it was new again, and return how many documents that were.

        History keeps them, as long as that reaches back. `Sessions.sweep` does so for all.
        """
        return finish(self._inner.sweep())

    def at(self, ref: Revision = MAIN) -> SessionMoment:
        """Return the session as it was at a moment, of this life or an earlier one.

        Args:
            ref: The moment: a time, `main~3` for three changes before the last, `main#37`, a commit.

        Raises:
            NotOwnerError: It was another user's then, or became one's later in the same life.
            NotFoundError: Nothing was recorded then, or its space records nothing.
        """
        return finish(self._inner.at(ref))
