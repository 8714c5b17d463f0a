"""The work of one client of the chaos: an endless mixture of all operations of a space.

A client belongs to a worker and works on one space after the other. After a fixed number of revisions all
clients move to the next space, so each space's log is whole when it is judged. Some clients that are tasks
cancel an action, and its answer counts as not received.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from keepstate._runner import Runner
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space
from keepstate.errors import (
    AttemptsExhaustedError,
    ConflictError,
    HistoryLostError,
    StoreUnavailableError,
)
from keepstate.stores.protocol import Applied, Batch, Check, Conflict, Delete, Put, Write
from keepstate.values.key import BY_KEY, WITH_VALUES, stored_key
from keepstate_testing.proof.bookings import book
from keepstate_testing.proof.recorded_store import RecordedStore
from keepstate_testing.proof.recorder import Recorder

SPACE_REVISIONS: Final = 4_000
"""Revisions after which the clients move to the next space; less than half of a log's limit."""

COUNTER: Final = "count"
DONE: Final = "done"
GUARDED: Final = "guarded"
LEASE: Final = "baton"
ACCOUNTS: Final = tuple(f"account/{number}" for number in range(6))
FIRST_BALANCE: Final = 100

HOT: Final = tuple(stored_key(BY_KEY + number % 2, "hot", number) for number in range(8))
_STAMPED: Final = stored_key(BY_KEY, "stamped")
_FLEETING: Final = tuple(stored_key(BY_KEY, "fleeting", number) for number in range(4))
_SECTION: Final = stored_key(WITH_VALUES, "hot")
_TTL_MS: Final = (20, 400)
_LEASE_S: Final = (0.05, 0.4)
_BOOKING_S: Final = (0.01, 0.03)
_PAUSE_S: Final = 0.02
_IMPATIENT_SHARE: Final = 0.02
_PATIENCE_S: Final = (0.0, 0.02)

Action = Callable[[], Awaitable[None]]


def space_name(number: int) -> str:
    """Return the name of the run's space with this number."""
    return f"chaos/{number}"


def _bookings_name(number: int) -> str:
    """Return the name of the space of the bookings next to the space of the run with this number."""
    return f"bookings/{number}"


class Client:
    """One task or thread of a worker.

    Args:
        ks: A handle on the recorded store.
        store: The recorded store.
        recorder: Records the client's own operations.
        runner: The runner of its mode.
        name: Its name.
        seed: The seed of its choices, together with its name.
        first: The number of the space to begin in.
    """

    def __init__(
        self,
        ks: Keepstate,
        store: RecordedStore,
        recorder: Recorder,
        runner: Runner,
        *,
        name: str,
        seed: int,
        first: int,
    ) -> None:
        self._ks, self._store, self._recorder, self._runner = ks, store, recorder, runner
        self._name, self._random = name, random.Random(f"{seed}/{name}")
        self._tasks = 0
        self._enter(first)
        actions: Sequence[tuple[Action, int]] = (
            (self._look, 30),
            (self._change, 24),
            (self._scan, 8),
            (self._follow, 4),
            (self._append, 4),
            (self._write_fleeting, 4),
            (self._count, 6),
            (self._transfer, 5),
            (self._audit, 2),
            (self._put_task, 4),
            (self._do_task, 4),
            (self._hold, 2),
            (self._book, 2),
            (self._tell, 2),
            (self._sweep, 1),
        )
        self._actions = [action for action, _ in actions]
        self._weights = [weight for _, weight in actions]

    def _enter(self, number: int) -> None:
        self._number = number
        self._space: Space = self._ks.space(space_name(number))
        self._bookings: Space = self._ks.space(_bookings_name(number))
        self._versions: dict[bytes, int] = {}

    async def work(self, is_over: Callable[[], bool]) -> None:
        """Act until it is over."""
        while not is_over():
            if self._store.revisions.get(self._space.name, 0) >= SPACE_REVISIONS:
                self._enter(self._number + 1)
            [action] = self._random.choices(self._actions, self._weights)
            try:
                await self._do(action)
            except (ConflictError, AttemptsExhaustedError):
                continue  # refused, which is written down, or another's turn
            except HistoryLostError as error:
                self._note("history lost", str(error))
            except StoreUnavailableError:
                await self._runner.sleep(_PAUSE_S)

    async def _do(self, action: Action) -> None:
        if self._runner.mode == "blocking" or self._random.random() >= _IMPATIENT_SHARE:
            await action()
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(self._random.uniform(*_PATIENCE_S)):
                await action()

    def _note(self, what: str, about: str = "", number: int = 0) -> None:
        self._recorder.note(self._space.name, what, about, number)

    # ---- the protocol itself

    async def _look(self) -> None:
        keys = self._random.sample(HOT, self._random.randint(1, 4))
        if self._random.random() < 0.2:
            keys += _FLEETING
        reading = await self._store.read(self._space.name, keys)
        for key, entry in zip(keys, reading.entries, strict=True):
            self._versions[key] = entry.version if entry else 0

    async def _change(self) -> None:
        keys = self._random.sample(HOT, self._random.randint(1, 4))
        known = [key for key in keys if key in self._versions]
        checks = [Check(key, version=self._versions[key]) for key in known if self._random.random() < 0.7]
        writes = [self._write(key) for key in keys[: self._random.randint(1, len(keys))]]
        at = None
        if self._random.random() < 0.1:
            at = self._store.revisions.get(self._space.name, 0)
        await self._apply(writes, checks, at)

    def _write(self, key: bytes) -> Write:
        if self._random.random() < 0.15:
            return Delete(key)
        return Put(key, self._value())

    def _value(self) -> bytes:
        return self._random.randbytes(self._random.randint(8, 60))

    async def _apply(self, writes: Sequence[Write], checks: Sequence[Check], at: int | None = None) -> None:
        [outcome] = await self._store.apply([Batch(self._space.name, writes, checks, at)])
        if isinstance(outcome, Applied):
            for write in writes:
                self._versions[write.key] = outcome.revision if isinstance(write, Put) else 0
        elif isinstance(outcome, Conflict):
            if outcome.key is not None:
                self._versions[outcome.key] = outcome.actual
        else:
            raise outcome

    async def _append(self) -> None:
        writes: list[Write] = [Put(_STAMPED, self._value(), stamp=True) for _ in range(2)]
        await self._apply([*writes, self._write(self._random.choice(HOT))], ())

    async def _write_fleeting(self) -> None:
        key = self._random.choice(_FLEETING)
        version = self._versions.get(key, 0)
        checks = [Check(key, version=version)] if self._random.random() < 0.5 else []
        await self._apply([Put(key, self._value(), ttl_ms=self._random.randint(*_TTL_MS))], checks)

    async def _scan(self) -> None:
        prefix = self._random.choice((_SECTION, stored_key(BY_KEY), _FLEETING[0][:-2], _STAMPED))
        await self._store.scan(
            self._space.name, prefix, limit=self._random.randint(1, 40), reverse=self._random.random() < 0.5
        )

    async def _follow(self) -> None:
        known = self._store.revisions.get(self._space.name, 0)
        after = max(known - self._random.randint(0, 40), 0)
        await self._store.changes(self._space.name, after, limit=self._random.randint(1, 60))

    async def _sweep(self) -> None:
        await self._store.sweep(limit=64)

    # ---- documents and events

    async def _count(self) -> None:
        await self._space.documents.update(COUNTER, _plus_one, default=0)
        self._note("counted")

    async def _transfer(self) -> None:
        giver, taker = self._random.sample(ACCOUNTS, 2)
        amount = self._random.randint(1, 9)

        async with self._space.transaction() as tx:
            await tx.documents.update(giver, lambda balance: balance - amount, default=FIRST_BALANCE)
            await tx.documents.update(taker, lambda balance: balance + amount, default=FIRST_BALANCE)

    async def _audit(self) -> None:
        async with self._space.transaction() as tx:
            total = 0
            async for _, balance in tx.documents.items("account/*"):
                total += balance - FIRST_BALANCE
            await tx.documents.put("audit", total)
        if total:
            self._note("unbalanced", number=total)

    async def _tell(self) -> None:
        await self._space.events.append({"by": self._name}, {"value": self._value()})

    # ---- the queue

    async def _put_task(self) -> None:
        self._tasks += 1
        task = f"{self._name}/{self._tasks}"
        delay_s = self._random.choice((0, 0, 0, 0.05))
        await self._space.queue.put(self._value(), id=task, delay_s=delay_s, max_attempts=1_000)
        self._note("put", task)

    async def _do_task(self) -> None:
        for task in await self._space.queue.claim(self._name, lease_s=self._random.uniform(*_LEASE_S)):
            chance = self._random.random()
            if chance < 0.1:
                await task.heartbeat()
            if chance < 0.2:
                await task.fail("chance", retry_in_s=0)
            elif chance < 0.3:
                await task.release()
            else:
                if chance > 0.9:
                    await self._runner.sleep(_LEASE_S[0])
                async with self._space.transaction() as tx:
                    await tx.queue.complete(task)
                    await tx.documents.update(DONE, _plus_one, default=0)
                self._note("completed", task.id, task.token)

    # ---- leases

    async def _hold(self) -> None:
        ttl_s = self._random.uniform(*_LEASE_S)
        lease = await self._space.leases.acquire(LEASE, ttl_s)
        for _ in range(self._random.randint(1, 5)):
            with suppress(ConflictError):
                async with self._space.transaction(lease=lease) as tx:
                    await tx.documents.put(GUARDED, lease.token)
            pause = self._random.random()
            if pause < 0.1:
                await self._runner.sleep(ttl_s)  # as a process that the machine has stopped
            elif pause < 0.3:
                await lease.renew()
        if self._random.random() < 0.7:
            await lease.release()

    # ---- bookings

    async def _book(self) -> None:
        for _ in range(2):
            ttl_s = self._random.uniform(*_BOOKING_S)
            wait_s = ttl_s * self._random.choice((0, 0.5, 1.2))
            wait = partial(self._runner.sleep, wait_s)
            await book(self._bookings, self._name, ttl_s=ttl_s, wait=wait)


def _plus_one(value: Any) -> Any:
    return value + 1
