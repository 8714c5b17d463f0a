"""Executors: run the work of a part, which it passes as a function of a `Unit`.

`SpaceExecutor` commits each unit as one batch and retries on conflict. `TransactionExecutor`, in a module of
its own, adds the work to the transaction's unit, which commits as one batch.
Invariant: a unit never commits without checking everything it read.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from keepstate._clock import Clock
from keepstate._runner import Mode, Runner, cancelled_error
from keepstate.engine.kernel.arguments import check_meta
from keepstate.engine.kernel.grants import learn_life, life_at, needs_grant, require_life
from keepstate.engine.kernel.large_values import MANIFEST_BYTE, read_whole
from keepstate.engine.kernel.locks import serialized
from keepstate.engine.kernel.observation import Observation, Operation
from keepstate.engine.kernel.store_abilities import LossDetector, has_ability
from keepstate.engine.kernel.store_cache import KnownEntries, cache_of
from keepstate.engine.kernel.subjects import Subject
from keepstate.engine.kernel.unit import NotWrittenError, Unit
from keepstate.errors import AttemptsExhaustedError, ConflictError, InvalidError, NotAllowedError
from keepstate.names import stored_name
from keepstate.stores.protocol import SCAN_LIMIT, Applied, DetectsLosses, Entry, Mark, Store
from keepstate.values import codec
from keepstate.values.codec import Codec
from keepstate.values.key import pack

if TYPE_CHECKING:
    from keepstate.values.pickles import SignedPickle

T = TypeVar("T")

ATTEMPTS = 64
"""Attempts of one operation while concurrent writers keep changing its data."""
TRACEPARENT = "traceparent"
"""The note of a write with its place in a trace, in the form of the W3C's Trace Context."""

_INTERRUPTS = (KeyboardInterrupt, SystemExit, GeneratorExit)
"""Exceptions that end a call whatever it has read, as does that of a cancelled task."""

_FIRST_PAUSE_S, _SHARED_PAUSE_S = 0.001, 0.2
_HOPELESS_ATTEMPTS, _HOPELESS_S = 1000, 60.0
"""Attempts and seconds after which unlimited retries give up. That many conflicts indicate a bug, such as a
function that writes the document it updates from another thread."""


class Recorder(Protocol):
    """Commits changes of documents of one space. `engine.history.recording` implements it."""

    async def commit(self, executor: Executor, unit: Unit) -> Applied | None:
        """Apply a unit that changes documents, with a commit if the space is recorded.

        Raises:
            ConflictError: An entry that the unit read or checks has changed. Nothing was applied.
        """
        ...


class Home(Protocol):
    """The services of the handle that opened a space."""

    tenant_id: str | None
    meta: Callable[[], Mapping[str, str]] | None

    @property
    def runner(self) -> Runner:
        """The runner of the handle's mode."""
        ...

    @property
    def clock(self) -> Clock:
        """Time and randomness of this process."""
        ...

    @property
    def pickle(self) -> SignedPickle | None:
        """The codec for objects of unregistered classes, if the caller enabled it."""
        ...

    @property
    def states(self) -> Codec:
        """The codec of values in histories."""
        ...

    def recorder(self, space: str) -> Recorder:
        """Return the recorder of a space, given the name of the space in the store."""
        ...

    @property
    def observation(self) -> Observation | None:
        """The observer of the handle's operations, if the caller gave one."""
        ...

    @property
    def decode(self) -> Callable[..., Any]:
        """The function that decodes a stored value: to objects, to builtin form, or to a `type`."""
        ...

    async def opened(self) -> Store:
        """Return the store, opened on the first call."""
        ...

    def for_blocking(self) -> Home:
        """Return a handle on the same data for blocking calls, which is closed with this one.

        Raises:
            UnsupportedError: The store that the caller passed cannot be used in another mode.
        """
        ...

    def in_mode(self, mode: Mode) -> OwnedHome:
        """Return a handle on the same data for another mode. The caller closes it.

        Raises:
            UnsupportedError: The store that the caller passed cannot be used in another mode.
        """
        ...

    def note_subjects(
        self, space: str, subjects: AbstractSet[Subject], due_ms: Mapping[Subject, int]
    ) -> None:
        """Note that a batch has changed subjects of a space, whose outboxes are to be delivered.

        Args:
            space: The name of the space.
            subjects: The subjects.
            due_ms: The earliest time at which a task can be claimed that the batch moved, by queue.
        """
        ...


class OwnedHome(Home, Protocol):
    """A handle that its holder closes."""

    def space(self, name: str, *, author: str | None = None) -> Any:
        """Return a space."""
        ...

    async def close(self) -> None:
        """Release the store."""
        ...


class Executor(ABC):
    """Runs the work of the parts of one space.

    Attributes:
        name: The name of the space.
        stored_name: The name of the space in the store, which includes the tenant.
        author: The author of the writes, or None.
        message: The message of the writes; empty if the caller gave none.
        meta: Notes on the commits that the writes become.
        record: Whether changes of documents are to be recorded in the history.
        runner: The runner of the handle's mode.
        clock: Time and randomness of this process.
        gathers: Whether all work joins one batch, as in a transaction.
        operation: The operation that all work is part of, if a transaction is observed.
    """

    gathers: ClassVar[bool] = False
    operation: Operation | None = None

    def __init__(
        self,
        home: Home,
        name: str,
        author: str | None,
        *,
        message: str = "",
        record: bool = False,
        meta: Mapping[str, str] | None = None,
    ) -> None:
        self.home, self.name, self.author = home, name, author
        self.message, self.record, self.meta = message, record, dict(meta or {})
        self.stored_name = stored_name(home.tenant_id, name)
        self._needs_grant = needs_grant(self.stored_name)
        self.runner, self.clock = home.runner, home.clock
        self._pickle, self._decode = home.pickle, home.decode

    def meta_of(self, meta: Mapping[str, str] | None) -> dict[str, str]:
        """Return the notes on a commit: from the handle, then from the space, then from the call.

        Raises:
            InvalidError: They are not texts, or too long together.
        """
        make = self.home.meta
        if make is None and not self.meta and meta is None:
            return {}
        return check_meta({**(check_meta(make()) if make else {}), **self.meta, **check_meta(meta)})

    def traceparent(self) -> str | None:
        """Return the place in a trace that writes belong to, by the notes on them; None without one."""
        return self.meta_of(None).get(TRACEPARENT)

    def encode(self, value: object, key: bytes) -> bytes:
        """Encode a value for storing under a key. For stamped writes, `key` excludes the stamp."""
        pickle = self._pickle
        return codec.encode(value) if pickle is None else pickle.encode(value, self._bound_key(key))

    def decode(self, encoded: bytes, key: bytes, type: Any = None) -> Any:
        """Decode a value that is stored under a key."""
        if self._pickle is None:
            return self._decode(encoded, type)
        return self._pickle.decode(encoded, self._bound_key(key), type)

    def rebind(self, encoded: bytes, key: bytes, other: bytes) -> bytes:
        """Return an encoded value that is stored under a key, for storing under another one."""
        if self._pickle is None:
            return encoded
        return self.encode(self.decode(encoded, key), other)

    def _bound_key(self, key: bytes) -> bytes:
        return pack(self.stored_name) + key

    @abstractmethod
    async def run(
        self,
        work: Callable[[Unit], Awaitable[T]],
        *,
        attempts: int | None = ATTEMPTS,
        supposes: bool = False,
    ) -> tuple[T, int]:
        """Run work, and return its result and the revision of its batch.

        The revision is 0 if nothing was written, and inside a transaction, which does not have one yet.

        Args:
            work: A function of the unit.
            attempts: The largest number of attempts; see `retry`.
            supposes: Whether the work is first tried on what this process knows of the space, and then costs
                one round trip. Work that only reads gains nothing, nor does a store that only this process
                has open. A caller's transaction never supposes.
        """

    def remember(self, unit: Unit) -> None:  # noqa: B027 - a transaction remembers nothing
        """Keep the entries that a unit has read, for later work that supposes."""

    async def read_once(self, key: bytes) -> tuple[Entry, bytes] | None:
        """Return an entry and its complete value, or None if it does not exist."""

        async def work(unit: Unit) -> tuple[Entry, bytes] | None:
            entry = await unit.get(key)
            return None if entry is None else (entry, await unit.value(entry))

        return (await self.run(work))[0]

    @abstractmethod
    async def serialized(self, key: bytes, work: Callable[[Unit], Awaitable[T]]) -> tuple[T, int]:
        """Run work after earlier calls of this process for the same key, and retry it until it succeeds.

        Use it for operations whose caller cannot retry, such as `update`. Contention only makes them slower.
        """

    @abstractmethod
    def scan(
        self,
        prefix: bytes,
        *,
        after: bytes | None = None,
        before: bytes | None = None,
        reverse: bool = False,
        at_once: int | None = None,
    ) -> AsyncIterator[tuple[Unit, Entry]]:
        """Yield the entries under a prefix in order, each with the unit that read it; see `Unit.scan`.

        Inside a transaction, all entries are of one revision and include the transaction's own writes. The
        transaction then commits only if the space is still at that revision. Outside, each page has a
        revision of its own: the unit's `scanned_at`.
        """

    @abstractmethod
    def require_outside_transaction(self, what: str) -> None:
        """Raise `InvalidError` inside a transaction, for operations that take effect immediately."""

    def appended(self, prefix: bytes) -> list[bytes]:
        """Return the values that the current transaction has appended under exactly this prefix."""
        return []

    @abstractmethod
    def on_rollback(self, undo: Callable[[], None]) -> None:
        """Register a function that undoes in-memory effects if the transaction is not applied."""

    def appended_under(self, prefix: bytes) -> list[bytes]:
        """Return the values that the current transaction has appended under keys with this prefix."""
        return []

    async def apply(self, unit: Unit) -> Applied | None:
        """Apply a unit, together with a history commit if it changes documents of a recorded space.

        Raises:
            ConflictError: An entry that the unit read or checks has changed. Nothing was applied.
        """
        if unit.document_writes:
            applied = await self.home.recorder(self.stored_name).commit(self, unit)
        else:
            applied = await unit.commit()
        if unit.subjects and applied is not None:
            self.home.note_subjects(self.name, unit.subjects, unit.due_ms)
        return applied

    async def retry(
        self,
        once: Callable[[], Awaitable[T]],
        attempts: int | None,
        *,
        lost: int = 0,
        advice: str = "try again later",
    ) -> T:
        """Call `once` until there is no conflict.

        Args:
            once: The function to call.
            attempts: The largest number of calls. None gives up only after 1,000 calls and 60 seconds.
            lost: The number of calls that were made before.
            advice: Advice for the error, in addition to reducing the number of concurrent writers.
        """
        attempt, since_s = lost, self.clock.monotonic_s() if attempts is None else 0.0
        began_in = life_at(await self.store(), self.stored_name) if self._needs_grant else None
        while True:
            attempt += 1
            try:
                return await once()
            except ConflictError as conflict:
                if not conflict.retryable or attempts == 1:
                    raise
                if began_in is not None:
                    require_life(self.stored_name, began_in, life_at(await self.store(), self.stored_name))
                if self._is_enough(attempt, attempts, since_s):
                    raise AttemptsExhaustedError(
                        f"space {self.name!r} had {attempt} conflicts in a row. Reduce the number of "
                        f"concurrent writers, or {advice}. The last conflict: {conflict}",
                        attempts=attempt,
                    ) from conflict
            # The first retry is immediate, because most conflicts are over when they are reported.
            # After that, an old caller pauses less than new ones, which would otherwise overtake it forever.
            if attempt > 1:
                longest_s = min(_FIRST_PAUSE_S * 2 ** min(attempt, 10), _SHARED_PAUSE_S / attempt)
                await self.runner.sleep(longest_s * self.clock.spread())

    def _is_enough(self, attempt: int, attempts: int | None, since_s: float) -> bool:
        if attempts is not None:
            return attempt >= attempts
        return attempt >= _HOPELESS_ATTEMPTS and self.clock.monotonic_s() - since_s >= _HOPELESS_S

    async def store(self) -> Store:
        """Return the opened store."""
        return await self.home.opened()

    async def loss_detector(self) -> LossDetector:
        """Return a detector of history that the space loses from now on."""
        return self._losses(await self.store())

    def _losses(self, store: Store) -> LossDetector:
        return LossDetector(store, self.stored_name, self.name)

    def begin_operation(self, name: str, of: object) -> tuple[Observation, Operation]:
        """Begin an operation of one of the parts, on an observed handle."""
        observation = self.home.observation
        assert observation is not None
        return observation, observation.begin(
            name, self.name, self.home.tenant_id, self.author, parent=self.operation, of=of
        )

    def reject_coroutine(self, function: Callable[..., Any]) -> None:
        """Raise `InvalidError` unless this is a function; in blocking mode, also for a coroutine function."""
        if self.runner.mode == "blocking" or not callable(function):
            reject_coroutine_function(function)


class SpaceExecutor(Executor):
    """Commits each piece of work as a batch of its own."""

    async def run(
        self,
        work: Callable[[Unit], Awaitable[T]],
        *,
        attempts: int | None = ATTEMPTS,
        supposes: bool = False,
    ) -> tuple[T, int]:
        """Run work, and return its result and the revision of its batch; 0 if it wrote nothing."""
        store = await self.home.opened()
        if self._needs_grant:
            await learn_life(store, self.stored_name)

        async def attempt(unit: Unit) -> tuple[T, int]:
            answer = await work(unit)
            applied = await self.apply(unit)
            return answer, applied.revision if applied is not None and unit.writes else 0

        learns = may_suppose = supposes and store.capabilities.shared

        async def once() -> tuple[T, int]:
            nonlocal may_suppose
            if may_suppose:
                may_suppose = False  # only the first attempt supposes
                if (done := await self.try_supposing(attempt)) is not None:
                    return done
            unit = Unit(store, self.stored_name, self.name)
            unit.is_learned = learns
            done = await attempt(unit)
            if learns:
                self.learn(unit)
            return done

        return await self.retry(once, attempts)

    async def try_supposing(
        self, attempt: Callable[[Unit], Awaitable[T]], purpose: str | None = None
    ) -> T | None:
        """Run work on the entries that this process knows, without reading them, and apply it.

        No answer, no error and no decision to write nothing comes from a supposition: an error is raised only
        if a read confirms all that was supposed. A batch whose outcome is unknown is not repeated.

        Args:
            attempt: Runs the work on a unit and applies it. Its result is not None.
            purpose: What the unit does.

        Returns:
            The result; None if the work must run on real reads.
        """
        unit = Unit(await self.home.opened(), self.stored_name, self.name, purpose=purpose)
        known = cache_of(unit.store).part(KnownEntries)
        supposed = known.to_suppose(self.stored_name, unit.losses.known, self.clock.monotonic_s())
        if supposed is None:
            return None
        unit.suppose(supposed)
        unit.is_learned = True
        try:
            answer = await attempt(unit)
        except ConflictError:
            known.refuse(self.stored_name)
            if unit.is_supposing:
                return None
            raise
        except BaseException as error:
            if _is_final(error) or (unit.is_sent and not isinstance(error, InvalidError)):
                known.forget(self.stored_name)  # the batch may have been applied
                raise
            # What raises over entries that are still there would raise again. So no function of the caller
            # runs twice without need, and no exception of a signal handler is taken for one of its own.
            if unit.is_supposing and (isinstance(error, NotWrittenError) or not await unit.still_holds()):
                return None
            raise
        self.learn(unit)
        return answer

    def learn(self, unit: Unit) -> None:
        """Keep the entries that an applied unit has left, for later work that supposes."""
        if unit.applied is not None and unit.is_learned:
            known, entries = cache_of(unit.store).part(KnownEntries), unit.outcome(unit.applied.revision)
            now_s = self.clock.monotonic_s()
            known.learn(self.stored_name, unit.losses.known, entries, unit.applied.now_ms, now_s)
            known.drop(self.stored_name, unit.written(b"").keys() - entries.keys())

    def remember(self, unit: Unit) -> None:
        """Keep the entries that a unit has read, for later work that supposes."""
        if unit.revision is not None and not unit.writes and unit.store.capabilities.shared:
            known, entries = cache_of(unit.store).part(KnownEntries), unit.outcome(unit.revision)
            now_s = self.clock.monotonic_s()
            known.learn(self.stored_name, unit.losses.known, entries, unit.known_now_ms, now_s)

    async def read_once(self, key: bytes) -> tuple[Entry, bytes] | None:
        """Return an entry and its complete value, without a unit: one read has nothing to check.

        Only if a large value is replaced while its parts are read, the read is retried as a unit.
        """
        store = await self.home.opened()
        losses = self._losses(store) if has_ability(type(store), DetectsLosses) else None
        entry = (await store.read(self.stored_name, (key,))).entries[0]
        if losses is not None:
            losses.verify()
        if entry is None:
            return None
        if not entry.value.startswith(MANIFEST_BYTE):
            return entry, entry.value
        try:
            return entry, await read_whole(store, self.stored_name, entry)
        except ConflictError:
            return await super().read_once(key)

    async def serialized(self, key: bytes, work: Callable[[Unit], Awaitable[T]]) -> tuple[T, int]:
        """Run work after earlier calls of this process for the same key, and retry it until it succeeds."""
        return await self.in_turn(key, lambda: self.run(work, attempts=None, supposes=True))

    async def in_turn(self, key: bytes, work: Callable[[], Awaitable[T]]) -> T:
        """Run work after earlier work of this process for the same key."""
        return await serialized(await self.home.opened(), self.stored_name, key, self.runner, work)

    async def scan(
        self,
        prefix: bytes,
        *,
        after: bytes | None = None,
        before: bytes | None = None,
        reverse: bool = False,
        at_once: int | None = None,
    ) -> AsyncIterator[tuple[Unit, Entry]]:
        """Yield the entries under a prefix in order. Each page has a revision of its own."""
        store = await self.home.opened()
        start, end = (before, after) if reverse else (after, before)
        while True:
            page = await store.scan(
                self.stored_name, prefix, after=start, limit=at_once or SCAN_LIMIT, reverse=reverse
            )
            unit = Unit(store, self.stored_name, self.name)
            unit.scanned_at = Mark(page.revision, page.nonce)
            for entry in page.entries:
                if end is not None and (entry.key <= end if reverse else entry.key >= end):
                    return
                yield unit, entry
            if page.next is None:
                return
            start = page.next

    def require_outside_transaction(self, what: str) -> None:
        """Do nothing, because this is not a transaction."""

    def on_rollback(self, undo: Callable[[], None]) -> None:
        """Do nothing, because the work is already applied."""


def _is_final(error: BaseException) -> bool:
    """Return whether an error ends a call whatever it has read."""
    if isinstance(error, NotAllowedError):
        return error.tenant is not None  # the tenant was erased meanwhile
    return isinstance(error, (*_INTERRUPTS, cancelled_error()))


def reject_coroutine_function(function: Callable[..., Any]) -> None:
    """Raise `InvalidError` unless this is a plain function."""
    if not callable(function):
        raise InvalidError(f"{function!r} cannot be called; give a function")
    if is_coroutine_function(function):
        raise InvalidError(f"{function!r} is a coroutine function; blocking mode needs a plain function")


def is_coroutine_function(function: Callable[..., Any]) -> bool:
    """Return whether a function, or a callable object, is a coroutine function."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


async def call_function(function: Callable[..., Any], *args: Any) -> Any:
    """Call the caller's function, await its result if necessary, and return the result."""
    answer = function(*args)
    return await answer if inspect.isawaitable(answer) else answer
