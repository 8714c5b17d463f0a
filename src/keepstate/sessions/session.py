"""A user's session: its conversation, its task, and what is known of the user.

Conversation and task stand in the space of the session and change together; they end when nobody has used the
session for its time. What is known of the user stands in a space of the user's own, and stays.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from os import PathLike
from typing import Any, Final, TypeVar, overload

from keepstate._runner import Mode
from keepstate.engine.history.heads import MAIN
from keepstate.engine.history.revisions import Revision
from keepstate.engine.kernel.arguments import check_message, check_text
from keepstate.engine.kernel.executor import call_function, reject_coroutine_function
from keepstate.engine.kernel.glob import escape_pattern
from keepstate.engine.kernel.single_use import single_use
from keepstate.engine.kernel.times import check_duration_ms
from keepstate.engine.queue.lease import Lease
from keepstate.engine.space.joint_work import together
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space
from keepstate.engine.space.transaction import Transaction
from keepstate.errors import InvalidError
from keepstate.sessions.binding import Home
from keepstate.sessions.changes import admit_change, changed, read
from keepstate.sessions.context_fit import Budget, ordered
from keepstate.sessions.conversation import Conversation
from keepstate.sessions.conversation_documents import ContextRules
from keepstate.sessions.conversation_store import ConversationStore
from keepstate.sessions.generations import ANY_USER, AnyUser, SessionGenerations
from keepstate.sessions.models import Model, PlainModel, plain
from keepstate.sessions.records import SessionContext, TaskState, told
from keepstate.sessions.resource import Kept
from keepstate.sessions.session_state import SessionMoment, moment_in
from keepstate.sessions.site import Elsewhere, Site
from keepstate.sessions.user import UserState
from keepstate.sessions.validated import STATES, ValidatedState, state_at
from keepstate.stores.protocol import Store
from keepstate.values import limits

M = TypeVar("M")
T = TypeVar("T")

_MAX_TOKENS: Final = 8000
_DATA: Final = f"{STATES}data"


class Session(Kept):
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

    session_id: str
    user_id: str | AnyUser | None

    def __init__(
        self,
        session_id: str,
        *,
        user_id: str | AnyUser | None = None,
        persistence: str | PathLike[str] | Store | Keepstate | None = None,
        space: Space | Transaction | None = None,
        ttl_s: float | None = None,
        _mode: Mode = "async",
    ) -> None:
        if ttl_s is not None:
            check_duration_ms("ttl_s", ttl_s)
        home = Home(persistence, space, mode=_mode)
        lives = SessionGenerations(
            home.place("session", session_id, record=True),
            home.prefix("session", session_id),
            what=f"session {session_id!r}",
            user_id=user_id if user_id is None or user_id is ANY_USER else check_text("user_id", user_id),
            ttl_s=ttl_s,
        )
        user = None
        if isinstance(user_id, str):
            user = _user_site(home, session_id, user_id)
        self._begin(home, session_id, user_id, lives, user)

    def _begin(
        self,
        home: Home | None,
        session_id: str,
        user_id: str | AnyUser | None,
        lives: SessionGenerations,
        user: Site | None,
    ) -> None:
        self._home = self._closing = home
        self.session_id, self.user_id = session_id, user_id
        self._talk = ConversationStore(lives, ContextRules(Budget(_MAX_TOKENS)))
        self._lives, self._user = lives, user
        self._lease: Lease | None = None
        self._shares = (
            home is not None and home.passed is not None and not home.is_home("session", session_id)
        )
        """Whether session and user are in one space."""

    def __repr__(self) -> str:
        whose = "" if self.user_id is None else f" of user {self.user_id!r}"
        return f"<Session {self.session_id!r}{whose} in {self._home or self._lives.place!r}>"

    # ---- the three kinds of state

    @property
    def conversation(self) -> Conversation:
        """Return what is said in the session, with a context of 8,000 tokens; see `Conversation.within`."""
        return Conversation(self._talk)

    @property
    def task(self) -> ValidatedState[TaskState]:
        """Return what the session works on."""
        return state_at(self._lives, self.session_id, self._what, PlainModel(TaskState), "task")

    @property
    def user(self) -> UserState:
        """Return what is known of the user, in all sessions.

        Raises:
            InvalidError: The session was opened for no user, or for any.
        """
        if not isinstance(self.user_id, str) or self._user is None:
            why = "was opened for any user" if self.user_id is ANY_USER else "has no user"
            raise InvalidError(f"session {self.session_id!r} {why}; pass the id of one as user_id=")
        return UserState(self.user_id, self._user)

    def state(self, model: type[M], name: str | None = None) -> ValidatedState[M]:
        """Return a state of the session that is validated when it is written and when it is read.

        Args:
            model: A dataclass, msgspec Struct or pydantic class.
            name: What it is called; the model's name if it is not given. `task` puts another model in the
                place of `TaskState`.
        """
        return state_at(self._lives, self.session_id, self._what, Model(model), name)

    async def get_state(self) -> dict[str, Any]:
        """Return what `update` has kept, without a model; a copy."""
        prefix = await self._lives.to_read()
        if prefix is None:
            return {}
        return await read(self._lives.place, prefix + _DATA)

    async def update(
        self,
        change: Mapping[str, Any] | Callable[[dict[str, Any]], dict[str, Any] | Awaitable[dict[str, Any]]],
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
        admit_change(change, self._lives.runner.mode)

        async def work(tx: Transaction, prefix: str) -> dict[str, Any]:
            return await changed(tx, prefix + _DATA, change, f"the state of {self._what}")

        return await self._lives.together(work, message="update the session")

    async def get_context(self, max_tokens: int = 8000, *, history: int = 20) -> SessionContext:
        """Return recent messages, session and user together, within a budget of tokens.

        States and preferences are whole. The user's history gives way until both leave half of the budget to
        the conversation, if they can.

        Args:
            max_tokens: The budget.
            history: How many of each kind of the user's history at the most.

        Raises:
            InvalidError: What does not give way is more than the budget.
        """
        limits.admit_count("max_tokens", max_tokens)
        count = self._talk.rules.budget.tokens_of
        session, user, tokens = await self._states(), dict[str, Any](), 0
        while True:
            if self._user is not None:
                user = await self._known(history)
            message = told(session, user)
            tokens = 0 if message is None else count(message)
            if history == 0 or tokens <= max_tokens // 2 or not user.get("history"):
                break
            history //= 2
        try:
            window, found = await self._talk.context(max(1, max_tokens - tokens))
        except InvalidError as error:
            raise _too_little(tokens, max_tokens, f": {error}") from error
        if tokens + window.tokens > max_tokens:
            raise _too_little(tokens, max_tokens)
        return SessionContext(ordered(window, found), session, user, tokens + window.tokens)

    # ---- together, and one at a time

    @overload
    async def transact(
        self, fn: Callable[[Session], Awaitable[T]], *, attempts: int | None = None, message: str = ""
    ) -> T: ...
    @overload
    async def transact(
        self, fn: Callable[[Session], T], *, attempts: int | None = None, message: str = ""
    ) -> T: ...
    async def transact(
        self, fn: Callable[[Session], Awaitable[T] | T], *, attempts: int | None = None, message: str = ""
    ) -> T:
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
        if self._lives.runner.mode == "blocking" or not callable(fn):
            reject_coroutine_function(fn)
        if attempts is not None:
            limits.admit_count("attempts", attempts)

        async def work(tx: Transaction) -> T:
            answer: T = await call_function(fn, self._inside(tx, None, "is not part of this transaction"))
            return answer

        return await together(
            self._lives.place,
            work,
            lease=self._lease,
            message=check_message(message),
            attempts=attempts,
            turn=f"site/{self._lives.prefix}",
        )

    @single_use
    async def transaction(self, *, message: str = "") -> AsyncGenerator[Session]:
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
        space = self._own_space("a transaction")
        async with space.transaction(lease=self._lease, message=message) as tx:
            yield self._inside(tx, None, "is not part of this transaction")

    @single_use
    async def exclusive(self, *, ttl_s: float = 30, wait_s: float = 10) -> AsyncGenerator[Session]:
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
        space = self._own_space("exclusive()")
        if self._lease is not None:
            raise InvalidError(f"{self!r} is inside exclusive() already, and would wait for itself")
        await self._lives.admit_user()
        name = f"{self._lives.prefix}exclusive"
        async with await space.leases.acquire(name, ttl_s, wait_s=wait_s) as lease:
            yield self._inside(space, lease, "is not guarded by this block")

    async def renew(self, ttl_s: float | None = None) -> None:
        """Stay inside `exclusive` for its time from now on, or for `ttl_s`.

        Raises:
            InvalidError: This is not what an `exclusive` block has yielded.
            LeaseLostError: The time was up.
        """
        if self._lease is None:
            raise InvalidError(f"{self!r} is not inside exclusive(); renew what that has yielded")
        await self._lease.renew(ttl_s)

    def _own_space(self, what: str) -> Space:
        if self._lives.space is None:
            raise InvalidError(f"{self!r} is inside a transaction, and {what} begins outside of one")
        return self._lives.space

    def _inside(self, place: Space | Transaction, lease: Lease | None, why: str) -> Session:
        user = self._user
        if user is not None and self._shares:
            user = Site(place, user.prefix, lease=lease)
        elif user is not None:
            user = _user_elsewhere(place, self.session_id, self.user_id, why)
        inside = Session.__new__(Session)
        inside._begin(None, self.session_id, self.user_id, self._lives.on(place, lease), user)
        inside._lease, inside._shares = lease, self._shares
        return inside

    # ---- how long it lives

    async def is_new(self) -> bool:
        """Whether nobody has used it, or not for its time; asking is no use of it."""
        return await self._lives.is_over()

    async def end(self) -> bool:
        """Let it be new again, as if its time were up, and return whether it was not."""
        return await self._lives.end()

    async def sweep(self) -> int:
        """Remove what it left when it was new again, and return how many documents that were.

        History keeps them, as long as that reaches back. `Sessions.sweep` does so for all.
        """
        self._own_space("sweeping")
        return await self._lives.sweep()

    async def at(self, ref: Revision = MAIN) -> SessionMoment:
        """Return the session as it was at a moment, of this life or an earlier one.

        Args:
            ref: The moment: a time, `main~3` for three changes before the last, `main#37`, a commit.

        Raises:
            NotOwnerError: It was another user's then, or became one's later in the same life.
            NotFoundError: Nothing was recorded then, or its space records nothing.
        """
        moment = moment_in(await self._lives.place.at(ref), self._lives.prefix)
        await self._lives.admit_user_of(moment.life, moment.user_id)
        return moment

    # ---- its documents

    @property
    def _what(self) -> str:
        return f"session {self.session_id!r}"

    async def _states(self) -> dict[str, Any]:
        prefix = await self._lives.to_read()
        return {} if prefix is None else await _below(self._lives.place, prefix + STATES)

    async def _known(self, history: int) -> dict[str, Any]:
        assert self._user is not None
        prefix = await self._user.to_read()
        known = await _below(self._user.place, f"{prefix}{STATES}")
        if history and (kinds := await self.user.histories(limit=history)):
            known["history"] = kinds
        return known


def _user_site(home: Home, session_id: str, user_id: str) -> Site:
    """Return the site of a session's user: in the space that both share, or in the user's own."""
    if not home.is_home("session", session_id):
        return Site(home.place("user", user_id, record=True), home.prefix("user", user_id))
    own, passed = home.next_to("user", user_id), home.passed
    if own is not None:
        return Site(own)
    assert passed is not None
    return _user_elsewhere(passed, session_id, user_id, "is not part of this transaction")


def _user_elsewhere(place: Space | Transaction, session_id: str, user_id: object, why: str) -> Elsewhere:
    return Elsewhere(
        place,
        f"user {user_id!r} is kept in the space 'user/{user_id}' and {why} on 'session/{session_id}'; use it "
        "outside, or give Session another space= for both",
    )


def _too_little(tokens: int, max_tokens: int, why: str = "") -> InvalidError:
    return InvalidError(
        f"what is known has {tokens} tokens of {max_tokens}, and the conversation does not fit into the "
        f"rest; keep less in states and preferences, or allow more{why}"
    )


def mode_of(session: Session) -> Mode:
    """Return how a session is used."""
    return session._lives.runner.mode  # pyright: ignore[reportPrivateUsage]


def blocking_of(session: Session) -> Session:
    """Return a session in the blocking colour that is the same as one of the other.

    Raises:
        InvalidError: It is inside a transaction or an exclusive block, which are of one colour.
    """
    home = session._home  # pyright: ignore[reportPrivateUsage]
    place: dict[str, Any]
    if home is not None and home.handle is not None:
        place = {"persistence": _blocking(home.handle)}
    elif home is not None and isinstance(home.passed, Space):
        space: Any = home.passed
        told = {"author": space.author, "record": space.executor.record}
        place = {"space": _blocking(space.executor.home).space(space.name, **told)}
    else:
        raise InvalidError(f"{session!r} is for use with await only, here; pass the session itself")
    ttl_s = session._lives.ttl_s  # pyright: ignore[reportPrivateUsage]
    return Session(session.session_id, user_id=session.user_id, ttl_s=ttl_s, **place, _mode="blocking")


def _blocking(handle: Keepstate) -> Keepstate:
    return handle.for_blocking()


async def _below(place: Space | Transaction, begin: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    async for name, value in place.documents.items(escape_pattern(begin) + "*"):
        found[name[len(begin) :]] = plain(value)
    return found
