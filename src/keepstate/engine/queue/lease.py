"""Leases: time-limited locks with fencing tokens.

A lease is an entry with a TTL. Its token is the revision that created the entry, so each holder gets a larger
token. A write that a former holder must not make checks the token in its own batch (`transaction(lease=…)`).
A renewal changes the version of the entry but not its creation, so the token stays valid.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Self

from keepstate._runner import Runner, Signal, present_process
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.arguments import check_duration_ms, check_revision, check_text, check_wait
from keepstate.engine.kernel.executor import Executor
from keepstate.engine.kernel.positions import Page, Positions
from keepstate.engine.kernel.shield import acquire_shielded, finish_despite_cancel
from keepstate.engine.kernel.store_abilities import LossDetector, listen
from keepstate.engine.kernel.stored import corrupt_error, describe, shorten, to_datetime
from keepstate.engine.kernel.unit import Unit
from keepstate.errors import ConflictError, InvalidError, KeepstateError, LeaseLostError
from keepstate.stores.protocol import ABSENT, Entry, Mark
from keepstate.values import codec, limits

_log = logging.getLogger("keepstate.engine")

_SAFE_SHARE = 0.9
"""The share of the TTL for which the holder considers the lease held. The rest allows for clock drift."""
_LONGEST_WAIT_S = 1.0


class Lease:
    """A lease held by this process until it expires. As a context manager, it is released on exit.

    Attributes:
        name: The name of the lease.
        token: The fencing token. Each later holder gets a larger one.
        ttl_s: Seconds from each renewal until the lease expires.
    """

    def __init__(
        self, executor: Executor, name: str, token: int, ttl_s: float, *, since_s: float, losses: LossDetector
    ) -> None:
        self._executor, self._losses = executor, losses
        self.name, self.token = name, token
        self.ttl_s: float = ttl_s
        self._until_s: float = since_s + ttl_s * _SAFE_SHARE
        self._process = present_process()
        self._generation = 0
        """Incremented on release and loss, so that a renewal that began earlier does not revive the lease."""

    def __repr__(self) -> str:
        state = "held" if self.is_held() else "over"
        return f"<Lease {self.name!r} of {self._executor.name!r} token {self.token} {state}>"

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError(
            f"{self!r} cannot be pickled: a lease is held by one process; acquire it where it is needed"
        )

    @property
    def _key(self) -> bytes:
        """The key of the lease's entry."""
        return layout.named_key(layout.LEASES, self.name)

    async def _can_fence(self, executor: Executor) -> bool:
        """Return whether the executor's space is that of the lease: same name, same opened store."""
        same_name = executor.stored_name == self._executor.stored_name
        return same_name and await executor.store() is await self._executor.store()

    def is_held(self) -> bool:
        """Return whether the lease is certainly held, by this machine's clock, without a call to the store.

        After a `HistoryLostError` it returns False, because the store may have lost the lease.
        """
        if self._process != present_process():  # a forked child does not hold the lease
            return False
        return not self._losses.has_lost_history and self._executor.clock.awake_or_asleep_s() < self._until_s

    def _fence(self, unit: Unit) -> None:
        """Make a unit commit only while this lease is held.

        Raises:
            LeaseLostError: The store lost the lease, and its token may now belong to another holder.
        """
        self._require_no_loss(unit)
        unit.check(self._key, created=self.token)

    def _require_no_loss(self, unit: Unit) -> None:
        if self._losses.has_lost_history:
            raise self._lost_error()
        unit.require_no_loss(self._losses)

    async def check(self) -> None:
        """Check in the store that the lease is still held.

        Raises:
            LeaseLostError: The lease expired or was released.
        """

        async def work(unit: Unit) -> None:
            self._require_no_loss(unit)
            entry = await unit.get(self._key)
            if entry is None or entry.created != self.token:
                raise self._lost_error()

        await self._executor.run(work)

    async def renew(self, ttl_s: float | None = None) -> None:
        """Renew the lease for `ttl_s` seconds from now; by default, for its previous TTL.

        Raises:
            LeaseLostError: The lease expired or was released, and another holder may have it.
        """
        ttl_s = self.ttl_s if ttl_s is None else ttl_s
        ttl_ms = check_duration_ms("ttl_s", ttl_s)
        since_s, generation = self._executor.clock.awake_or_asleep_s(), self._generation

        async def work(unit: Unit) -> None:
            self._fence(unit)
            unit.put(self._key, _encode_holder(self._executor, self.name), ttl_ms=ttl_ms)

        try:
            await self._executor.run(work, attempts=1)
        except ConflictError as conflict:
            raise self._lost_error() from conflict
        if self._generation == generation:
            self.ttl_s = ttl_s
            self._until_s = since_s + ttl_s * _SAFE_SHARE

    async def release(self) -> bool:
        """Release the lease, and return whether it was still held."""
        self._end()

        async def work(unit: Unit) -> None:
            self._fence(unit)
            unit.delete(self._key)

        try:
            await finish_despite_cancel(self._executor.runner, lambda: self._executor.run(work, attempts=1))
        except ConflictError:
            return False
        finally:
            self._end()  # again, because a concurrent renewal may have been applied before
        return True

    def _end(self) -> None:
        self._until_s = 0.0
        self._generation += 1

    def _lost_error(self) -> LeaseLostError:
        """Mark the lease as lost, and return the error."""
        self._end()
        return LeaseLostError(
            f"lease {self.name!r} of {self._executor.name!r} (token {self.token}) is no longer held; "
            "stop the work that it protects, and acquire it again",
            space=self._executor.name,
            name=self.name,
            token=self.token,
        )

    def kept_alive(self, also: Callable[[], Awaitable[object]] | None = None) -> Heartbeat:
        """Return a block that renews the lease until it ends, three times per TTL, and releases it then.

        A renewal or release that fails is logged and not raised, because the lease expires by itself, and the
        writes that it fences are then rejected.

        Args:
            also: Called after each renewal.
        """

        async def beat() -> None:
            await self.renew()
            if also is not None:
                await also()

        release = partial(release_logged, self)
        return Heartbeat(self._executor.runner, repr(self), self.ttl_s, beat, release=release)

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
            error.add_note(f"{self!r} could not be released, and will expire by itself: {failure}")


class Heartbeat:
    """Calls a function in the background, three times within a TTL, until it is stopped or an error ends it.

    A context manager that stops at the end of the block. Other errors are logged and not raised, because the
    next call may succeed in time.

    Args:
        runner: Runs the calls.
        what: Description for the log.
        ttl_s: Seconds after which missing calls count as a loss.
        beat: The function.
        ends: The errors after which it is not called again.
        release: Called once it is stopped.
    """

    def __init__(
        self,
        runner: Runner,
        what: str,
        ttl_s: float,
        beat: Callable[[], Awaitable[object]],
        *,
        ends: tuple[type[KeepstateError], ...] = (LeaseLostError,),
        release: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._what, self._every_s, self._beat = what, ttl_s / 3, beat
        self._ends, self._release = ends, release
        self._work = runner.start(self._repeat, f"heartbeat of {what}")

    async def _repeat(self, signal: Signal) -> None:
        while not await signal.wait(self._every_s):
            try:
                await self._beat()
            except self._ends:
                return  # the next write raises it
            except KeepstateError as error:
                _log.warning("A heartbeat of %s failed and will be retried: %s", self._what, error)

    async def stop(self) -> None:
        """Call the function no more, and release what it kept."""
        try:
            await self._work.stop()
        finally:
            if self._release is not None:
                await self._release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


async def release_logged(lease: Lease) -> None:
    """Release a lease, or log why that failed; it then expires by itself."""
    try:
        await lease.release()
    except KeepstateError as error:
        _log.warning("Releasing %r failed; it will expire by itself: %s", lease, error)


async def fence(lease: Lease, executor: Executor, unit: Unit) -> None:
    """Make a unit commit only while the lease is held.

    Raises:
        InvalidError: The lease belongs to another space.
        LeaseLostError: The store lost the lease, and its token may now belong to another holder.
    """
    if not await lease._can_fence(executor):  # pyright: ignore[reportPrivateUsage]
        raise InvalidError(f"{lease!r} belongs to another space and cannot fence writes to {executor.name!r}")
    lease._fence(unit)  # pyright: ignore[reportPrivateUsage]


def lease_lost_error(lease: Lease, conflict: ConflictError) -> LeaseLostError | None:
    """Return a `LeaseLostError` if the conflict is about the lease's entry, otherwise None."""
    return lease._lost_error() if conflict.key == lease._key else None  # pyright: ignore[reportPrivateUsage]


@dataclass(frozen=True, slots=True)
class LeaseInfo:
    """A lease in a listing.

    Attributes:
        name: The name of the lease.
        token: The fencing token of its holder.
        holder: The author that holds it; `unknown` for an unnamed author.
        expires_at: The time at which it expires unless it is renewed, by the store's clock.
    """

    name: str
    token: int
    holder: str
    expires_at: datetime


class Leases:
    """The leases of a space."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def __repr__(self) -> str:
        return f"<Leases of {self._executor.name!r}>"

    async def acquire(self, name: str, ttl_s: float, *, wait_s: float = 0) -> Lease:
        """Acquire a lease.

        Args:
            name: The name of the lease; 1 to 512 bytes of UTF-8.
            ttl_s: Seconds until the lease expires, unless it is renewed.
            wait_s: Seconds to wait while another holder has the lease.

        Raises:
            ConflictError: Another holder has the lease.
        """
        self._executor.require_outside_transaction("acquiring a lease")
        ttl_ms = check_duration_ms("ttl_s", ttl_s)
        check_wait("wait_s", wait_s)
        deadline_s = self._executor.clock.monotonic_s() + wait_s
        held = await self._try_shielded(name, ttl_s, ttl_ms)
        if isinstance(held, Lease):
            return held
        if wait_s <= 0:
            raise held
        # Listen only now, because a subscription costs more than acquiring a free lease.
        async with listen(await self._executor.store(), self._executor.stored_name) as hints:
            while True:
                held = await self._try_shielded(name, ttl_s, ttl_ms)
                if isinstance(held, Lease):
                    return held
                left_s = deadline_s - self._executor.clock.monotonic_s()
                if left_s <= 0:
                    raise held
                await hints.wait(min(left_s, _LONGEST_WAIT_S, await self._expires_in_s(name)))

    async def _try_shielded(self, name: str, ttl_s: float, ttl_ms: int) -> Lease | ConflictError:
        """Try once, detached from the caller. If the caller is cancelled, the lease is released again."""
        return await acquire_shielded(
            self._executor.runner, lambda: self._try(name, ttl_s, ttl_ms), _release_quietly
        )

    async def _try(self, name: str, ttl_s: float, ttl_ms: int) -> Lease | ConflictError:
        key = layout.named_key(layout.LEASES, name)
        since_s = self._executor.clock.awake_or_asleep_s()
        losses = await self._executor.loss_detector()

        async def work(unit: Unit) -> None:
            unit.check(key, version=ABSENT)
            unit.put(key, _encode_holder(self._executor, name), ttl_ms=ttl_ms)

        try:
            _, revision = await self._executor.run(work, attempts=1)
        except ConflictError as conflict:
            holder = await self.holder(name)
            held_error = ConflictError(
                f"lease {name!r} of {self._executor.name!r} is held by "
                f"{shorten(holder or 'another holder')}. Try again later, or pass wait_s=",
                space=self._executor.name,
                key=key,
                actual=conflict.actual,
            )
            held_error.__cause__ = conflict
            return held_error
        return Lease(self._executor, name, revision, ttl_s, since_s=since_s, losses=losses)

    async def resume(self, name: str, token: int, *, ttl_s: float | None = None) -> Lease:
        """Return a lease that this process does not have as an object, by its name and token.

        For a server without state between two calls, and for a process that continues another one's work.

        Args:
            name: The name of the lease.
            token: The fencing token of the holder.
            ttl_s: Renew the lease for this many seconds. By default it keeps its time, and a later `renew`
                uses what is left of it now.

        Raises:
            LeaseLostError: The lease expired or was released, and another holder may have it.
        """
        self._executor.require_outside_transaction("resuming a lease")
        check_revision("token", token)
        if ttl_s is not None:
            check_duration_ms("ttl_s", ttl_s)
        key = layout.named_key(layout.LEASES, name)
        since_s, losses = self._executor.clock.awake_or_asleep_s(), await self._executor.loss_detector()
        store = await self._executor.store()
        reading = await store.read(self._executor.stored_name, [key])
        entry = reading.entries[0]
        left_s = 0.0
        if entry is not None and entry.created == token and entry.expires_at_ms is not None:
            left_s = (entry.expires_at_ms - reading.now_ms) / 1000
        lease = Lease(self._executor, name, token, left_s, since_s=since_s, losses=losses)
        if left_s <= 0:
            raise lease._lost_error()  # pyright: ignore[reportPrivateUsage]
        if ttl_s is not None:
            await lease.renew(ttl_s)
        return lease

    async def held(
        self, prefix: str = "", *, after: str | None = None, before: str | None = None, limit: int = 100
    ) -> Page[LeaseInfo]:
        """Return one page of the leases that are held, in the order of their names.

        Args:
            prefix: Only names that start with this text.
            after: The `next` of a page of the same listing: continue after that page.
            before: The `previous` of a page of the same listing: go back to the rows before that page.
            limit: The largest number of leases in the page.

        Raises:
            CompactedError: The log no longer reaches back to the cursor, which cannot be verified.
            HistoryLostError: The store has lost the history that the cursor belongs to.
            InvalidError: The cursor belongs to another space or listing.
        """
        limits.admit_count("limit", limit)
        begin = layout.name_prefix(layout.LEASES, check_text("prefix", prefix))
        positions = Positions(await self._executor.store(), self._executor.stored_name, self._executor.name)
        part = await positions.range_in(begin, begin, after=after, before=before, reverse=False)
        rows, mark = list[tuple[bytes, LeaseInfo]](), Mark(0, b"")
        async for unit, entry in self._executor.scan(
            begin, after=part.after, before=part.before, reverse=part.reverse, at_once=limit + 1
        ):
            info, mark = _info(entry), unit.scanned_at
            if info.name.startswith(prefix):
                rows.append((entry.key, info))
            if len(rows) > limit:
                break
        return positions.page_of(begin, part, limit, rows, mark)

    async def holder(self, name: str) -> str | None:
        """Return the author that holds a lease, or None if it is free; `unknown` for an unnamed author."""

        async def work(unit: Unit) -> str | None:
            entry = await unit.get(layout.named_key(layout.LEASES, name))
            return None if entry is None else _decode_holder(entry)

        return (await self._executor.run(work))[0]

    async def _expires_in_s(self, name: str) -> float:
        store = await self._executor.store()
        reading = await store.read(self._executor.stored_name, [layout.named_key(layout.LEASES, name)])
        entry = reading.entries[0]
        if entry is None or entry.expires_at_ms is None:
            return 0.0
        return (entry.expires_at_ms - reading.now_ms) / 1000 + 0.001


async def _release_quietly(held: Lease | ConflictError) -> None:
    if isinstance(held, Lease):
        with suppress(KeepstateError):  # otherwise it expires
            await held.release()


def _encode_holder(executor: Executor, name: str) -> bytes:
    key = layout.named_key(layout.LEASES, name)
    return codec.encode([executor.author, name] if layout.is_cut(layout.LEASES, key) else executor.author)


def _decode_holder(entry: Entry) -> str:
    return _decode(entry)[1]


def _decode(entry: Entry) -> tuple[str, str]:
    """Return the name and the holder of a lease. A name that is too long for the key is in the value."""
    author: Any = codec.decode(entry.value)
    if layout.is_cut(layout.LEASES, entry.key):
        match author:
            case [holder, str(name)] if layout.named_key(layout.LEASES, name) == entry.key:
                author = holder
            case _:
                raise corrupt_error(describe(entry.key), "its name does not match its key")
    else:
        name = layout.name_of(layout.LEASES, entry.key)
    if author is not None and type(author) is not str:
        raise corrupt_error(describe(entry.key), "its holder is not a name")
    return name, author or "unknown"


def _info(entry: Entry) -> LeaseInfo:
    name, holder = _decode(entry)
    if entry.expires_at_ms is None:
        raise corrupt_error(describe(entry.key), "a lease must expire")
    return LeaseInfo(name, entry.created, holder, to_datetime(entry.expires_at_ms))
