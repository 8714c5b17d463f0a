"""A queue: each task runs at least once, is completed exactly once, and is held by one worker at a time."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from keepstate.engine.queue.queue import Task
from keepstate.engine.queue.tasks import TaskState
from keepstate_testing.simulation.workloads.workload import Workload
from keepstate_testing.simulation.world import MAIN, Actor, Fate, World

_LEASE_S = 3.0
_STREAM = "completions"
_OPEN: tuple[TaskState, ...] = ("ready", "waiting", "claimed")


class WorkingCopy(Workload):
    """Workers claim, hold, complete, fail and forget tasks."""

    weight: ClassVar[float] = 3.0

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._put: dict[str, Fate] = {}
        self._held: dict[str, Task] = {}
        self._completed: set[str] = set()
        self._claims: set[tuple[str, int]] = set()
        self._held_until_ms: dict[str, int] = {}

    async def act(self, actor: Actor) -> None:
        """Put or claims a task, or do something with the one that the actor holds or held."""
        task = self._held.get(actor.name)
        if task is None:
            await (self._add(actor) if self.world.random.random() < 0.5 else self._claim(actor))
            return
        kind = self.world.random.choice(["complete", "complete", "complete", "heartbeat", "fail", "release"])
        if kind == "complete":
            await self._complete(actor, task)
        elif kind == "heartbeat":
            await self._heartbeat(actor, task)
        else:
            await self._give_back(actor, task, fails=kind == "fail")

    # ---- steps

    async def _add(self, actor: Actor) -> None:
        task_id = self.world.name("task")
        priority, delay_s = self.world.random.choice([0, 0, 1]), self.world.random.choice([0, 0, 0, 1.0])
        for _ in range(2):  # to put an id again adds nothing
            fate, _ = await self.world.fate(
                actor,
                lambda: actor.space.queue.put(
                    {"for": task_id}, id=task_id, priority=priority, delay_s=delay_s, max_attempts=3
                ),
                f"puts {task_id}",
            )
            if fate is not Fate.REFUSED or task_id not in self._put:  # otherwise the first put decides
                self._put[task_id] = fate
            if fate is not Fate.UNKNOWN:
                break

    async def _claim(self, actor: Actor) -> None:
        wait_s = self.world.random.choice([0, 0, 1.0])
        asked_ms = self._now_ms()
        fate, found = await self.world.fate(
            actor, lambda: actor.space.queue.claim(actor.name, lease_s=_LEASE_S, wait_s=wait_s), "claims"
        )
        if fate is not Fate.APPLIED or not found:
            return
        [task] = found
        self.world.network.note(f"{actor.name} holds {task.id} {task.token}")
        self._take(task, asked_ms)
        self._held[actor.name] = task

    def _take(self, task: Task, asked_ms: int) -> None:
        assert task.payload == {"for": task.id}, f"{task} came with {task.payload}"
        assert self._put.get(task.id) is not Fate.REFUSED, f"{task} was refused when it was put"
        assert task.id not in self._completed, f"{task} was completed, and claimed again"
        assert (task.id, task.token) not in self._claims, f"{task} was claimed twice under {task.token}"
        later = any(id == task.id and token > task.token for id, token in self._claims)
        self._claims.add((task.id, task.token))
        if later:
            return  # it was told so late that the next holder was told before
        until_ms = self._held_until_ms.get(task.id, 0)
        assert self._now_ms() >= until_ms, f"{task} was claimed while it was held until {until_ms}"
        self._held_until_ms[task.id] = asked_ms + int(_LEASE_S * 1000)

    def _now_ms(self) -> int:
        return self.world.oracle.model(MAIN).now_ms

    async def _heartbeat(self, actor: Actor, task: Task) -> None:
        asked_ms = self._now_ms()
        fate, _ = await self.world.fate(actor, task.heartbeat, f"still holds {task.id} {task.token}")
        if fate is Fate.APPLIED and self._held.get(actor.name) is task:
            until_ms = asked_ms + int(_LEASE_S * 1000)
            self._held_until_ms[task.id] = max(until_ms, self._held_until_ms[task.id])
        self._believe(actor, fate)

    async def _give_back(self, actor: Actor, task: Task, *, fails: bool) -> None:
        del self._held[actor.name]
        if (task.id, task.token) == max(claim for claim in self._claims if claim[0] == task.id):
            self._held_until_ms[task.id] = 0
        if fails:
            wait_s = self.world.random.choice([None, 0, 0.5])
            await self.world.fate(actor, lambda: task.fail("no luck", wait_s), f"fails {task.id}")
        else:
            await self.world.fate(actor, task.release, f"releases {task.id}")

    async def _complete(self, actor: Actor, task: Task) -> None:
        name = f"{task.id} {task.token}"
        if self.world.random.random() < 0.3:
            fate, _ = await self.world.fate(actor, lambda: task.complete(name), f"completes {name}")
        else:

            async def work() -> None:
                async with actor.space.transaction() as tx:
                    await tx.queue.complete(task, name)
                    await tx.events.append(name, stream=_STREAM)

            again = name in self.fates
            fate, _ = await self.world.fate(actor, work, f"completes {name} with an event")
            self.fates[name] = fate if not again else Fate.UNKNOWN
            if fate is Fate.APPLIED and self.world.random.random() < 0.3:  # as after a crash that forgot it
                repeated, _ = await self.world.fate(actor, work, f"completes {name} once more")
                assert repeated is not Fate.APPLIED, f"{name} was completed twice, and its event told twice"
        if fate is Fate.APPLIED:
            self._completed.add(task.id)
            del self._held[actor.name]
        else:
            self._believe(actor, fate)

    def _believe(self, actor: Actor, fate: Fate) -> None:
        """Let some go on with a task that they no longer hold."""
        if fate is Fate.REFUSED and self.world.random.random() < 0.6:
            self._held.pop(actor.name, None)

    # ---- the end

    async def finish(self) -> None:
        """Finish the remaining tasks, as long as leases and delays of failed tasks may last."""
        queue = self.judge.space.queue
        for _ in range(120):
            asked_ms = self._now_ms()
            for task in await queue.claim("the last", lease_s=_LEASE_S, count=100):
                self._take(task, asked_ms)
                await task.complete()
                self._completed.add(task.id)
            if not any([await queue.list(state, limit=1) for state in _OPEN]):
                return
            await asyncio.sleep(1)
        raise AssertionError(f"after two minutes of quiet the queue still has {await queue.counts()}")

    async def verify(self) -> None:
        """Look at every task that was put."""
        queue = self.judge.space.queue
        for task_id, fate in self._put.items():
            info = await queue.get(task_id)
            if info is None:
                assert fate is not Fate.APPLIED, f"{task_id} was put and is lost"
                continue
            assert fate is not Fate.REFUSED, f"{task_id} was refused and is there"
            wanted = "done" if task_id in self._completed else info.state
            assert info.state == wanted, f"{task_id} was completed and is {info}"
            assert info.state == "done" or info.attempt >= info.max_attempts, f"{info} has died early"
        names = [event.data for event in await self.judge.space.events.read(stream=_STREAM, limit=100_000)]
        self.compare(names, "the completions")
        done = [name.split()[0] for name in names]
        assert len(done) == len(set(done)), f"a task was completed twice: {sorted(names)}"
