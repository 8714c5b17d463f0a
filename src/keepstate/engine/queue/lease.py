"""Leases: who holds what until when, fenced by a token.

A lease is an entry with a time to live; its token is the revision that created the entry, higher with each
holder. A write that must not come from a former holder checks the token in its own batch
(`transaction(lease=…)`): a renewal changes the entry's version and not its creation, so it does not disturb
the holder.
"""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import Self

from keepstate._runner import present_process
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.executor import Executor
from keepstate.engine.kernel.key_text import describe, shorten
from keepstate.engine.kernel.loss_detector import LossDetector
from keepstate.engine.kernel.notifications import listen
from keepstate.engine.kernel.shield import acquire_shielded, finish_despite_cancel
from keepstate.engine.kernel.stored import corrupt_error
from keepstate.engine.kernel.times import check_duration_ms, check_wait
from keepstate.engine.kernel.unit import Unit
from keepstate.errors import ConflictError, InvalidError, KeepstateError, LeaseLostError
from keepstate.stores.protocol import ABSENT, Entry
from keepstate.values import codec

_SAFE_SHARE = 0.9
"""The share of a lease's time for which its holder believes in it; the rest is for clocks that run
unevenly."""
_LONGEST_WAIT_S = 1.0


class Lease:
    """Something held by this process until its time is up.

    As a context manager it releases itself at the end.

    Attributes:
        name: What is held.
        token: Fences this holder from later ones: each has a higher one.
        ttl_s: How long it is held from each renewal on, in seconds.
    """

    def __init__(
        self, executor: Executor, name: str, token: int, ttl_s: float, *, since_s: float, losses: LossDetector
    ) -> None:
        self._executor, self._losses = executor, losses
        self.name, self.token = name, token
        self.ttl_s: float = ttl_s
        self._until_s: float = since_s + ttl_s * _SAFE_SHARE
        self._process = present_process()
        self._ends = 0
        """How often it was let go or found lost; a renewal that began before that revives nothing."""

    def __repr__(self) -> str:
        state = "held" if self.is_held() else "over"
        return f"<Lease {self.name!r} of {self._executor.name!r} token {self.token} {state}>"

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError(
            f"{self!r} cannot be pickled: a lease is held by one process; acquire it where it is needed"
        )

    @property
    def _key(self) -> bytes:
        """The key of the entry that is the lease."""
        return layout.named_key(layout.LEASES, self.name)

    async def _guards(self, executor: Executor) -> bool:
        """Whether it can fence writes of this scope's space: of the same name in the same opened store."""
        same_name = executor.stored_name == self._executor.stored_name
        return same_name and await executor.store() is await self._executor.store()

    def is_held(self) -> bool:
        """Whether it is certainly still held, by this machine's clock; asks nobody, and waits for nothing.

        Once a call has raised `HistoryLostError` it is not: the store may have forgotten it.
        """
        if self._process != present_process():  # a child of the holder holds nothing
            return False
        return not self._losses.has_lost_history and self._executor.clock.awake_or_asleep_s() < self._until_s

    def _fence(self, unit: Unit) -> None:
        """Let a unit commit only while this lease is held.

        Raises:
            LeaseLostError: The store forgot it; its token may be a stranger's now.
        """
        self._stand(unit)
        unit.check(self._key, created=self.token)

    def _stand(self, unit: Unit) -> None:
        if self._losses.has_lost_history:
            raise self._lost()
        unit.require_no_loss(self._losses)

    async def check(self) -> None:
        """Ask the store whether it is still held.

        Raises:
            LeaseLostError: It ran out, or was released.
        """

        async def work(unit: Unit) -> None:
            self._stand(unit)
            entry = await unit.get(self._key)
            if entry is None or entry.created != self.token:
                raise self._lost()

        await self._executor.run(work)

    async def renew(self, ttl_s: float | None = None) -> None:
        """Hold it for `ttl_s` from now on, or as long as it was acquired for.

        Raises:
            LeaseLostError: It ran out, or was released, and somebody else may hold it.
        """
        ttl_s = self.ttl_s if ttl_s is None else ttl_s
        ttl_ms = check_duration_ms("ttl_s", ttl_s)
        since_s, ends = self._executor.clock.awake_or_asleep_s(), self._ends

        async def work(unit: Unit) -> None:
            self._fence(unit)
            unit.put(self._key, _held_by(self._executor), ttl_ms=ttl_ms)

        try:
            await self._executor.run(work, attempts=1)
        except ConflictError as conflict:
            raise self._lost() from conflict
        if self._ends == ends:
            self.ttl_s = ttl_s
            self._until_s = since_s + ttl_s * _SAFE_SHARE

    async def release(self) -> bool:
        """Let go of it, and return whether it was still held."""
        self._end()

        async def work(unit: Unit) -> None:
            self._fence(unit)
            unit.delete(self._key)

        try:
            await finish_despite_cancel(self._executor.runner, lambda: self._executor.run(work, attempts=1))
        except ConflictError:
            return False
        finally:
            self._end()  # also of a renewal that began meanwhile and was applied before
        return True

    def _end(self) -> None:
        self._until_s = 0.0
        self._ends += 1

    def _lost(self) -> LeaseLostError:
        """Return the error that says so, and stop believing in the lease."""
        self._end()
        return LeaseLostError(
            f"lease {self.name!r} of {self._executor.name!r} (token {self.token}) is no longer held; "
            "stop what it guarded and acquire it again",
            space=self._executor.name,
            name=self.name,
            token=self.token,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.release()
        except KeepstateError as failure:
            if error is None:
                raise
            error.add_note(f"{self!r} was not released, and ends with its time: {failure}")


async def fence(lease: Lease, executor: Executor, unit: Unit) -> None:
    """Let a unit of the scope's space commit only while the lease is held.

    Raises:
        InvalidError: The lease is of another space.
        LeaseLostError: The store forgot it; its token may be a stranger's now.
    """
    if not await lease._guards(executor):  # pyright: ignore[reportPrivateUsage]
        raise InvalidError(f"{lease!r} is of another space and cannot guard {executor.name!r}")
    lease._fence(unit)  # pyright: ignore[reportPrivateUsage]


def loss_in(lease: Lease, conflict: ConflictError) -> LeaseLostError | None:
    """Return the error that says that the lease is lost, if the conflict was about that."""
    return lease._lost() if conflict.key == lease._key else None  # pyright: ignore[reportPrivateUsage]


class Leases:
    """The leases of a space."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def __repr__(self) -> str:
        return f"<Leases of {self._executor.name!r}>"

    async def acquire(self, name: str, ttl_s: float, *, wait_s: float = 0) -> Lease:
        """Return the lease, held from now on.

        Args:
            name: What to hold; 1 to 512 bytes of UTF-8.
            ttl_s: For how long, in seconds, unless it is renewed.
            wait_s: How long to wait for its present holder, in seconds.

        Raises:
            ConflictError: Somebody else holds it.
        """
        self._executor.require_outside_transaction("acquiring a lease")
        ttl_ms = check_duration_ms("ttl_s", ttl_s)
        check_wait("wait_s", wait_s)
        deadline_s = self._executor.clock.monotonic_s() + wait_s
        held = await self._tried(name, ttl_s, ttl_ms)
        if isinstance(held, Lease):
            return held
        if wait_s <= 0:
            raise held
        # Only now, for to hear of changes costs more than a lease that is free.
        async with listen(await self._executor.store(), self._executor.stored_name) as hints:
            while True:
                held = await self._tried(name, ttl_s, ttl_ms)
                if isinstance(held, Lease):
                    return held
                left_s = deadline_s - self._executor.clock.monotonic_s()
                if left_s <= 0:
                    raise held
                await hints.wait(min(left_s, _LONGEST_WAIT_S, await self._free_in_s(name)))

    async def _tried(self, name: str, ttl_s: float, ttl_ms: int) -> Lease | ConflictError:
        """Try once, beside the caller: for who is cancelled it is let go, if it comes to be held."""
        return await acquire_shielded(self._executor.runner, lambda: self._try(name, ttl_s, ttl_ms), _let_go)

    async def _try(self, name: str, ttl_s: float, ttl_ms: int) -> Lease | ConflictError:
        key = layout.named_key(layout.LEASES, name)
        since_s = self._executor.clock.awake_or_asleep_s()
        losses = await self._executor.loss_detector()

        async def work(unit: Unit) -> None:
            unit.check(key, version=ABSENT)
            unit.put(key, _held_by(self._executor), ttl_ms=ttl_ms)

        try:
            _, revision = await self._executor.run(work, attempts=1)
        except ConflictError as conflict:
            holder = await self.holder(name)
            taken = ConflictError(
                f"lease {name!r} of {self._executor.name!r} is held by {shorten(holder or 'another')}; "
                "try later",
                space=self._executor.name,
                key=key,
                actual=conflict.actual,
            )
            taken.__cause__ = conflict
            return taken
        return Lease(self._executor, name, revision, ttl_s, since_s=since_s, losses=losses)

    async def holder(self, name: str) -> str | None:
        """Return who holds it, None if nobody does; unnamed authors are `unknown`."""

        async def work(unit: Unit) -> str | None:
            entry = await unit.get(layout.named_key(layout.LEASES, name))
            return None if entry is None else _holder_in(entry)

        return (await self._executor.run(work))[0]

    async def _free_in_s(self, name: str) -> float:
        store = await self._executor.store()
        reading = await store.read(self._executor.stored_name, [layout.named_key(layout.LEASES, name)])
        entry = reading.entries[0]
        if entry is None or entry.expires_at_ms is None:
            return 0.0
        return (entry.expires_at_ms - reading.now_ms) / 1000 + 0.001


async def _let_go(held: Lease | ConflictError) -> None:
    if isinstance(held, Lease):
        with suppress(KeepstateError):  # its time ends, if later
            await held.release()


def _held_by(executor: Executor) -> bytes:
    return codec.encode(executor.author)


def _holder_in(entry: Entry) -> str:
    author = codec.decode(entry.value)
    if author is not None and type(author) is not str:
        raise corrupt_error(describe(entry.key), "it names no holder")
    return author or "unknown"
