"""A user's session: its conversation, its task, and the state of its user.

Conversation and task are in the session's space, change together, and end with the session. The user's state
is in a space of its own and outlives sessions.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, Final, TypeVar, Unpack, overload

from keepstate._runner import Mode
from keepstate.binding import Resource, StorageOptions, StoreBinding
from keepstate.engine.history.revisions import Revision
from keepstate.engine.kernel.arguments import check_duration_ms, check_message, check_text, single_use
from keepstate.engine.kernel.executor import call_function, reject_coroutine_function
from keepstate.engine.kernel.glob import escape_pattern
from keepstate.engine.kernel.layout import MAIN
from keepstate.engine.queue.lease import Lease
from keepstate.engine.space.joint_work import run_in_transaction
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space, Transaction
from keepstate.engine.usage.ledger import UsageLedger
from keepstate.errors import InvalidError
from keepstate.sessions.context_fit import TokenBudget, ordered
from keepstate.sessions.conversation import Conversation
from keepstate.sessions.conversation_documents import ContextRules
from keepstate.sessions.conversation_store import ConversationStore
from keepstate.sessions.models import Model, PlainModel, to_plain_fields
from keepstate.sessions.namespace import ANY_USER, AnyUser, Namespace, OutOfTransaction, SessionGenerations
from keepstate.sessions.session_records import (
    SessionContext,
    SessionMoment,
    TaskState,
    build_background,
    build_moment,
)
from keepstate.sessions.session_watch import SessionChange, SessionWatch
from keepstate.sessions.user import UserState
from keepstate.sessions.validated import (
    STATES,
    PlainState,
    ValidatedState,
    make_state,
)
from keepstate.values import limits

M = TypeVar("M")
T = TypeVar("T")

_MAX_TOKENS: Final = 8000
_DATA: Final = f"{STATES}data"


class Session(Resource):
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

    session_id: str
    user_id: str | AnyUser | None

    def __init__(
        self,
        session_id: str,
        *,
        user_id: str | AnyUser | None = None,
        ttl_s: float | None = None,
        **storage: Unpack[StorageOptions],
    ) -> None:
        if ttl_s is not None:
            check_duration_ms("ttl_s", ttl_s)
        binding = StoreBinding(storage)
        generations = SessionGenerations(
            *binding.locate("session", session_id, record=True),
            what=f"session {session_id!r}",
            user_id=user_id if user_id is None or user_id is ANY_USER else check_text("user_id", user_id),
            ttl_s=ttl_s,
        )
        user = None
        if isinstance(user_id, str):
            user = _user_namespace(binding, session_id, user_id)
        self._begin(binding, session_id, user_id, generations, user)

    def _begin(
        self,
        binding: StoreBinding | None,
        session_id: str,
        user_id: str | AnyUser | None,
        generations: SessionGenerations,
        user: Namespace | None,
    ) -> None:
        self._binding = self._closing = binding
        self.session_id, self.user_id = session_id, user_id
        self._store = ConversationStore(generations, ContextRules(TokenBudget(_MAX_TOKENS)))
        self._generations, self._user = generations, user
        self._lease: Lease | None = None
        self._shares = (
            binding is not None
            and binding.passed is not None
            and not binding.is_own_space("session", session_id)
        )
        """Whether session and user share one space."""

    def __repr__(self) -> str:
        whose = "" if self.user_id is None else f" of user {self.user_id!r}"
        return f"<Session {self.session_id!r}{whose} in {self._binding or self._generations.target!r}>"

    # ---- the three kinds of state

    @property
    def conversation(self) -> Conversation:
        """The conversation, with a context of 8,000 tokens; see `Conversation.within`."""
        return Conversation(self._store)

    @property
    def task(self) -> ValidatedState[TaskState]:
        """The session's task."""
        return make_state(self._generations, self.session_id, self._what, PlainModel(TaskState), "task")

    @property
    def user(self) -> UserState:
        """The state of the user, shared by all sessions.

        Raises:
            InvalidError: The session was opened without a user, or with `ANY_USER`.
        """
        if not isinstance(self.user_id, str) or self._user is None:
            why = "was opened with ANY_USER" if self.user_id is ANY_USER else "was opened without a user"
            raise InvalidError(f"Session {self.session_id!r} {why}. Pass the user's id as user_id=.")
        return UserState(self.user_id, self._user)

    @property
    def usage(self) -> UsageLedger:
        """The usage of the session, over all its generations, and its budgets. It does not end with it."""
        return self._generations.ledger

    def state(self, model: type[M], name: str | None = None) -> ValidatedState[M]:
        """Return a state of the session that is validated on write and on read.

        Args:
            model: A dataclass, msgspec Struct or pydantic class.
            name: Name of the state; the model's name by default. `task` replaces the model `TaskState`.
        """
        return make_state(self._generations, self.session_id, self._what, Model(model), name)

    async def get_state(self) -> dict[str, Any]:
        """Return a copy of the state without a model, which `update` writes."""
        return await self._plain.get()

    async def update(
        self,
        change: Mapping[str, Any] | Callable[[dict[str, Any]], dict[str, Any] | Awaitable[dict[str, Any]]],
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
        return await self._plain.update(change, "update the session")

    async def get_context(self, max_tokens: int = 8000, *, history: int = 20) -> SessionContext:
        """Return recent messages, session and user together, within a token budget.

        States and preferences are always included in full. The user's history is halved until states,
        preferences and history leave half of the budget to the conversation, if possible.

        Args:
            max_tokens: The token budget.
            history: Maximum number of items of each kind of the user's history.

        Raises:
            InvalidError: The parts that cannot be trimmed exceed the budget.
        """
        limits.admit_count("max_tokens", max_tokens)
        count = self._store.rules.budget.tokens_of
        prefix, window, found = await self._store.read_context()
        session, user, tokens = dict[str, Any](), dict[str, Any](), 0
        if prefix is not None:
            session = await _read_with_prefix(self._generations.target, prefix + STATES)
        while True:
            if self._user is not None:
                user = await self._read_user(history)
            message = build_background(session, user)
            tokens = 0 if message is None else count(message)
            if history == 0 or tokens <= max_tokens // 2 or not user.get("history"):
                break
            history //= 2
        try:
            self._store.fit(window, found, max(1, max_tokens - tokens))
        except InvalidError as error:
            raise _over_budget(tokens, max_tokens, f": {error}") from error
        if tokens + window.total_tokens > max_tokens:
            raise _over_budget(tokens, max_tokens)
        return SessionContext(ordered(window, found), session, user, tokens + window.total_tokens)

    # ---- transactions and exclusive blocks

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
        if self._generations.runner.mode == "blocking" or not callable(fn):
            reject_coroutine_function(fn)
        if attempts is not None:
            limits.admit_count("attempts", attempts)

        async def work(tx: Transaction) -> T:
            answer: T = await call_function(fn, self._inside(tx, None, "is not part of this transaction"))
            return answer

        return await run_in_transaction(
            self._generations.target,
            work,
            lease=self._lease,
            message=check_message(message),
            attempts=attempts,
            turn=f"namespace/{self._generations.prefix}",
        )

    @single_use
    async def transaction(self, *, message: str = "") -> AsyncGenerator[Session]:
        """Yield the session; apply all changes of the block to conversation, task and states as one batch.

        The user has a space of its own, so it cannot be part of the transaction unless `space=` was given.

        The block runs once. With concurrent writers, use `transact`, which retries after a conflict.

        Args:
            message: Description of the change, shown in the space's history.

        Raises:
            ConflictError: Data that the block read has changed, such as the conversation by another message;
                nothing was applied.
        """
        space = self._own_space("transaction()")
        async with space.transaction(lease=self._lease, message=message) as tx:
            yield self._inside(tx, None, "is not part of this transaction")

    @single_use
    async def exclusive(self, *, ttl_s: float = 30, wait_s: float = 10) -> AsyncGenerator[Session]:
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
        space = self._own_space("exclusive()")
        if self._lease is not None:
            raise InvalidError(
                f"{self!r} is already inside exclusive() and would wait for itself. Use it directly."
            )
        await self._generations.check_user()
        name = f"{self._generations.prefix}exclusive"
        async with await space.leases.acquire(name, ttl_s, wait_s=wait_s) as lease:
            yield self._inside(space, lease, "is not guarded by this block")

    async def renew(self, ttl_s: float | None = None) -> None:
        """Renew the lease of `exclusive` for its time, or for `ttl_s` seconds from now.

        Raises:
            InvalidError: This session was not yielded by `exclusive`.
            LeaseLostError: The lease had expired.
        """
        if self._lease is None:
            raise InvalidError(
                f"{self!r} was not yielded by exclusive(). Call renew() on the yielded session."
            )
        await self._lease.renew(ttl_s)

    def _own_space(self, what: str) -> Space:
        if self._generations.space is None:
            raise InvalidError(f"{self!r} is inside a transaction. Call {what} outside of it.")
        return self._generations.space

    def _inside(self, target: Space | Transaction, lease: Lease | None, why: str) -> Session:
        user = self._user
        if user is not None and self._shares:
            user = Namespace(target, user.prefix, lease=lease)
        elif user is not None:
            user = _user_out_of_transaction(target, self.session_id, self.user_id, why)
        inside = Session.__new__(Session)
        inside._begin(None, self.session_id, self.user_id, self._generations.on(target, lease), user)
        inside._lease, inside._shares = lease, self._shares
        return inside

    async def position(self) -> str:
        """Return the position of now: `watch(after=position)` yields the changes that come after this call.

        Take it before you read the session, and no change is missed between reading and watching.

        Raises:
            InvalidError: The session is inside a transaction.
            NotOwnerError: Another user owns the session.
        """
        return await self._watch(None).position()

    async def watch(self, *, after: str | None = None) -> AsyncIterator[SessionChange]:
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
        async with aclosing(self._watch(after).changes()) as changes:
            async for change in changes:
                yield change

    def _watch(self, after: str | None) -> SessionWatch:
        self._own_space("watch()")
        user = None if isinstance(self._user, OutOfTransaction) else self._user
        return SessionWatch(self._generations, user, after)

    # ---- lifetime and history

    async def is_new(self) -> bool:
        """Return whether the session is unused or has ended. Does not count as use."""
        return await self._generations.is_over()

    async def end(self) -> bool:
        """End the session, as if its TTL had expired, and return whether it was live."""
        return await self._generations.end()

    async def sweep(self) -> int:
        """Delete the documents of the session's ended generations, and return their number.

        The space's history still has them, as far as it reaches back. `Sessions.sweep` sweeps all sessions.
        """
        self._own_space("sweep()")
        return await self._generations.sweep()

    async def at(self, ref: Revision = MAIN) -> SessionMoment:
        """Return the session at a past moment, of this generation or an earlier one.

        Args:
            ref: The moment: a time, `main~3` for three changes before the last, `main#37`, or a commit.

        Raises:
            NotOwnerError: Another user owned it then, or became the owner of that generation later.
            NotFoundError: Nothing was recorded then, or the space is not recorded.
        """
        moment = build_moment(await self._generations.target.at(ref), self._generations.prefix)
        await self._generations.check_user_of(moment.life, moment.user_id)
        return moment

    # ---- its documents

    @property
    def _plain(self) -> PlainState:
        return PlainState(self._generations, _DATA, f"the state of {self._what}")

    @property
    def _what(self) -> str:
        return f"session {self.session_id!r}"

    async def _read_user(self, history: int) -> dict[str, Any]:
        assert self._user is not None
        prefix = await self._user.to_read()
        known = await _read_with_prefix(self._user.target, f"{prefix}{STATES}")
        if history and (kinds := await self.user.histories(limit=history)):
            known["history"] = kinds
        return known


def _user_namespace(binding: StoreBinding, session_id: str, user_id: str) -> Namespace:
    """Return the namespace of a session's user: in the shared space, or in the user's own."""
    if not binding.is_own_space("session", session_id):
        return Namespace(*binding.locate("user", user_id, record=True))
    own, passed = binding.sibling("user", user_id), binding.passed
    if own is not None:
        return Namespace(own)
    assert passed is not None
    return _user_out_of_transaction(passed, session_id, user_id, "is not part of this transaction")


def _user_out_of_transaction(
    target: Space | Transaction, session_id: str, user_id: object, why: str
) -> OutOfTransaction:
    return OutOfTransaction(
        target,
        f"User {user_id!r} is stored in the space 'user/{user_id}' and {why} on 'session/{session_id}'. Use "
        "it outside, or pass Session another space= for both.",
    )


def _over_budget(tokens: int, max_tokens: int, why: str = "") -> InvalidError:
    return InvalidError(
        f"States and preferences have {tokens} of {max_tokens} tokens, and the conversation does not fit "
        f"into the rest. Store less in them, or raise max_tokens{why}"
    )


def mode_of(session: Session) -> Mode:
    """Return the mode of a session: `async` or `blocking`."""
    return session._generations.runner.mode  # pyright: ignore[reportPrivateUsage]


def blocking_of(session: Session) -> Session:
    """Return the same session in blocking mode.

    Raises:
        InvalidError: The session is inside a transaction or an exclusive block, which cannot change mode.
    """
    binding = session._binding  # pyright: ignore[reportPrivateUsage]
    location: dict[str, Any]
    if binding is not None and binding.handle is not None:
        location = {"persistence": _blocking(binding.handle)}
    elif binding is not None and isinstance(binding.passed, Space):
        space: Any = binding.passed
        options = {"author": space.author, "record": space.executor.record}
        location = {"space": _blocking(space.executor.home).space(space.name, **options)}
    else:
        raise InvalidError(f"{session!r} is inside a transaction or exclusive(). Pass the outer session.")
    ttl_s = session._generations.ttl_s  # pyright: ignore[reportPrivateUsage]
    return Session(session.session_id, user_id=session.user_id, ttl_s=ttl_s, **location, _mode="blocking")


def _blocking(handle: Keepstate) -> Keepstate:
    return handle.for_blocking()


async def _read_with_prefix(target: Space | Transaction, prefix: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    async for name, value in target.documents.items(escape_pattern(prefix) + "*"):
        found[name[len(prefix) :]] = to_plain_fields(value)
    return found
