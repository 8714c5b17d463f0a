"""A space, its parts, and transactions over them.

A space is one agent's run, one thread or one session: the unit of atomicity and order. A `Transaction` has
the same parts as a `Space`, and collects their work into one batch.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from keepstate._clock import Clock
from keepstate._deferral import defer_imports
from keepstate._runner import Runner
from keepstate.engine.documents.documents import Documents
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.arguments import (
    check_attribution,
    check_message,
    check_meta,
    check_name,
    check_text,
    require_instance,
    single_use,
)
from keepstate.engine.kernel.executor import Executor, Home, SpaceExecutor, call_function
from keepstate.engine.kernel.grants import learn_life, needs_grant
from keepstate.engine.kernel.layout import MAIN
from keepstate.engine.kernel.observation import observe
from keepstate.engine.kernel.observed_executor import ObservedExecutor
from keepstate.engine.kernel.store_abilities import content_name
from keepstate.engine.kernel.stored import to_datetime
from keepstate.engine.kernel.transaction_executor import TransactionExecutor
from keepstate.engine.kernel.unit import Unit
from keepstate.errors import ConflictError, InvalidError, OutcomeUnknownError
from keepstate.stores.protocol import Applied, Conflict, question, revision_in_token
from keepstate.values import limits
from keepstate.values.key import pack

if TYPE_CHECKING:
    from keepstate.engine.approvals import approvals as _approvals
    from keepstate.engine.documents import collection as _collection
    from keepstate.engine.documents import collection_indexes as _indexes
    from keepstate.engine.events import events as _events
    from keepstate.engine.history import checkout as _checkout
    from keepstate.engine.history import history as _history
    from keepstate.engine.history import revisions as _revisions
    from keepstate.engine.queue import lease as _lease
    from keepstate.engine.queue import queue as _queue
    from keepstate.engine.queue import schedules as _schedules
    from keepstate.engine.space import erasure as _erasure
    from keepstate.engine.space import expunge as _expunge
    from keepstate.engine.usage import ledger as _usage
else:
    defer_imports(
        globals(),
        _approvals="keepstate.engine.approvals.approvals",
        _collection="keepstate.engine.documents.collection",
        _indexes="keepstate.engine.documents.collection_indexes",
        _events="keepstate.engine.events.events",
        _checkout="keepstate.engine.history.checkout",
        _history="keepstate.engine.history.history",
        _revisions="keepstate.engine.history.revisions",
        _lease="keepstate.engine.queue.lease",
        _queue="keepstate.engine.queue.queue",
        _schedules="keepstate.engine.queue.schedules",
        _erasure="keepstate.engine.space.erasure",
        _expunge="keepstate.engine.space.expunge",
        _usage="keepstate.engine.usage.ledger",
    )

_TOKEN_BYTES = 16

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SpaceSize:
    """The size of a space, without its log and the store's overhead for each entry.

    Attributes:
        entries: The number of entries, including those of queues, events and the history.
        size_bytes: The total size of their keys and values as they are stored.
    """

    entries: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class AppliedTransaction(Generic[T]):
    """The result of a function that was applied as a transaction.

    Attributes:
        value: The return value of the function.
        revision: The revision of the transaction; 0 if it wrote nothing.
    """

    value: T
    revision: int


class Parts:
    """The parts of a space or a transaction. Each is created on first use."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    @cached_property
    def documents(self) -> Documents:
        """The named values of the space."""
        return self._part(Documents(self._executor), "documents")

    def collection(
        self,
        name: str,
        type: type[T],
        *,
        index: Mapping[str, Callable[[T], _indexes.Place | None]] | None = None,
        version: int = 1,
    ) -> _collection.Collection[T]:
        """Return the records of one type, as documents named `name/id`. Makes no call to the store.

        With an index, all other writes of these documents are rejected, in every process.

        Args:
            name: The name of the collection: 1 to 100 bytes of UTF-8 without a slash.
            type: The type of the records.
            index: A function for each index, at most 16. From a record, it returns its place in the index: a
                tuple of texts, integers, bytes, UUIDs and aware times, or None to leave the record out. It
                must be deterministic. A key of an index, with the tuple and the id, has at most 512 bytes.
                It is stored in plain text, also in an encrypted store.
            version: Raise it when a function changes, or an index is added or removed. Then call `reindex`.
        """
        return self._part(
            _collection.make_collection(self.documents, name, type, index, version), "collection"
        )

    @cached_property
    def events(self) -> _events.Events:
        """The streams of events of the space."""
        return self._part(_events.Events(self._executor), "events")

    @cached_property
    def queue(self) -> _queue.Queue:
        """The tasks of the space. Each is completed once."""
        return self._part(_queue.Queue(self._executor, self._begin_transaction), "queue")

    @cached_property
    def schedules(self) -> _schedules.Schedules:
        """The times at which the space puts tasks by itself."""
        return self._part(_schedules.Schedules(self._executor), "schedules")

    @cached_property
    def approvals(self) -> _approvals.Approvals:
        """The questions of the space to people. Each is settled once."""
        return self._part(_approvals.Approvals(self._executor), "approvals")

    @cached_property
    def usage(self) -> _usage.UsageLedger:
        """The tokens, calls and money that models used, under budgets. Each use is counted once."""
        return self._part(_usage.UsageLedger(self._executor), "usage")

    @cached_property
    def leases(self) -> _lease.Leases:
        """The time-limited locks of the space."""
        return self._part(_lease.Leases(self._executor), "leases")

    @cached_property
    def history(self) -> _history.History:
        """The commits of a state. Every committed state can be read again."""
        return self._part(_history.History(self._executor), "history")

    _begin_transaction: Callable[[], AbstractAsyncContextManager[Transaction]] | None = None
    """Begins a transaction, for the steps of a task; None in a transaction."""

    def _part(self, part: T, name: str) -> T:
        return part if self._executor.home.observation is None else observe(part, name)

    async def at(self, ref: _revisions.Revision = MAIN, *, load: _checkout.Load = True) -> _checkout.Checkout:
        """Return the documents of a recorded space as of a commit, by name and read-only.

        Args:
            ref: The commit: an id, a branch or tag, `main~3`, `main#37`, a time or a `Commit`.
            load: True for all documents, False for none yet, or the names of some.

        Raises:
            NotFoundError: The commit does not exist, or nothing was recorded.
        """
        return await self.history.checkout(ref, load=load)

    async def now(self) -> datetime:
        """Return the store's time in UTC, which decides about leases, delays and TTLs."""
        now_ms, _ = await self._executor.run(lambda unit: unit.now_ms())
        return to_datetime(now_ms)

    # ---- for the rooms above

    @property
    def executor(self) -> Executor:
        """The executor of its parts."""
        return self._executor

    @property
    def runner(self) -> Runner:
        """The runner of the handle's mode."""
        return self._executor.runner

    @property
    def clock(self) -> Clock:
        """Time and randomness of this process."""
        return self._executor.clock


class Transaction(Parts):
    """A set of operations on one space that apply together when the block ends.

    A transaction reads its own writes, and everything else as of one revision. An appended event gets its
    number when the transaction is applied. Tasks and threads may share a transaction: their calls run one
    after the other, and a call that is still waiting at the end is rejected. A function that the transaction
    calls may use it too, in the same thread.

    Attributes:
        space: The name of the space.
        author: The author of the writes, or None.
        message: The purpose of the transaction.
    """

    space: str
    author: str | None
    message: str

    def __init__(self, executor: TransactionExecutor) -> None:
        super().__init__(executor)
        self._joint = executor
        self.space, self.author, self.message = executor.name, executor.author, executor.message

    def __repr__(self) -> str:
        return f"<Transaction on {self.space!r} {'ended' if self._joint.state.is_ended else 'open'}>"

    @property
    def executor(self) -> TransactionExecutor:
        """The executor of its parts."""
        return self._joint

    @property
    def revision(self) -> int:
        """The revision of the transaction once it is applied; 0 before, and if it wrote nothing.

        If a transaction with its `token` was applied before, the revision of that time.
        """
        return self._joint.state.revision

    @property
    def note(self) -> bytes:
        """The bytes that are stored with the `token`, empty without any; see `set_note`.

        If a transaction with its `token` was applied before, the note of that time.
        """
        return self._joint.state.note

    def set_note(self, note: bytes) -> None:
        """Store bytes with the `token`, such as the answer that a caller gets who repeats the request.

        They are stored as long as the token, and ignored if the token was used before.

        Args:
            note: At most 16 KiB.

        Raises:
            InvalidError: The note is too large, or the transaction has no token.
        """
        require_instance("note", note, bytes)
        state = self._joint.state
        if not state.has_token:
            raise InvalidError("a note is stored with a token; begin the transaction with token=")
        if len(note) > limits.TOKEN_NOTE_BYTES:
            raise InvalidError(f"`note` has {len(note)} bytes; it may have {limits.TOKEN_NOTE_BYTES}")
        if not state.revision:
            state.note = note

    def by(
        self,
        author: str | None = None,
        *,
        message: str | None = None,
        meta: Mapping[str, str] | None = None,
    ) -> Transaction:
        """Return the same transaction with another author, message or notes. Makes no call to the store.

        The commit of a recorded space names every author who changed documents, with the message.

        Args:
            author: The author of the writes. Default: the author of this transaction.
            message: The purpose of the writes.
            meta: Notes on the commits, added to those of this transaction; see `History.commit`.
        """
        who, text = check_attribution(self.author, author, "", message)
        notes = check_meta({**self._joint.meta, **check_meta(meta)})
        return Transaction(self._joint.by(who, text, notes))


def begin_transaction(
    outer: SpaceExecutor,
    *,
    lease: _lease.Lease | None = None,
    message: str = "",
    token: str | None = None,
    unit: Unit | None = None,
) -> AbstractAsyncContextManager[Transaction]:
    """Return a block that yields a transaction, and applies it unless the block raises.

    Args:
        outer: The executor of the space.
        lease: A lease that must still be held.
        message: The purpose of the transaction.
        token: A token of the caller.
        unit: A unit that nothing has used yet.
    """
    block = _apply_at_end(outer, lease, message, token, unit)
    return block if outer.home.observation is None else _observe(outer, block)


@asynccontextmanager
async def _observe(
    outer: SpaceExecutor, block: AbstractAsyncContextManager[Transaction]
) -> AsyncGenerator[Transaction]:
    observation, operation = outer.begin_operation("space.transaction", block)
    operation.attempts, failure = 1, None
    try:
        async with block as tx:
            tx.executor.operation = operation
            yield tx
        operation.revision = tx.revision
        if (made := tx.executor.unit.recorded) is not None and tx.revision:
            operation.commit = made.id.hex()
        if (outer_operation := operation.parent) is not None:
            outer_operation.revision, outer_operation.commit = tx.revision, operation.commit
            outer_operation.attempts = max(1, outer_operation.attempts)
    except BaseException as error:  # reported, and raised again
        failure = error
        raise
    finally:
        observation.end(operation, failure)


@asynccontextmanager
async def _apply_at_end(
    outer: SpaceExecutor, lease: _lease.Lease | None, message: str, token: str | None, unit: Unit | None
) -> AsyncGenerator[Transaction]:
    message = check_message(message)
    if lease is not None:
        require_instance("lease", lease, _lease.Lease)
    if unit is None:
        # With a token, no two transactions begin with the same key.
        purpose, store = message if token is None else None, await outer.store()
        if needs_grant(outer.stored_name):
            await learn_life(store, outer.stored_name)
        unit = Unit(store, outer.stored_name, outer.name, purpose=purpose)
    executor = TransactionExecutor(outer, unit, message=message)
    state = executor.state
    key = None if token is None else _token_key(unit, token)
    state.has_token = key is not None
    if key is not None and (before := await unit.get(key)) is not None:
        state.revision, state.note = before.version, before.value
    elif lease is not None:
        await _lease.fence(lease, outer, unit)
    tx = Transaction(executor)
    try:
        try:
            yield tx
        finally:
            state.is_ended = True
        applied = None
        if key is None:
            applied = await _commit(executor, lease)
        elif not state.revision:
            applied = await _commit_once(executor, lease, key)
    except BaseException:  # also a cancellation; raised again
        executor.roll_back()
        raise
    if applied is not None and unit.writes:
        state.revision = applied.revision
    elif state.revision:  # applied before, under its token
        executor.roll_back()


def _token_key(unit: Unit, token: str) -> bytes:
    content = b"token\0" + check_name("token", token).encode()
    return layout.TOKENS + pack(content_name(unit.store, unit.space, content)[:_TOKEN_BYTES])


async def _commit_once(
    executor: TransactionExecutor, lease: _lease.Lease | None, key: bytes
) -> Applied | None:
    """Apply a transaction with its token. If the token was used meanwhile, set the revision of that time."""
    unit = executor.unit
    if unit.writes:
        unit.put(key, executor.state.note, ttl_ms=limits.TOKEN_KEPT_MS)
    try:
        return await _commit(executor, lease)
    except ConflictError:
        found = (await unit.store.read(unit.space, [key])).entries[0]
        if found is None:
            raise
        executor.state.revision, executor.state.note = found.version, found.value
        return None
    except OutcomeUnknownError as error:
        error.add_note(
            "Run the transaction again with the same token, within "
            f"{limits.TOKEN_KEPT_MS // 3_600_000} hours: it is applied only if it was not applied before."
        )
        raise


async def _commit(executor: TransactionExecutor, lease: _lease.Lease | None) -> Applied | None:
    try:
        return await executor.commit()
    except ConflictError as conflict:
        if lease is not None:
            if (lost := _lease.lease_lost_error(lease, conflict)) is not None:
                raise lost from conflict
            # If the block has scanned, the store may report the next holder's entry as the first change.
            await lease.check()
        raise


def on_claim(
    executor: Executor, work: Callable[[Transaction, str, str | None], Any]
) -> Callable[[Unit, str, str | None], Awaitable[None]]:
    """Return the `on_claim` of `Queue.claim_with` that calls a function with the claim as a transaction.

    Args:
        executor: The executor of the space.
        work: A function, or coroutine function, of the transaction, the task's id and the worker that held
            the task before.
    """

    async def join(unit: Unit, task_id: str, former: str | None) -> None:
        inner = TransactionExecutor(executor, unit)
        try:
            await call_function(work, Transaction(inner), task_id, former)
        except BaseException:  # also a cancellation; raised again
            inner.roll_back()
            raise
        finally:
            inner.state.is_ended = True

    return join


class Space(Parts):
    """The unit of atomicity and order: everything in one space can change together.

    Made by `Keepstate.space`, without I/O. Every operation is atomic, and strictly serializable with all
    other operations on the space.

    Attributes:
        name: The name of the space, without its tenant.
        author: The author of writes, or None.
    """

    def __init__(
        self,
        home: Home,
        name: str,
        *,
        author: str | None = None,
        message: str = "",
        record: bool = False,
        meta: Mapping[str, str] | None = None,
    ) -> None:
        kind = SpaceExecutor if home.observation is None else ObservedExecutor
        self._own = kind(home, name, author, message=message, record=record, meta=meta)
        super().__init__(self._own)
        self._begin_transaction = partial(begin_transaction, self._own)
        self.name, self.author = name, author
        if home.observation is not None:
            observe(self, "space")

    def __repr__(self) -> str:
        return f"<Space {self.name!r} of {self._own.home!r}>"

    def __reduce__(self) -> tuple[object, ...]:
        own = self._own
        given: dict[str, Any] = {"message": own.message, "record": own.record, "meta": own.meta}
        make = partial(Space, author=self.author, **given)
        return make, (own.home, self.name)

    @property
    def executor(self) -> SpaceExecutor:
        """The executor of its parts."""
        return self._own

    def by(
        self,
        author: str | None = None,
        *,
        message: str | None = None,
        meta: Mapping[str, str] | None = None,
    ) -> Space:
        """Return the same space with another author, message or notes. Makes no call to the store.

        Events and commits name the author. Commits contain the notes, and those of a recorded space the
        message.

        Args:
            author: The author of writes. Default: the author of this space.
            message: The purpose of the writes; at most 64 KiB of UTF-8.
            meta: Notes on the commits, added to those of this space; see `History.commit`.
        """
        executor = self._own
        who, text = check_attribution(self.author, author, executor.message, message)
        notes = check_meta({**executor.meta, **check_meta(meta)})
        return Space(executor.home, self.name, author=who, message=text, record=executor.record, meta=notes)

    @single_use
    async def transaction(
        self, *, lease: _lease.Lease | None = None, message: str = "", token: str | None = None
    ) -> AsyncGenerator[Transaction]:
        """Collect the operations of the body and apply them as one batch at its end.

        The body runs once. If it raises, nothing is applied.

        Args:
            lease: Apply the batch only if this lease is still held.
            message: The purpose of the transaction, for the commit of a recorded space.
            token: A name for the transaction, such as the id of a request: 1 to 512 bytes of UTF-8. A
                transaction of this space is not applied again if one with the same token was applied within
                the last 24 hours. `revision` of the transaction is then the revision of that time, from the
                beginning of the body, and the operations of the body are ignored. Afterwards the token is
                forgotten. It is one write of the batch, and costs one more read.

        Raises:
            ConflictError: Something that the body read has changed. Nothing was applied.
            LeaseLostError: The lease is no longer held. Nothing was applied.
            OutcomeUnknownError: The reply of the store was lost. With a token, run the transaction again.
        """
        async with begin_transaction(self._own, lease=lease, message=message, token=token) as tx:
            yield tx

    @overload
    async def transact(self, fn: Callable[[Transaction], Awaitable[T]], attempts: int | None = 8) -> T: ...
    @overload
    async def transact(self, fn: Callable[[Transaction], T], attempts: int | None = 8) -> T: ...
    async def transact(self, fn: Callable[[Transaction], Awaitable[T] | T], attempts: int | None = 8) -> T:
        """Call `fn(tx)` and apply its operations as one batch; on conflict, call it again with a new `tx`.

        Args:
            fn: The function. It may be called several times.
            attempts: The largest number of calls. None calls it until that is hopeless: 1,000 conflicts over
                at least a minute.

        Returns:
            The return value of `fn`; `apply` also returns the revision.

        Raises:
            AttemptsExhaustedError: Every attempt ended in a conflict. Nothing was applied. Allow more
                attempts, or update a single document, which is retried until it succeeds.
        """
        return (await self._apply(fn, attempts)).value

    @overload
    async def apply(
        self, fn: Callable[[Transaction], Awaitable[T]], *, attempts: int | None = None
    ) -> AppliedTransaction[T]: ...
    @overload
    async def apply(
        self, fn: Callable[[Transaction], T], *, attempts: int | None = None
    ) -> AppliedTransaction[T]: ...
    async def apply(
        self, fn: Callable[[Transaction], Awaitable[T] | T], *, attempts: int | None = None
    ) -> AppliedTransaction[T]:
        """Do what `transact` does, by default until that is hopeless. Return the value with the revision."""
        return await self._apply(fn, attempts)

    async def _apply(
        self, fn: Callable[[Transaction], Awaitable[T] | T], attempts: int | None
    ) -> AppliedTransaction[T]:
        self._own.reject_coroutine(fn)
        if attempts is not None:
            limits.admit_count("attempts", attempts)

        async def once() -> AppliedTransaction[T]:
            async with self.transaction() as tx:
                answer: T = await call_function(fn, tx)
            return AppliedTransaction(answer, tx.revision)

        try:
            return await once()
        except ConflictError as conflict:
            if not conflict.retryable or attempts == 1:
                raise
            mark = b"transact/" + (conflict.key or b"")  # not a key, so it differs from every document
        # The conflicting key is known after the first conflict. Transactions of this process then take turns.
        return await self._own.in_turn(
            mark, lambda: self._own.retry(once, attempts, lost=1, advice="allow more `attempts`")
        )

    async def size(self) -> SpaceSize:
        """Return the size of the space at one revision, in one read that does not depend on its size."""
        store = await self._own.store()
        parts = (await store.sizes(self._own.stored_name)).parts.values()
        return SpaceSize(sum(part.entries for part in parts), sum(part.size_bytes for part in parts))

    async def expunge(self, prefix: str) -> _erasure.Erased:
        """Remove everything whose name begins with a prefix, with its log and its history.

        These are documents with their places in indexes, streams, leases, tasks, schedules, approvals,
        accounts of usage, branches and tags. All other entries stay as they are. The log of the space ends
        here: an older position of anything in the space raises `CompactedError`. In a recorded space only the
        present states of branches and tags are left of the history. Embedded stores rewrite their files, so
        that no removed bytes remain there.

        Writers are not rejected: what they write under the prefix during the call may remain. An interrupted
        call is completed by the next one.

        Args:
            prefix: The beginning of the names, at most 440 bytes, in which no character is special.

        Returns:
            The counts of what this call removed, the archive of the history if there is one, and what was not
            reached.

        Raises:
            InvalidError: The prefix is empty or too long.
        """
        return await _expunge.expunge(self._own, check_text("prefix", prefix))

    async def revision(self) -> int:
        """Return the number of batches that the space has applied."""
        store = await self._own.store()
        return (await store.read(self._own.stored_name, [])).revision

    async def outcome(self, token: bytes) -> int | None:
        """Settle a batch whose outcome was unknown.

        Returns:
            The revision at which the batch was applied. None if it was not applied, and never will be.

        Raises:
            OutcomeUnknownError: The log no longer reaches back that far.
        """
        if type(token) is not bytes or not 0 < len(token) <= limits.TOKEN_BYTES:
            raise InvalidError(f"`token` is {token!r}; it has 1 to {limits.TOKEN_BYTES} bytes")
        store = await self._own.store()
        asked = question(self._own.stored_name, token, revision_in_token(token))
        outcome = (await store.apply([asked]))[0]
        if isinstance(outcome, Applied):
            return outcome.revision
        if isinstance(outcome, Conflict):
            return None
        raise outcome
