"""The script of the demo: starts, kills and pauses processes at chosen moments, and reports progress.

Reports about agents and conductor come from their events, in the order in which these were committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from examples.demo import stage
from examples.demo.agent import WAITING
from examples.demo.history_tour import Killing, count_commits
from examples.demo.outcome import Outcome
from examples.demo.processes import WorkerProcesses
from examples.demo.survey import NOTHING, Totals
from keepstate import (
    AgentCoordinationState,
    IndexingProgress,
    IndexingStatus,
    KeepstateError,
    Space,
    TeamState,
    Transaction,
    TransitionError,
    WorkflowState,
)
from keepstate.cli.display import said

_LOOK_EVERY_S = 0.1
_AIM_EVERY_S = 0.02
"""Interval of looks while a kill or a pause is still to come; a short run is over soon."""
_STILL_S = 1.0
_LONGEST_S = 300.0
_PARTS = 5
"""Number of progress reports in a run."""


class Director:
    """Runs the demo on a space."""

    def __init__(self, run: Space, url: str, most: int | None, outcome: Outcome) -> None:
        self._run, self._most, self._outcome = run, most, outcome
        self._managers = stage.open_managers(run)
        self._processes = WorkerProcesses(url, run.name)
        self._console = said()
        self._begun = perf_counter()
        self._seen: int | None = None
        self._indexed, self._held = 0, dict[str, str]()
        self._show: Callable[[], None] = lambda: None
        acts: list[Callable[[], Awaitable[bool]]] = [*[self._kill_one] * outcome.wanted_kills, self._pause]
        parts = len(acts) + 1
        self._acts = [(outcome.modules * number / parts, act) for number, act in enumerate(acts, 1)]

    def report(self, text: str) -> None:
        """Print a line, with the seconds since the start."""
        elapsed_s = perf_counter() - self._begun
        self._console.print(f"{elapsed_s:5.1f} s  {text}", markup=False)

    async def play(self) -> None:
        """Run the team until all is done."""
        await self._prepare()
        before = await self._run.revision()
        async with self._playing():
            while self._processes.is_at_work:
                await self._look()
                if self._acts and self._indexed >= self._acts[0][0] and await self._acts[0][1]():
                    del self._acts[0]
                await asyncio.sleep(_AIM_EVERY_S if self._acts else _LOOK_EVERY_S)
            await self._look()
        self._outcome.seconds = perf_counter() - self._begun
        self._outcome.transactions = await self._run.revision() - before  # revisions are dense: one for each

    async def _prepare(self) -> None:
        outcome = self._outcome
        team = {name: AgentCoordinationState(name) for name in outcome.agents}
        context = {"modules": outcome.modules, "most": self._most}

        async def begin(tx: Transaction) -> None:
            inside = stage.open_managers(tx)
            await inside.teams.create_team(TeamState(stage.TEAM, team))
            await inside.workflows.create(
                WorkflowState(stage.WORKFLOW, total_steps=len(stage.STEPS), context=context)
            )
            await inside.bases.update_indexing_progress(
                IndexingProgress(stage.BASE, IndexingStatus.IN_PROGRESS, total_documents=outcome.modules)
            )
            await tx.documents.put("totals", NOTHING)

        await self._run.by(message="begin").transact(begin)

    @asynccontextmanager
    async def _playing(self) -> AsyncGenerator[None]:
        columns = TextColumn("        indexed"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        hidden = not self._console.is_terminal
        with Progress(*columns, console=self._console, transient=True, disable=hidden) as progress:
            bar = progress.add_task("", total=self._outcome.modules)
            self._show = lambda: progress.update(bar, completed=self._indexed)
            try:
                for name in (stage.CONDUCTOR, *self._outcome.agents):
                    await self._processes.start(name)
                self.report(f"{_join_names(self._outcome.agents)} begin, each in a process of its own")
                yield
            finally:
                await self._processes.end()

    # ---- reports

    async def _look(self) -> None:
        """Record the events since the last look."""
        await self._processes.raise_failures()
        if perf_counter() > self._begun + _LONGEST_S:
            raise KeepstateError(
                f"the demo did not end within {_LONGEST_S:.0f} s; its processes were stopped"
            )
        while events := await self._run.events.read(after=self._seen, limit=1_000):
            self._seen = events[-1].number
            for each in events:
                self._record(each.data)
        self._show()

    def _record(self, event: dict[str, Any]) -> None:
        match event["type"]:
            case "indexed":
                self._record_module(event)
            case "step":
                self.report(
                    f"step {event['step']} of {len(stage.STEPS)}, {event['name']}: {_describe_step(event)}"
                )
            case "recovered":
                done, attempt = event["done"], event["attempt"]
                self._outcome.recovered += 1
                self.report(
                    f"{event['agent']} continues from its checkpoint: {done['modules']} modules, "
                    f"{done['lines']:,} lines (recovery attempt {attempt})"
                )
            case "resumed":
                self.report(f"the new conductor continues after step {event['step']}, from its checkpoint")
            case _:
                pass

    def _record_module(self, event: dict[str, Any]) -> None:
        outcome, module, agent = self._outcome, event["module"], event["agent"]
        self._indexed += 1
        outcome.events += 1
        outcome.conflicts += event["tries"] - 1
        outcome.taken_over += event["attempt"] > 1
        if event["attempt"] > 1:
            held = self._held.get(module)
            whose = f", which {held} held when it was killed," if held else ""
            self.report(f"{module}{whose} is done by {agent}, at attempt {event['attempt']}")
        elif self._indexed % max(1, outcome.modules // _PARTS) == 0:
            self.report(f"{self._indexed:,} of {outcome.modules:,} modules are in the knowledge base")

    # ---- kills and the pause; each returns whether it was possible

    async def _kill_one(self) -> bool:
        """Kill an agent that has a checkpoint and holds a task, and start it again."""
        for name in self._outcome.agents:
            if name in self._held.values() or await self._managers.agents.latest_checkpoint(name) is None:
                continue
            if not self._processes.suspend(name):  # a suspended agent keeps the task that it is seen to hold
                continue
            team = await self._managers.teams.get_team(stage.TEAM, tasks=False)
            held = team.agents[name].current_task if team is not None else None
            if held is None:
                self._processes.resume(name)
                continue
            before = await count_commits(self._run)
            number = await self._processes.kill(name)
            self._held[held] = name
            self._outcome.kills += 1
            self._outcome.killing = self._outcome.killing or Killing(name, before, held)
            self.report(f"{name} (process {number}) is killed while it holds {held}")
            self.report(f"{name} is started again (process {await self._processes.start(name)})")
            return True
        return False

    async def _pause(self) -> bool:
        """Pause the workflow, kill its conductor, and resume it."""
        workflows, outcome = self._managers.workflows, self._outcome
        try:
            await workflows.pause(stage.WORKFLOW)
        except TransitionError:  # everything was done before
            return True
        self.report("the workflow is paused: the agents finish their tasks, and wait")
        while not await self._is_waiting():
            await self._look()
            await asyncio.sleep(_AIM_EVERY_S)
        before = await self._totals()
        number = await self._processes.kill(stage.CONDUCTOR)
        outcome.conductors_killed += 1
        self.report(f"the conductor (process {number}) is killed too, in the middle of step {stage.INDEX}")
        await self._processes.start(stage.CONDUCTOR)
        await asyncio.sleep(_STILL_S)
        await self._look()
        after = await self._totals()
        outcome.paused_at, outcome.has_stood_still = before["modules"], after == before
        still = "still" if outcome.has_stood_still else "NOT THE SAME:"
        self.report(f"{before['modules']:,} modules are indexed; a second later {still} {after['modules']:,}")
        await workflows.resume(stage.WORKFLOW)
        self.report("the workflow is resumed")
        return True

    async def _is_waiting(self) -> bool:
        """Return whether each agent waits, or has ended."""
        team = await self._managers.teams.get_team(stage.TEAM, tasks=False)
        assert team is not None
        return all(
            agent.status == WAITING or not self._processes.is_running(name)
            for name, agent in team.agents.items()
        )

    async def _totals(self) -> Totals:
        totals: Totals = await self._run.documents.get("totals", NOTHING)
        return totals


def _describe_step(event: dict[str, Any]) -> str:
    result = event["result"]
    match event["name"]:
        case "collect":
            return f"the team's queue has {result['tasks']:,} tasks"
        case "index":
            return f"all {result['modules']:,} modules, {result['lines']:,} lines"
        case "link":
            ((most, times), *_) = result["most"] or [["nothing", 0]]
            return f"{result['names']:,} names are imported, {most} most often: by {times:,} modules"
        case _:
            return f"the knowledge base is complete, with {result['documents']:,} documents"


def _join_names(names: Any) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
