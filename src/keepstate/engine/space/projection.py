"""A projection: what the events of a stream come to, kept in documents, each event counted exactly once.

How far it has come is a cursor that changes in the batch of what it wrote: killed at any moment, it goes on
with the next event. Any number of processes may run the same one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from keepstate._runner import Mode
from keepstate.engine.documents.documents import Documents
from keepstate.engine.events.events import EventStream
from keepstate.engine.events.record import Cursor, Event
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.arguments import check_name, require_instance
from keepstate.engine.kernel.executor import ATTEMPTS, Executor, SpaceExecutor, call_function
from keepstate.engine.kernel.store_abilities import listen
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.space.space import Transaction, begin_transaction
from keepstate.errors import InvalidError, UnsupportedError
from keepstate.values import limits

_LONGEST_WAIT_S = 5.0
_CLEARED_BY_BATCH = 500
_SELDOM = 16


class Projection:
    """Applies each event of a stream once, to documents of the same space.

    Args:
        stream: The stream.
        name: What its cursor is called; at most 100 bytes of UTF-8.
        apply: Called with a transaction and an event; what it writes by the transaction and the cursor are
            one batch. It may be called again for the same event, if that batch met a conflict.
        documents: The names of what it writes, as for `Documents.keys`: all of this is removed when it begins
            anew, and nothing else should write there.
        version: Goes up when `apply` does something else: the next `run` begins anew, and from then on one
            of a lower version is refused.

    Attributes:
        name: What its cursor is called.
    """

    name: str

    def __init__(
        self,
        stream: EventStream,
        name: str,
        apply: Callable[[Transaction, Event], Awaitable[None] | None],
        *,
        documents: str,
        version: int = 1,
        _mode: Mode = "async",
    ) -> None:
        require_instance("stream", stream, EventStream)
        executor = stream.executor
        executor.require_outside_transaction("projecting a stream")
        assert isinstance(executor, SpaceExecutor)
        if executor.runner.mode != _mode:
            raise InvalidError(f"{stream!r} is {executor.runner.mode}, and the projection is {_mode}")
        executor.reject_coroutine(apply)
        if len(check_name("name", name).encode()) > limits.SPACE_BYTES // 2:
            raise InvalidError(f"`name` is {name!r}; it has at most {limits.SPACE_BYTES // 2} bytes of UTF-8")
        check_name("documents", documents)
        limits.admit_count("version", version)
        self._stream, self._executor, self.name, self._apply = stream, executor, name, apply
        self._documents, self._version = documents, version
        self._key = layout.cursor_key(stream.name, name)
        self._fitting = _Fitting()

    def __repr__(self) -> str:
        return f"<Projection {self.name!r} of {self._stream!r}>"

    async def number(self) -> int | None:
        """Return the number of the last event that it counted, None if there is none."""
        return (await self._cursor()).number

    async def run(self, *, at_once: int = 64) -> int:
        """Apply all events that it has not counted yet, and return how many that were.

        Args:
            at_once: So many events are applied in one batch; fewer, where what they write does not fit one.

        Raises:
            PrunedError: Events that it has not counted were let go.
            UnsupportedError: A projection of a higher version has taken over; nothing was written.
            InvalidError: What it writes of one event does not fit a batch.
        """
        limits.admit_count("at_once", at_once)
        count = 0
        while (done := await self._step(at_once)) is not None:
            count += done
        return count

    async def follow(self, *, at_once: int = 64) -> AsyncIterator[int]:
        """Apply events as they come, and yield how many there were each time; it never ends by itself.

        Raises:
            UnsupportedError: A projection of a higher version has taken over.
        """
        store = await self._executor.store()
        async with listen(store, self._executor.stored_name) as hints:
            while True:
                if (count := await self.run(at_once=at_once)) > 0:
                    yield count
                else:
                    await hints.wait(_LONGEST_WAIT_S)

    async def rebuild(self) -> int:
        """Remove what it has written, applies all events again, and return how many it applied itself.

        A rebuild that was killed goes on with the next `run`, and others that run it meanwhile take part.

        Raises:
            PrunedError: The stream was truncated; nothing was removed.
            UnsupportedError: A projection of a higher version has taken over; nothing was removed.
        """
        await self._own_cursor()
        await self._stream.page(None, 1, whole=True)

        async def begin() -> None:  # from wherever others have taken it meanwhile
            async with begin_transaction(self._executor, message=f"projection {self.name}") as tx:
                await self._own_cursor(tx)
                await self._point(tx, Cursor(None, self._version, is_clearing=True))

        await self._executor.retry(begin, ATTEMPTS)
        return await self.run()

    # ---- its cursor

    async def _cursor(self, tx: Transaction | None = None) -> Cursor:
        async def work(unit: Unit) -> Cursor:
            entry = await unit.get(self._key)
            if entry is None:
                return Cursor(None, self._version)
            return Cursor.of(entry.value, self.name)

        return (await (_executor_of(tx) if tx else self._executor).run(work))[0]

    async def _own_cursor(self, tx: Transaction | None = None) -> Cursor:
        """Return it, unless who takes it for his would undo the work of a newer version."""
        cursor = await self._cursor(tx)
        if cursor.version > self._version:
            raise UnsupportedError(
                f"{self!r} is of version {self._version} here, and version {cursor.version} has taken over; "
                f"deploy that one here too, or do what this one does under version={cursor.version + 1}"
            )
        return cursor

    async def _point(self, tx: Transaction, cursor: Cursor) -> None:
        async def work(unit: Unit) -> None:
            unit.put(self._key, cursor.encoded())

        await _executor_of(tx).run(work)

    async def _move(
        self, seen: Cursor, new: Cursor, body: Callable[[Transaction], Awaitable[Any]] | None = None
    ) -> bool:
        """Do something and move the cursor, in one batch; or nothing, where somebody else has moved it."""

        async def once() -> bool:
            async with begin_transaction(self._executor, message=f"projection {self.name}") as tx:
                if await self._cursor(tx) != seen:
                    return False
                if body is not None:
                    await body(tx)
                await self._point(tx, new)
            return True

        return await self._executor.retry(once, ATTEMPTS)

    async def _step(self, at_once: int) -> int | None:
        """Return how many events it has counted; None where there are no more."""
        cursor = await self._own_cursor()
        if cursor.version != self._version:
            await self._stream.page(None, 1, whole=True)
            await self._move(cursor, Cursor(None, self._version, is_clearing=True))
            return 0
        if cursor.is_clearing:
            return await self._clear(cursor)
        events = await self._stream.page(cursor.number, min(at_once, self._fitting.most), whole=True)
        if not events:
            return None
        is_gathered = False

        async def apply(tx: Transaction) -> None:
            nonlocal is_gathered
            is_gathered = False
            for event in events:
                await call_function(self._apply, tx, event)
            is_gathered = True

        try:
            moved = await self._move(cursor, Cursor(events[-1].number, self._version), apply)
        except InvalidError as error:
            if not is_gathered:  # it is about what `apply` has asked for
                raise
            self._too_many(events, error)
            return 0
        if not moved:
            return 0
        self._fitting.fitted(len(events))
        return len(events)

    def _too_many(self, events: Sequence[Event], error: InvalidError) -> None:
        """Let fewer events be applied at once, for what these have written is no batch."""
        if len(events) == 1:
            raise InvalidError(
                f"what projection {self.name!r} writes of the event at {events[0].number} of stream "
                f"{self._stream.name!r} does not fit one batch: {error}; let `apply` write less"
            ) from error
        self._fitting.burst(len(events))

    async def _clear(self, cursor: Cursor) -> int:
        """Remove some of what it has written; what is left is removed before anything is written again."""
        documents = Documents(self._executor)
        keys: list[str] = []
        async for key in documents.keys(self._documents):
            keys.append(key)
            if len(keys) == _CLEARED_BY_BATCH:
                break

        async def remove(tx: Transaction) -> None:
            for key in keys:
                await tx.documents.delete(key)

        left = len(keys) == _CLEARED_BY_BATCH
        await self._move(cursor, Cursor(None, self._version, is_clearing=left), remove)
        return 0


class _Fitting:
    """How many events fit a batch: half as many where they did not, twice as many where they did.

    Where twice as many never fit, that is tried ever more seldom.

    Attributes:
        most: So many may be tried at once.
    """

    most: int

    def __init__(self) -> None:
        self.most = limits.COUNT
        self._is_trial = False
        self._full = 0
        self._full_before_trial = 1

    def fitted(self, count: int) -> None:
        """Learn that so many have fitted."""
        if count < self.most:
            return
        if self._is_trial:
            self._is_trial, self._full_before_trial = False, 1
        self._full += 1
        if self._full >= self._full_before_trial:
            self.most, self._full, self._is_trial = min(2 * self.most, limits.COUNT), 0, True

    def burst(self, count: int) -> None:
        """Learn that so many have not fitted."""
        if self._is_trial:
            self._full_before_trial = min(2 * self._full_before_trial, _SELDOM)
        self.most, self._full, self._is_trial = count // 2, 0, False


def _executor_of(tx: Transaction) -> Executor:
    return tx.executor
