"""A space: one agent's run, one thread, one session; its parts, and transactions over them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, TypeVar, overload

from keepstate.engine.kernel.arguments import check_attribution
from keepstate.engine.kernel.executor import Home, SpaceExecutor, call_function
from keepstate.engine.kernel.single_use import single_use
from keepstate.engine.kernel.update_lock import serialized
from keepstate.engine.queue.lease import Lease
from keepstate.engine.space.parts import Parts
from keepstate.engine.space.size import SpaceSize, measure
from keepstate.engine.space.transaction import Transaction, gathering
from keepstate.errors import ConflictError, InvalidError
from keepstate.stores.protocol import Applied, Conflict, question, revision_in_token
from keepstate.values import limits

T = TypeVar("T")


class Space(Parts):
    """The unit of atomicity and order: everything in one space can change together.

    Made by `Keepstate.space`, without I/O. Every operation is atomic, and strictly serializable with all
    other operations on the space.

    Attributes:
        name: The name of the space, without its tenant.
        author: The author of writes, or None.
    """

    def __init__(
        self, home: Home, name: str, *, author: str | None = None, message: str = "", record: bool = False
    ) -> None:
        self._own = SpaceExecutor(home, name, author, message=message, record=record)
        super().__init__(self._own)
        self.name, self.author = name, author

    def __repr__(self) -> str:
        return f"<Space {self.name!r} of {self._own.home!r}>"

    def __reduce__(self) -> tuple[object, ...]:
        told = {"author": self.author, "message": self._own.message, "record": self._own.record}
        return _space, (type(self), self._own.home, self.name, told)

    @property
    def executor(self) -> SpaceExecutor:
        """The executor of its parts, for the rooms above the engine."""
        return self._own

    def by(self, author: str | None = None, *, message: str | None = None) -> Space:
        """Return the same space with another author or message. Makes no call to the store.

        Events and commits name the author. Commits of a recorded space contain the message.

        Args:
            author: The author of writes. Default: the author of this space.
            message: The purpose of the writes; at most 64 KiB of UTF-8.
        """
        executor = self._own
        who, text = check_attribution(self.author, author, executor.message, message)
        return Space(self._own.home, self.name, author=who, message=text, record=executor.record)

    @single_use
    async def transaction(
        self, *, lease: Lease | None = None, message: str = ""
    ) -> AsyncGenerator[Transaction]:
        """Collect the operations of the body and apply them as one batch at its end.

        The body runs once. If it raises, nothing is applied.

        Args:
            lease: Apply the batch only if this lease is still held.
            message: The purpose of the transaction, for the commit of a recorded space.

        Raises:
            ConflictError: Something that the body read has changed. Nothing was applied.
            LeaseLostError: The lease is no longer held. Nothing was applied.
        """
        async with gathering(self._own, lease=lease, message=message) as tx:
            yield tx

    @overload
    async def transact(self, fn: Callable[[Transaction], Awaitable[T]], attempts: int = 8) -> T: ...
    @overload
    async def transact(self, fn: Callable[[Transaction], T], attempts: int = 8) -> T: ...
    async def transact(self, fn: Callable[[Transaction], Awaitable[T] | T], attempts: int = 8) -> T:
        """Call `fn(tx)` and apply its operations as one batch; on conflict, call it again with a new `tx`.

        Returns:
            The return value of `fn`.

        Raises:
            AttemptsExhaustedError: Every attempt ended in a conflict. Nothing was applied. Allow more
                attempts, or update a single document, which is retried until it succeeds.
        """
        self._own.reject_coroutine(fn)
        limits.admit_count("attempts", attempts)
        advice = "allow more `attempts`"

        async def once() -> T:
            async with self.transaction() as tx:
                answer: T = await call_function(fn, tx)
            return answer

        try:
            return await once()
        except ConflictError as conflict:
            if not conflict.retryable or attempts == 1:
                raise
            mark = b"transact/" + (conflict.key or b"")  # not a key: documents have turns of their own
        # The conflicting key is known after the first loss: transactions of this process then take turns.
        alone = self._own
        return await serialized(
            await alone.store(),
            alone.stored_name,
            mark,
            alone.runner,
            lambda: alone.retry(once, attempts, lost=1, advice=advice),
        )

    async def size(self) -> SpaceSize:
        """Return the size of the space, by reading all of it. Concurrent writes may or may not be counted."""
        return await measure(await self._own.store(), self._own.stored_name)

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


def _space(kind: type[Space], home: Home, name: str, told: dict[str, Any]) -> Space:
    return kind(home, name, **told)
