"""Where the parts of a space work: alone, or inside a transaction.

A part gives its work as a function of a `Unit`. A `SpaceExecutor` runs it as a batch of its own and repeats
it on conflict; a `TransactionExecutor` lets it join the batch that the transaction is gathering.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from keepstate._clock import Clock
from keepstate._runner import Runner, present_process
from keepstate.engine.kernel.fifo_lock import FifoLock
from keepstate.engine.kernel.loss_detector import LossDetector
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.kernel.update_lock import serialized
from keepstate.errors import AttemptsExhaustedError, ClosedError, ConflictError, InvalidError
from keepstate.names import stored_name
from keepstate.stores.protocol import Applied, Entry, Mark, Store
from keepstate.values import codec
from keepstate.values.codec import Codec
from keepstate.values.key import pack

if TYPE_CHECKING:
    from keepstate.values.pickles import SignedPickle

T = TypeVar("T")

ATTEMPTS = 64
"""How often one operation of a part is tried when others keep changing what it works on."""

_FIRST_PAUSE_S, _SHARED_PAUSE_S = 0.001, 0.2
_HOPELESS_ATTEMPTS, _HOPELESS_S = 1000, 60.0
"""What is tried until it succeeds has lost so often, and for so long, that something is wrong: a function
that writes what it is asked to change, in a thread of its own."""


class Recorder(Protocol):
    """Commits changes of documents of one space; `engine.recording` has the one that is used."""

    async def commit(self, executor: Executor, unit: Unit) -> Applied | None:
        """Apply a unit that changes documents, with a commit if the space is recorded.

        Raises:
            ConflictError: An entry that the unit had read or checks has changed; nothing was applied.
        """
        ...


class Home(Protocol):
    """What a space asks of the handle that it was made by."""

    tenant_id: str | None

    @property
    def runner(self) -> Runner:
        """Return how the handle's colour waits."""
        ...

    @property
    def clock(self) -> Clock:
        """Time and randomness of this process."""
        ...

    @property
    def pickle(self) -> SignedPickle | None:
        """Return what stores objects of classes that nobody registered, if that was asked for."""
        ...

    @property
    def states(self) -> Codec:
        """Return what encodes and decodes values in histories."""
        ...

    def recorder(self, space: str) -> Recorder:
        """Return what records changes of documents of a space, by its name in the store."""
        ...

    def decode(self, encoded: bytes, type: Any = None) -> Any:
        """Return a stored value, as objects of registered classes or in builtin form."""
        ...

    async def opened(self) -> Store:
        """Return the store, opened on the first call."""
        ...


class Executor(ABC):
    """What a part needs to know of where it works.

    Attributes:
        name: The name of the space.
        stored_name: Its name in the store, which encodes its tenant too.
        author: Who writes, or None.
        message: What is written for, as far as the caller has said so.
        record: Whether the caller wants changes of documents to be recorded.
        runner: How this colour waits.
        clock: Time and randomness of this process.
        gathers: Whether all work joins one batch, as in a transaction.
    """

    gathers: ClassVar[bool] = False

    def __init__(
        self, home: Home, name: str, author: str | None, *, message: str = "", record: bool = False
    ) -> None:
        self.home, self.name, self.author = home, name, author
        self.message, self.record = message, record
        self.stored_name = stored_name(home.tenant_id, name)
        self.runner, self.clock = home.runner, home.clock

    def encode(self, value: object, key: bytes) -> bytes:
        """Return a value as it is stored under a key; without the stamp, if that comes with the write."""
        pickle = self.home.pickle
        return codec.encode(value) if pickle is None else pickle.encode(value, self._place(key))

    def decode(self, encoded: bytes, key: bytes, type: Any = None) -> Any:
        """Return what the caller gets of a value that is stored under a key."""
        pickle = self.home.pickle
        if pickle is None:
            return self.home.decode(encoded, type)
        return pickle.decode(encoded, self._place(key), type)

    def _place(self, key: bytes) -> bytes:
        return pack(self.stored_name) + key

    @abstractmethod
    async def run(
        self, work: Callable[[Unit], Awaitable[T]], *, attempts: int | None = ATTEMPTS
    ) -> tuple[T, int]:
        """Return what the work returned and the revision that it made.

        The revision is 0 where nothing was written, and inside a transaction, which has none yet.
        """

    @abstractmethod
    async def serialized(self, place: bytes, work: Callable[[Unit], Awaitable[T]]) -> tuple[T, int]:
        """Run work after what this process has begun at the same place, and repeats it until it succeeds.

        For what nobody can be told to repeat: others, here or in another process, only make it slower.
        """

    @abstractmethod
    def scan(self, prefix: bytes, *, after: bytes | None = None) -> AsyncIterator[tuple[Unit, Entry]]:
        """Yield the entries under a prefix in order, each with the unit that has read it.

        Inside a transaction they are of one revision, its own writes among them, and the transaction applies
        only if the space has not moved on. Outside each page is of a revision of its own; the unit's
        `scanned_at` tells which.
        """

    @abstractmethod
    def require_outside_transaction(self, what: str) -> None:
        """Raise `InvalidError` inside a transaction, for what cannot wait until that applies."""

    def appended(self, prefix: bytes) -> list[bytes]:
        """Return what a transaction has itself appended under exactly this prefix."""
        return []

    @abstractmethod
    def on_rollback(self, undo: Callable[[], None]) -> None:
        """Let a transaction that does not apply take back what somebody keeps of its work."""

    def appended_under(self, prefix: bytes) -> list[bytes]:
        """Return what a transaction has itself appended under any key that starts with the prefix."""
        return []

    async def apply(self, unit: Unit) -> Applied | None:
        """Apply a unit; if it changes documents of a recorded space, with a commit of theirs.

        Raises:
            ConflictError: What the unit had read or was told to check has changed; nothing was applied.
        """
        if unit.document_writes:
            return await self.home.recorder(self.stored_name).commit(self, unit)
        return await unit.commit()

    async def retry(
        self,
        once: Callable[[], Awaitable[T]],
        attempts: int | None,
        *,
        lost: int = 0,
        advice: str = "try again later",
    ) -> T:
        """Call until there is no conflict, at most so many times; None tries until that is hopeless.

        Args:
            once: What is called.
            attempts: How often it may be.
            lost: How often it was already.
            advice: What to do in the end, beside to let fewer write at once.
        """
        attempt, since_s = lost, self.clock.monotonic_s() if attempts is None else 0.0
        while True:
            attempt += 1
            try:
                return await once()
            except ConflictError as conflict:
                if not conflict.retryable or attempts == 1:
                    raise
                if self._is_enough(attempt, attempts, since_s):
                    raise AttemptsExhaustedError(
                        f"space {self.name!r} had a conflict {attempt} times, the last one: {conflict}; "
                        f"let fewer write at once, or {advice}",
                        attempts=attempt,
                    ) from conflict
            # The first retry goes at once: most conflicts have passed by the time they are told.
            # Then who has lost often pauses less than newcomers, which would else pass it again and again.
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
        """Return the detector of history that the space loses from now on."""
        return LossDetector(await self.store(), self.stored_name, self.name)

    def reject_coroutine(self, function: Callable[..., Any]) -> None:
        """Raise `InvalidError` for what is no function, or one that nobody here could await."""
        if self.runner.mode == "blocking" or not callable(function):
            reject_coroutine_function(function)


class SpaceExecutor(Executor):
    """Each work is a batch of its own."""

    async def run(
        self, work: Callable[[Unit], Awaitable[T]], *, attempts: int | None = ATTEMPTS
    ) -> tuple[T, int]:
        """Return what the work returned and the revision that it made, 0 where it wrote nothing."""
        store = await self.home.opened()

        async def once() -> tuple[T, int]:
            unit = Unit(store, self.stored_name, self.name)
            answer = await work(unit)
            applied = await self.apply(unit)
            return answer, applied.revision if applied is not None and unit.writes else 0

        return await self.retry(once, attempts)

    async def serialized(self, place: bytes, work: Callable[[Unit], Awaitable[T]]) -> tuple[T, int]:
        """Run work after what this process has begun at the same place, and repeats it until it succeeds."""
        store = await self.home.opened()
        return await serialized(
            store, self.stored_name, place, self.runner, lambda: self.run(work, attempts=None)
        )

    async def scan(self, prefix: bytes, *, after: bytes | None = None) -> AsyncIterator[tuple[Unit, Entry]]:
        """Yield the entries under a prefix in order; each page is of a revision of its own."""
        store = await self.home.opened()
        while True:
            page = await store.scan(self.stored_name, prefix, after=after)
            unit = Unit(store, self.stored_name, self.name)
            unit.scanned_at = Mark(page.revision, page.nonce)
            for entry in page.entries:
                yield unit, entry
            if page.next is None:
                return
            after = page.next

    def require_outside_transaction(self, what: str) -> None:
        """Allow it: this is no transaction."""

    def on_rollback(self, undo: Callable[[], None]) -> None:
        """Keep nothing: the work has applied."""


class TransactionState:
    """What all who work in one transaction share, beside its unit.

    Attributes:
        turns: Lets them in one by one.
        ended: Whether it takes no more work.
        revision: The one that it made; 0 until then.
        process: Where it was begun.
        rollbacks: What is to be called if it does not apply.
    """

    def __init__(self, runner: Runner) -> None:
        self.turns, self.ended, self.revision = FifoLock(runner), False, 0
        self.process = present_process()
        self.rollbacks: list[Callable[[], None]] = []


class TransactionExecutor(Executor):
    """All work joins one unit, one piece after the other, whoever calls at once."""

    gathers: ClassVar[bool] = True
    _own_message = ""

    def __init__(self, outer: Executor, unit: Unit, *, message: str = "") -> None:
        super().__init__(
            outer.home, outer.name, outer.author, message=message or outer.message, record=outer.record
        )
        self.unit, self._gathering = unit, TransactionState(outer.runner)

    def by(self, author: str | None, message: str) -> TransactionExecutor:
        """Return where somebody works in the same transaction, and say what for."""
        executor = TransactionExecutor(self, self.unit)
        executor.author, executor._own_message, executor._gathering = author, message, self._gathering
        return executor

    @property
    def ended(self) -> bool:
        """Whether it takes no more work."""
        return self._gathering.ended

    def end(self) -> None:
        """Take no more work."""
        self._gathering.ended = True

    @property
    def revision(self) -> int:
        """The revision that the transaction made; 0 until then."""
        return self._gathering.revision

    def applied_at(self, revision: int) -> None:
        """Note which revision the transaction made."""
        self._gathering.revision = revision

    async def run(
        self, work: Callable[[Unit], Awaitable[T]], *, attempts: int | None = None
    ) -> tuple[T, int]:
        """Let the work join the transaction when its turn comes, and return what it returned."""

        async def joined() -> T:
            self._refuse_ended()
            before = self.unit.document_writes
            answer = await work(self.unit)
            if self.unit.document_writes != before:
                self.unit.notes.append((self.author, self._own_message))
            return answer

        return await self._gathering.turns.run(joined), 0

    async def serialized(self, place: bytes, work: Callable[[Unit], Awaitable[T]]) -> tuple[T, int]:
        """Let the work join the transaction, whose own turn it has."""
        return await self.run(work)

    async def run_exclusively(self, work: Callable[[], Awaitable[T]]) -> T:
        """Return what work of several steps returned; nobody else who joins comes between them."""
        return await self._gathering.turns.run(work)

    async def commit(self) -> Applied | None:
        """Apply the transaction, after the work that is still joining it."""
        return await self._gathering.turns.run(lambda: self.apply(self.unit))

    async def scan(self, prefix: bytes, *, after: bytes | None = None) -> AsyncIterator[tuple[Unit, Entry]]:
        """Yield the entries under a prefix in order, of one revision, own writes among them."""
        entries = self.unit.scan(prefix, after=after)

        async def following() -> Entry | None:
            self._refuse_ended()
            return await anext(entries, None)

        while (entry := await self._gathering.turns.run(following)) is not None:
            yield self.unit, entry

    def appended(self, prefix: bytes) -> list[bytes]:
        """Return what the transaction has itself appended under exactly this prefix."""
        return self.unit.appended(prefix)

    def appended_under(self, prefix: bytes) -> list[bytes]:
        """Return what the transaction has itself appended under any key that starts with the prefix."""
        return self.unit.appended_under(prefix)

    def on_rollback(self, undo: Callable[[], None]) -> None:
        """Call this if the transaction does not apply."""
        self._gathering.rollbacks.append(undo)

    def roll_back(self) -> None:
        """Take back what is kept of the transaction's work, the last first: it has not applied."""
        for undo in reversed(self._gathering.rollbacks):
            undo()

    def require_outside_transaction(self, what: str) -> None:
        """Raise: what acts at once has no place in a batch that may never apply."""
        raise InvalidError(f"{what} acts at once and cannot be part of a transaction; do it outside")

    def _refuse_ended(self) -> None:
        generation, pid = self._gathering.process
        if generation != present_process()[0]:  # what it has read would be answered without asking the store
            raise ClosedError(
                f"the transaction on {self.name!r} was opened in process {pid}; open it in this process"
            )
        if self.ended:
            raise ClosedError(f"the transaction on {self.name!r} has ended; begin another")


def reject_coroutine_function(function: Callable[..., Any]) -> None:
    """Raise `InvalidError` for what is no plain function."""
    if not callable(function):
        raise InvalidError(f"{function!r} cannot be called; give a function")
    if is_coroutine_function(function):
        raise InvalidError(f"{function!r} is a coroutine function; in blocking use give a plain function")


def is_coroutine_function(function: Callable[..., Any]) -> bool:
    """Whether what is called must be awaited; also of an object that can be called."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


async def call_function(function: Callable[..., Any], *args: Any) -> Any:
    """Return what the caller's function returns, awaited if it is a coroutine function."""
    answer = function(*args)
    return await answer if inspect.isawaitable(answer) else answer
