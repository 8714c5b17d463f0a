"""A plain model of a queue's order and limits, and random histories that compare a queue with it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import floor
from typing import Any

from keepstate.engine.queue.queue import Task
from keepstate.engine.queue.rules import Limit
from keepstate.engine.space.space import Space
from keepstate.testing.clocks import ManualClock

Rank = tuple[int, int, int]
LineOf = tuple[int, str, str | None]


@dataclass
class Job:
    id: str
    priority: int
    kind: str
    key: str | None
    arrived: int = 0
    at_ms: int = 0
    lease_ms: int = 0


@dataclass
class Bucket:
    """The starts of one limit: `full_at` is the time at which all are back."""

    full_at: Fraction = Fraction(0)


@dataclass
class QueueModel:
    """The order and the limits of a queue, kept in lists and walked through from the start."""

    limits: list[Limit] = field(default_factory=list)
    aging_ms: int | None = None
    paused: set[str | None] = field(default_factory=set)
    ready: dict[LineOf, list[Job]] = field(default_factory=dict)
    turns: dict[LineOf, Rank] = field(default_factory=dict)
    """The ranks of lines with a key whose first task does not decide."""
    claimed: list[Job] = field(default_factory=list)
    buckets: dict[Any, Bucket] = field(default_factory=dict)
    count: int = 0
    ids: list[int] = field(default_factory=list)
    """The identity of each limit: one whose numbers alone change keeps its starts."""
    last_id: int = 0

    def arrive(self, job: Job, at_ms: int) -> None:
        """Make a task ready, behind all that are."""
        self.count += 1
        job.arrived, job.at_ms = self.count, at_ms
        self.ready.setdefault((job.priority, job.kind, job.key), []).append(job)

    def configure(self, limits: list[Limit], aging_ms: int | None) -> None:
        former = list(zip(self.limits, self.ids, strict=True))
        ids: list[int] = []
        for limit in limits:
            same = next((each for each in former if _shape(each[0]) == _shape(limit)), None)
            if same is None:
                self.last_id += 1
            else:
                former.remove(same)
            ids.append(self.last_id if same is None else same[1])
        self.limits, self.ids = limits, ids
        if aging_ms != self.aging_ms:
            self.turns.clear()
        self.aging_ms = aging_ms

    def rank(self, line: LineOf) -> Rank:
        first = self.ready[line][0]
        if line in self.turns:
            return self.turns[line]
        order = -line[0] if self.aging_ms is None else first.at_ms - line[0] * self.aging_ms
        return order, first.arrived, 0

    def may_start(self, job: Job, now_ms: int) -> bool:
        for limit in self._limits_of(job):
            if limit.running is not None:
                running = sum(self._is_counted(limit, job, other) for other in self.claimed)
                if running >= limit.running:
                    return False
            if limit.starts is not None:
                if not limit.starts:
                    return False
                bucket = self.buckets.get(self._bucket(limit, job), Bucket())
                share = Fraction(limit.per_s) * 1000 / limit.starts
                if floor(max(bucket.full_at, now_ms) - share * (limit.starts - 1)) > now_ms:
                    return False
        return True

    def _limits_of(self, job: Job) -> list[Limit]:
        return [
            limit
            for limit in self.limits
            if limit.kind in (None, job.kind) and (job.key is not None or not limit.each_key)
        ]

    def _is_counted(self, limit: Limit, job: Job, other: Job) -> bool:
        return limit.kind in (None, other.kind) and (
            not limit.each_key or (other.key is not None and other.key == job.key)
        )

    def _bucket(self, limit: Limit, job: Job) -> Any:
        return self.ids[self.limits.index(limit)], job.key if limit.each_key else None

    def claim(self, count: int, kinds: Sequence[str] | None, now_ms: int, lease_ms: int) -> list[str]:
        """Claim tasks, and return their ids in order."""
        found: list[str] = []
        self.count += 1
        seen = self.count
        while len(found) < count:
            lines = sorted((line for line, jobs in self.ready.items() if jobs), key=self.rank)
            line = next((line for line in lines if self._fits(line, kinds, now_ms)), None)
            if line is None:
                break
            job = self.ready[line].pop(0)
            for limit in self._limits_of(job):
                if limit.starts is not None:
                    bucket = self.buckets.setdefault(self._bucket(limit, job), Bucket())
                    share = Fraction(limit.per_s) * 1000 / limit.starts
                    bucket.full_at = max(bucket.full_at, Fraction(now_ms)) + share
            job.lease_ms = now_ms + lease_ms
            self.claimed.append(job)
            found.append(job.id)
            self.turns.pop(line, None)
            if line[2] is not None and self.ready[line]:
                order = -line[0] if self.aging_ms is None else now_ms - line[0] * self.aging_ms
                self.turns[line] = order, seen, len(found)
        return found

    def _fits(self, line: LineOf, kinds: Sequence[str] | None, now_ms: int) -> bool:
        if None in self.paused or line[1] in self.paused or (kinds is not None and line[1] not in kinds):
            return False
        return self.may_start(self.ready[line][0], now_ms)

    def end(self, id: str) -> Job:
        job = next(job for job in self.claimed if job.id == id)
        self.claimed.remove(job)
        return job

    def lapse(self, now_ms: int) -> None:
        """Make tasks whose lease is over ready again."""
        for job in sorted(self.claimed, key=lambda job: (job.lease_ms, job.id)):
            if job.lease_ms <= now_ms:
                self.claimed.remove(job)
                self.arrive(job, job.lease_ms)

    def check_limits(self) -> None:
        """Raise `AssertionError` if more tasks run than a limit allows; only if none was ever lowered."""
        for limit in self.limits:
            if limit.running is not None:
                counts = Counter(
                    job.key if limit.each_key else None
                    for job in self.claimed
                    if limit.kind in (None, job.kind) and (job.key is not None or not limit.each_key)
                )
                assert all(count <= limit.running for count in counts.values()), (limit, counts)


def _shape(limit: Limit) -> Any:
    return limit.kind, limit.each_key, limit.running is None, limit.starts is None


KINDS = ("", "a", "b")
KEYS = (None, "x", "y", "z")


def random_limits(rng: random.Random, *, timed: bool) -> list[Limit]:
    """Return some limits."""
    made: list[Limit] = []
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        starts = rng.choice((None, 1, 2, 3)) if timed else None
        running = rng.choice((0, 1, 1, 2, 3)) if starts is None or rng.random() < 0.3 else None
        made.append(
            Limit(
                running=running,
                starts=starts,
                per_s=rng.choice((1.0, 5.0, 0.5)),
                kind=rng.choice((None, None, *KINDS)),
                each_key=rng.random() < 0.5,
            )
        )
    return made


class History:
    """A random history of one queue, seen through several handles.

    Args:
        spaces: The space, once for each handle.
        rng: Decides the history.
        clock: The clock of the store; None if nothing waits for time.
    """

    def __init__(self, spaces: Sequence[Space], rng: random.Random, clock: ManualClock | None) -> None:
        self.spaces, self.rng, self.clock = spaces, rng, clock
        self.model = QueueModel()
        self.held: dict[str, tuple[Space, Task]] = {}
        self.put = 0
        self.story: list[str] = []

    @property
    def now_ms(self) -> int:
        return self.clock.now_ms() if self.clock else 0

    async def run(self, steps: int) -> None:
        for _ in range(steps):
            await self.step()
        await self.finish()

    async def step(self) -> None:
        rng, space = self.rng, self.rng.choice(self.spaces)
        pick = rng.random()
        if pick < 0.4:
            for _ in range(rng.choice((1, 1, 2, 5))):
                await self._put(space)
        elif pick < 0.7:
            kinds = rng.choice((None, None, ["a"], ["a", ""]))
            await self._claim(space, rng.choice((1, 1, 2, 4)), kinds)
        elif pick < 0.82 and self.held:
            await self._end(
                rng.choice(list(self.held)), rng.choice(("complete", "complete", "fail", "release"))
            )
        elif pick < 0.87:
            kind = rng.choice((None, *KINDS))
            if rng.random() < 0.4:
                self.model.paused.add(kind)
                await space.queue.pause(kind)
            else:
                self.model.paused.discard(kind)
                await space.queue.resume(kind)
            self.story.append(f"paused {self.model.paused}")
        elif pick < 0.92:
            limits = random_limits(rng, timed=self.clock is not None)
            aging_s = rng.choice((None, None, 2)) if self.clock else None
            await space.queue.configure(limits=limits, aging_s=aging_s)
            self.story.append(f"configure {limits} {aging_s}")
            self.model.configure(limits, None if aging_s is None else aging_s * 1000)
        elif self.clock is not None:
            step_ms = rng.choice((500, 1000, 2000, 7000, 61_000))
            self.clock.advance(step_ms)
            self.story.append(f"advance {step_ms}")
            self._forget_lapsed()

    def _forget_lapsed(self) -> None:
        for id in [job.id for job in self.model.claimed if job.lease_ms <= self.now_ms]:
            self.held.pop(id, None)

    async def _put(self, space: Space) -> None:
        rng = self.rng
        self.put += 1
        job = Job(f"t{self.put:03}", rng.choice((0, 0, 1)), rng.choice(KINDS), rng.choice(KEYS))
        self.story.append(f"put {job.id} {job.priority} {job.kind!r} {job.key}")
        await space.queue.put(
            None, id=job.id, priority=job.priority, kind=job.kind, key=job.key, max_attempts=100
        )
        self.model.arrive(job, self.now_ms)

    async def _claim(self, space: Space, count: int, kinds: Sequence[str] | None) -> list[str]:
        lease_ms = 60_000
        self.model.lapse(self.now_ms)
        expected = self.model.claim(count, kinds, self.now_ms, lease_ms)
        found = await space.queue.claim("w", lease_s=lease_ms / 1000, count=count, kinds=kinds)
        self.story.append(f"claim {count} {kinds}: {[task.id for task in found]}")
        assert [task.id for task in found] == expected, "\n".join([*self.story, f"expected {expected}"])
        for task in found:
            self.held[task.id] = space, task
        return expected

    async def _end(self, id: str, how: str) -> None:
        _, task = self.held.pop(id)
        self.story.append(f"{how} {id}")
        job = self.model.end(id)
        if how == "complete":
            await task.complete()
            return
        await (task.fail("no", retry_in_s=0) if how == "fail" else task.release())
        self.model.arrive(job, self.now_ms)

    async def finish(self) -> None:
        """Lift all rules, and claim all that is left: nobody is starved, and nothing is lost."""
        space = self.rng.choice(self.spaces)
        await space.queue.configure()
        for kind in (None, *KINDS):
            await space.queue.resume(kind)
        self.model.configure([], None)
        self.model.paused.clear()
        self.story.append("lift all rules")
        while await self._claim(self.rng.choice(self.spaces), 8, None):
            continue
        counts = await space.queue.counts()
        assert counts["ready"] == 0, "\n".join(self.story)
        for id in list(self.held):
            await self._end(id, "complete")
        left = await left_of_rules(space)
        assert not left, "\n".join([*self.story, *left])


async def left_of_rules(space: Space) -> list[str]:
    """Return the keys of turns, lines and slots that are stored although no task is ready or claimed."""
    from keepstate.engine.kernel import layout
    from keepstate.engine.kernel.stored import describe

    store = await space.executor.store()
    await space.queue.claim("w", lease_s=60)
    left: list[str] = []
    for part in (
        layout.LINED,
        layout.TURNS,
        layout.LINES,
        layout.BLOCKED,
        layout.HELD,
        layout.SLOTS,
        layout.FREED,
    ):
        page = await store.scan(space.executor.stored_name, part)
        left += [describe(entry.key) for entry in page.entries]
    return left
