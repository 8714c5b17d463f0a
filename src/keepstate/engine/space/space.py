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
    """The unit of atomicity and order: what is in one space can change together.

    Made by `Keepstate.space`; making one does no I/O. Every operation is atomic, and strictly serializable
    with all others on the space.

    Attributes:
        name: Its name, without its tenant.
        author: Who writes, or None.
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
        """Return the scope that its parts work in."""
        return self._own

    def by(self, author: str | None = None, *, message: str | None = None) -> Space:
        """Return the same space for one who writes there; asks the store nothing.

        Events, commits and what is recorded name the author; what is recorded tells the message.

        Args:
            author: Who writes; without it, who writes here.
            message: What for; at most 64 KiB of UTF-8.
        """
        executor = self._own
        who, text = check_attribution(self.author, author, executor.message, message)
        return Space(self._own.home, self.name, author=who, message=text, record=executor.record)

    @single_use
    async def transaction(
        self, *, lease: Lease | None = None, message: str = ""
    ) -> AsyncGenerator[Transaction]:
        """Gather what its body does and apply it as one batch at the end.

        The body runs once; if it raises, nothing is applied.

        Args:
            lease: Applies only while this lease is held.
            message: Says what the transaction is for; what is recorded of it tells so.

        Raises:
            ConflictError: What the body had read has changed; nothing was applied.
            LeaseLostError: The lease is no longer held; nothing was applied.
        """
        async with gathering(self._own, lease=lease, message=message) as tx:
            yield tx

    @overload
    async def transact(self, fn: Callable[[Transaction], Awaitable[T]], attempts: int = 8) -> T: ...
    @overload
    async def transact(self, fn: Callable[[Transaction], T], attempts: int = 8) -> T: ...
    async def transact(self, fn: Callable[[Transaction], Awaitable[T] | T], attempts: int = 8) -> T:
        """Call `fn(tx)` and apply what it did as one batch; on conflict calls it again, with another `tx`.

        Returns:
            What `fn` returned.

        Raises:
            AttemptsExhaustedError: Every attempt ended in a conflict; nothing was applied. What must not be
                refused for that asks for more attempts, or is an update of one document.
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
            mark = b"transact/" + (conflict.key or b"")  # no key begins so: documents take turns of their own
        # What a transaction changes is known when it has lost: those of this process then come in turn.
        alone = self._own
        return await serialized(
            await alone.store(),
            alone.stored_name,
            mark,
            alone.runner,
            lambda: alone.retry(once, attempts, lost=1, advice=advice),
        )

    async def size(self) -> SpaceSize:
        """Return how much the space holds, by reading it; what comes meanwhile may be counted or not."""
        return await measure(await self._own.store(), self._own.stored_name)

    async def revision(self) -> int:
        """Return how many batches the space has seen."""
        store = await self._own.store()
        return (await store.read(self._own.stored_name, [])).revision

    async def outcome(self, token: bytes) -> int | None:
        """Settle a batch whose outcome was unknown.

        Returns:
            The revision at which it applied; None if it did not apply, and from now on never will.

        Raises:
            OutcomeUnknownError: The log no longer reaches back to it.
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
