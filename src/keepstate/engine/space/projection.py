"""Projections: documents computed from the events of a stream. Each event is applied exactly once.

The progress of a projection is a cursor, written in the same batch as the documents. A projection that was
killed at any moment continues with the next event. Any number of processes may run the same projection.
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
        name: The name of its cursor; at most 100 bytes of UTF-8.
        apply: A function of a transaction and an event. Its writes and the cursor are one batch. It may be
            called again for the same event if that batch had a conflict.
        documents: A pattern of the names that `apply` writes, as for `Documents.keys`. A rebuild deletes all
            of these documents, so do not let anything else write them.
        version: Increase it when the behavior of `apply` changes. The next `run` then rebuilds the
            documents, and projections of a lower version are rejected.

    Attributes:
        name: The name of its cursor.
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
            raise InvalidError(f"{stream!r} is {executor.runner.mode}, but the projection is {_mode}")
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
        """Return the number of the last applied event, or None."""
        return (await self._cursor()).number

    async def run(self, *, at_once: int = 64) -> int:
        """Apply all new events, and return their number.

        Args:
            at_once: The number of events to apply in one batch; fewer if their writes do not fit into one.

        Raises:
            PrunedError: Events that were not applied yet were truncated.
            UnsupportedError: A projection of a higher version has taken over. Nothing was written.
            InvalidError: The writes of one event do not fit into a batch.
        """
        limits.admit_count("at_once", at_once)
        count = 0
        while (done := await self._step(at_once)) is not None:
            count += done
        return count

    async def follow(self, *, at_once: int = 64) -> AsyncIterator[int]:
        """Apply events as they arrive, and yield their number each time. It never ends by itself.

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
        """Delete the documents, apply all events again, and return the number of events applied here.

        A rebuild that was killed continues with the next `run`. Other processes that run the projection at
        the same time take part.

        Raises:
            PrunedError: The stream was truncated. Nothing was deleted.
            UnsupportedError: A projection of a higher version has taken over. Nothing was deleted.
        """
        await self._own_cursor()
        await self._stream.page(None, 1, whole=True)

        async def begin() -> None:  # from any position, because another process may have moved the cursor
            async with begin_transaction(self._executor, message=f"projection {self.name}") as tx:
                await self._own_cursor(tx)
                await self._point(tx, Cursor(None, self._version, is_clearing=True))

        await self._executor.retry(begin, ATTEMPTS)
        return await self.run()

    # ---- its cursor

    async def _cursor(self, tx: Transaction | None = None) -> Cursor:
        found = await (_executor_of(tx) if tx else self._executor).read_once(self._key)
        return Cursor(None, self._version) if found is None else Cursor.of(found[1], self.name)

    async def _own_cursor(self, tx: Transaction | None = None) -> Cursor:
        """Return the cursor, or raise if a newer version of the projection has moved it."""
        cursor = await self._cursor(tx)
        if cursor.version > self._version:
            raise UnsupportedError(
                f"{self!r} has version {self._version} here, and version {cursor.version} has taken over; "
                f"deploy that version here too, or pass version={cursor.version + 1}"
            )
        return cursor

    async def _point(self, tx: Transaction, cursor: Cursor) -> None:
        async def work(unit: Unit) -> None:
            unit.put(self._key, cursor.encoded())

        await _executor_of(tx).run(work)

    async def _move(
        self, seen: Cursor, new: Cursor, body: Callable[[Transaction], Awaitable[Any]] | None = None
    ) -> bool:
        """Run the body and move the cursor in one batch. Return False if another process has moved it."""

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
        """Apply the next events, and return their number; None if there are no more."""
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
            if not is_gathered:  # the error is one of `apply` itself
                raise
            self._too_many(events, error)
            return 0
        if not moved:
            return 0
        self._fitting.fitted(len(events))
        return len(events)

    def _too_many(self, events: Sequence[Event], error: InvalidError) -> None:
        """Reduce the number of events in a batch, because the writes of these did not fit into one."""
        if len(events) == 1:
            raise InvalidError(
                f"the writes of projection {self.name!r} for event {events[0].number} of stream "
                f"{self._stream.name!r} do not fit into one batch: {error}; let `apply` write less"
            ) from error
        self._fitting.burst(len(events))

    async def _clear(self, cursor: Cursor) -> int:
        """Delete a batch of the documents. All are deleted before any is written again."""
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
    """The number of events to try in one batch: halved after a failure, doubled after a success.

    If doubling never succeeds, it is tried less and less often.

    Attributes:
        most: The largest number of events to try.
    """

    most: int

    def __init__(self) -> None:
        self.most = limits.COUNT
        self._is_trial = False
        self._full = 0
        self._full_before_trial = 1

    def fitted(self, count: int) -> None:
        """Record that a batch of this many events was applied."""
        if count < self.most:
            return
        if self._is_trial:
            self._is_trial, self._full_before_trial = False, 1
        self._full += 1
        if self._full >= self._full_before_trial:
            self.most, self._full, self._is_trial = min(2 * self.most, limits.COUNT), 0, True

    def burst(self, count: int) -> None:
        """Record that the writes of this many events did not fit into a batch."""
        if self._is_trial:
            self._full_before_trial = min(2 * self._full_before_trial, _SELDOM)
        self.most, self._full, self._is_trial = count // 2, 0, False


def _executor_of(tx: Transaction) -> Executor:
    return tx.executor
