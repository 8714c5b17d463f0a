"""Random schedules of transactions over entries that expire, and the search for a serial order of each.

Units of the engine take turns to read, scan and write one space, in one thread, while time passes between
their steps. An oracle stores each committed batch with the time at which it applied. A unit that committed
must have seen the state right before its own batch, at the time of that batch. A unit that only read
must have seen a state that the space had while the unit was open: one revision at one time.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from keepstate.engine.kernel.unit import Unit
from keepstate.errors import ConflictError
from keepstate.stores.base import SWEPT_BY_FLUSH
from keepstate.stores.protocol import Applied, Batch, Put, Store

KEYS = [b"\x01slot/%d" % number for number in range(4)]
PREFIX = b"\x01slot/"
_LIVES_MS = (None, 4, 9, 16)
_OPEN_UNITS = 3
_STEPS = 40

State = Mapping[bytes, tuple[int, int | None]]
"""Version and expiry of each stored key, expired or not."""


@dataclass
class _Moment:
    """A state of the space, and the time at which its last batch applied."""

    state: State
    now_ms: int


@dataclass
class _Run:
    """An open unit: the entries it saw, and the state at which it began."""

    unit: Unit
    first: int
    began_ms: int
    left: int
    seen: list[tuple[bytes, int]] = field(default_factory=list[tuple[bytes, int]])
    writes: dict[bytes, int | None] = field(default_factory=dict[bytes, "int | None"])


class Schedule:
    """One random schedule on one space, which must be new.

    Args:
        store: Where the space is.
        space: The name of the space.
        seed: Decides the schedule.
        pass_time: Lets the store's time move on by so many milliseconds, or a little more.
    """

    def __init__(
        self, store: Store, space: str, seed: int, pass_time: Callable[[int], Awaitable[None]]
    ) -> None:
        self._store, self._space, self._pass_time = store, space, pass_time
        self._seed, self._random = seed, random.Random(seed)
        self._moments = [_Moment({}, 0)]
        self._runs: list[_Run] = []
        self.committed = self.refused = 0

    async def play(self) -> None:
        """Play the schedule.

        Raises:
            AssertionError: A unit saw what no serial order explains.
        """
        for _ in range(_STEPS):
            if self._random.random() < 0.3:
                await self._pass_time(self._random.randint(1, 6))
            if self._random.random() < 0.1:
                await self._litter()
            if len(self._runs) < _OPEN_UNITS and self._random.random() < 0.5:
                self._runs.append(await self._begin())
            if self._runs:
                await self._step(self._random.choice(self._runs))

    async def _litter(self) -> None:
        """Write more expiring entries than a flush sweeps, so that other expired entries stay a while."""
        writes = [Put(b"\x01litter/%02d" % number, b"", ttl_ms=1) for number in range(2 * SWEPT_BY_FLUSH)]
        (outcome,) = await self._store.apply([Batch(self._space, writes)])
        assert isinstance(outcome, Applied)
        self._moments.append(_Moment(self._moments[-1].state, outcome.now_ms))

    async def _now_ms(self) -> int:
        return (await self._store.read(self._space, [])).now_ms

    async def _begin(self) -> _Run:
        unit = Unit(self._store, self._space)
        return _Run(unit, len(self._moments) - 1, await self._now_ms(), self._random.randint(1, 4))

    async def _step(self, run: _Run) -> None:
        try:
            if run.left:
                run.left -= 1
                await self._work(run)
                return
            self._runs.remove(run)
            await self._end(run)
            self.committed += 1
        except ConflictError:
            if run in self._runs:
                self._runs.remove(run)
            self.refused += 1

    async def _work(self, run: _Run) -> None:
        key = self._random.choice(KEYS)
        what = self._random.random()
        if what < 0.3:
            entry = await run.unit.get(key)
            if key not in run.writes:
                run.seen.append((key, entry.version if entry else 0))
        elif what < 0.5:
            found = {entry.key: entry.version async for entry in run.unit.scan(PREFIX)}
            run.seen += [(one, found.get(one, 0)) for one in KEYS if one not in run.writes]
        elif what < 0.6:
            await run.unit.now_ms()
        elif what < 0.7:
            run.unit.delete(key)
            run.writes[key] = -1
        else:
            ttl_ms = self._random.choice(_LIVES_MS)
            run.unit.put(key, b"%d" % self._random.randint(0, 99), ttl_ms=ttl_ms)
            run.writes[key] = ttl_ms

    async def _end(self, run: _Run) -> None:
        if not run.unit.writes:
            now_ms = await self._now_ms()
            assert self._was_there(run, now_ms), self._fault(run, f"between {run.began_ms} and {now_ms}")
            return
        applied = await run.unit.commit()
        assert applied is not None
        before = self._moments[-1].state
        assert _fits(run, before, applied.now_ms), self._fault(run, f"at {applied.now_ms}")
        after = dict(before)
        for key, ttl_ms in run.writes.items():
            after.pop(key, None)
            if ttl_ms != -1:
                after[key] = applied.revision, None if ttl_ms is None else applied.now_ms + ttl_ms
        self._moments.append(_Moment(after, applied.now_ms))

    def _was_there(self, run: _Run, now_ms: int) -> bool:
        """Return whether everything that a unit saw was there at one time since it began."""
        for place in range(run.first, len(self._moments)):
            moment = self._moments[place]
            is_last = place == len(self._moments) - 1
            ends_ms = now_ms if is_last else self._moments[place + 1].now_ms
            begins_ms = max(moment.now_ms, run.began_ms)
            times = {begins_ms} | {until_ms for _, until_ms in moment.state.values() if until_ms is not None}
            if any(begins_ms <= at_ms <= ends_ms and _fits(run, moment.state, at_ms) for at_ms in times):
                return True
        return False

    def _fault(self, run: _Run, when: str) -> str:
        moments = [(moment.now_ms, dict(moment.state)) for moment in self._moments[run.first :]]
        return f"seed {self._seed}: a transaction saw {run.seen}, which never was {when}: {moments}"


def _fits(run: _Run, state: State, at_ms: int) -> bool:
    return all(version == _version(state, key, at_ms) for key, version in run.seen)


def _version(state: State, key: bytes, at_ms: int) -> int:
    version, until_ms = state.get(key, (0, None))
    return 0 if until_ms is not None and until_ms <= at_ms else version
