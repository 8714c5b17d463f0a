"""Executor of a transaction: work of many calls and tasks becomes one unit.

Invariant: the unit runs one piece of work at a time, and none after the transaction has ended or in another
process than the one that began it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from copy import copy
from typing import ClassVar, TypeVar

from keepstate._runner import Runner, present_process
from keepstate.engine.kernel.executor import Executor
from keepstate.engine.kernel.locks import FifoLock
from keepstate.engine.kernel.recorded import Note
from keepstate.engine.kernel.unit import Unit
from keepstate.errors import ClosedError, InvalidError
from keepstate.stores.protocol import Applied, Entry

T = TypeVar("T")


class TransactionState:
    """The state that all executors of one transaction share, besides its unit.

    Attributes:
        turns: The lock that admits one piece of work at a time.
        is_ended: Whether the transaction rejects further work.
        revision: The revision of the transaction's batch; 0 until it is applied.
        has_token: Whether the caller gave the transaction a token.
        note: The bytes that are stored with the token.
        process: The process that began the transaction.
        rollbacks: Functions to call if the transaction is not applied.
    """

    def __init__(self, runner: Runner) -> None:
        self.turns, self.is_ended, self.revision = FifoLock(runner), False, 0
        self.has_token, self.note = False, b""
        self.process = present_process()
        self.rollbacks: list[Callable[[], None]] = []


class TransactionExecutor(Executor):
    """Adds all work to one unit. Concurrent calls are run one after the other.

    Attributes:
        unit: The unit of the transaction.
        state: The state that this executor shares with all executors of the transaction.
    """

    gathers: ClassVar[bool] = True
    _own_message = ""

    def __init__(self, outer: Executor, unit: Unit, *, message: str = "") -> None:
        super().__init__(
            outer.home,
            outer.name,
            outer.author,
            message=message or outer.message,
            record=outer.record,
            meta=outer.meta,
        )
        self.unit, self.state = unit, TransactionState(outer.runner)

    def by(self, author: str | None, message: str, meta: Mapping[str, str]) -> TransactionExecutor:
        """Return an executor on the same transaction with its own author, message and notes."""
        executor = copy(self)
        executor.author, executor._own_message, executor.meta = author, message, dict(meta)
        return executor

    async def run(
        self,
        work: Callable[[Unit], Awaitable[T]],
        *,
        attempts: int | None = None,
        supposes: bool = False,
    ) -> tuple[T, int]:
        """Run work as part of the transaction, after earlier calls, and return its result."""

        async def joined() -> T:
            self._refuse_ended()
            before = self.unit.document_writes
            answer = await work(self.unit)
            if self.unit.document_writes != before:
                self.unit.notes.append(Note(self.author, self._own_message, self.meta))
            return answer

        return await self.state.turns.run(joined), 0

    async def serialized(self, key: bytes, work: Callable[[Unit], Awaitable[T]]) -> tuple[T, int]:
        """Run work as part of the transaction, which already runs one piece of work at a time."""
        return await self.run(work)

    async def run_exclusively(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run work of several steps, without other work of the transaction between them."""
        return await self.state.turns.run(work)

    async def commit(self) -> Applied | None:
        """Apply the transaction, after the work that is still running in it."""
        return await self.state.turns.run(lambda: self.apply(self.unit))

    async def scan(
        self,
        prefix: bytes,
        *,
        after: bytes | None = None,
        before: bytes | None = None,
        reverse: bool = False,
        at_once: int | None = None,
    ) -> AsyncIterator[tuple[Unit, Entry]]:
        """Yield the entries under a prefix in order, all of one revision, own writes included."""
        entries = self.unit.scan(prefix, after=after, before=before, reverse=reverse, at_once=at_once)

        async def following() -> Entry | None:
            self._refuse_ended()
            return await anext(entries, None)

        while (entry := await self.state.turns.run(following)) is not None:
            yield self.unit, entry

    def appended(self, prefix: bytes) -> list[bytes]:
        """Return the values that the transaction has appended under exactly this prefix."""
        return self.unit.appended(prefix)

    def appended_under(self, prefix: bytes) -> list[bytes]:
        """Return the values that the transaction has appended under keys with this prefix."""
        return self.unit.appended_under(prefix)

    def on_rollback(self, undo: Callable[[], None]) -> None:
        """Register a function to call if the transaction is not applied."""
        self.state.rollbacks.append(undo)

    def roll_back(self) -> None:
        """Undo the in-memory effects of the transaction, the last first, because it was not applied."""
        for undo in reversed(self.state.rollbacks):
            undo()

    def require_outside_transaction(self, what: str) -> None:
        """Raise `InvalidError`, because a transaction may never be applied."""
        raise InvalidError(
            f"{what} takes effect immediately and cannot be part of a transaction; do it outside"
        )

    def _refuse_ended(self) -> None:
        generation, pid = self.state.process
        if generation != present_process()[0]:  # its reads would be answered from memory, not by the store
            raise ClosedError(
                f"the transaction on {self.name!r} was begun in process {pid}; begin one in this process"
            )
        if self.state.is_ended:
            raise ClosedError(f"the transaction on {self.name!r} has ended; begin another one")
