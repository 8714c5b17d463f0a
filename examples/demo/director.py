"""The demo as it is played: who is started, killed and paused when, and what is told of it meanwhile.

What agents and conductor do is told from their events, in the order in which these were committed.
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
from examples.demo.company import Company
from examples.demo.ending import Killing, commits_of
from examples.demo.outcome import Outcome
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
"""How often to look while something is still to be done: a short run is soon over."""
_STILL_S = 1.0
_LONGEST_S = 300.0
_PARTS = 5
"""So many times it is told how far the team is."""


class Director:
    """Plays the demo on a space."""

    def __init__(self, run: Space, url: str, most: int | None, outcome: Outcome) -> None:
        self._run, self._most, self._outcome = run, most, outcome
        self._managers = stage.managers(run)
        self._company = Company(url, run.name)
        self._console = said()
        self._begun = perf_counter()
        self._seen: int | None = None
        self._indexed, self._held = 0, dict[str, str]()
        self._show: Callable[[], None] = lambda: None
        acts: list[Callable[[], Awaitable[bool]]] = [*[self._kill_one] * outcome.wanted_kills, self._pause]
        parts = len(acts) + 1
        self._acts = [(outcome.modules * number / parts, act) for number, act in enumerate(acts, 1)]

    def tell(self, text: str) -> None:
        """Print a line of what happens."""
        elapsed_s = perf_counter() - self._begun
        self._console.print(f"{elapsed_s:5.1f} s  {text}", markup=False)

    async def play(self) -> None:
        """Let the team work until all is done."""
        await self._prepare()
        before = await self._run.revision()
        async with self._playing():
            while self._company.is_at_work:
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
            inside = stage.managers(tx)
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
                    await self._company.start(name)
                self.tell(f"{_listed(self._outcome.agents)} begin, each in a process of its own")
                yield
            finally:
                await self._company.end()

    # ---- what is told

    async def _look(self) -> None:
        """Take in what has happened since the last look."""
        await self._company.look_after()
        if perf_counter() > self._begun + _LONGEST_S:
            raise KeepstateError(
                f"the demo did not end within {_LONGEST_S:.0f} s; its processes were stopped"
            )
        while events := await self._run.events.read(after=self._seen, limit=1_000):
            self._seen = events[-1].number
            for event in events:
                self._take_in(event.data)
        self._show()

    def _take_in(self, told: dict[str, Any]) -> None:
        match told["type"]:
            case "indexed":
                self._take_in_module(told)
            case "step":
                self.tell(f"step {told['step']} of {len(stage.STEPS)}, {told['name']}: {_said_of(told)}")
            case "recovered":
                done, attempt = told["done"], told["attempt"]
                self._outcome.recovered += 1
                self.tell(
                    f"{told['agent']} goes on from its checkpoint: {done['modules']} modules with "
                    f"{done['lines']:,} lines are its own (attempt {attempt} to recover it)"
                )
            case "resumed":
                self.tell(f"the new conductor goes on behind step {told['step']}, from its checkpoint")
            case _:
                pass

    def _take_in_module(self, told: dict[str, Any]) -> None:
        outcome, module, agent = self._outcome, told["module"], told["agent"]
        self._indexed += 1
        outcome.events += 1
        outcome.conflicts += told["tries"] - 1
        outcome.taken_over += told["attempt"] > 1
        if told["attempt"] > 1:
            held = self._held.get(module)
            whose = f", which {held} held when it was killed," if held else ""
            self.tell(f"{module}{whose} is done by {agent}, at attempt {told['attempt']}")
        elif self._indexed % max(1, outcome.modules // _PARTS) == 0:
            self.tell(f"{self._indexed:,} of {outcome.modules:,} modules are in the knowledge base")

    # ---- what is done to them; each returns whether it was done

    async def _kill_one(self) -> bool:
        """Kill an agent that has done something, while it holds a task, and start it again."""
        for name in self._outcome.agents:
            if name in self._held.values() or await self._managers.agents.latest_checkpoint(name) is None:
                continue
            if not self._company.halt(name):  # halted, it still holds what it is seen to hold
                continue
            team = await self._managers.teams.get_team(stage.TEAM, tasks=False)
            held = team.agents[name].current_task if team is not None else None
            if held is None:
                self._company.go_on(name)
                continue
            before = await commits_of(self._run)
            number = await self._company.kill(name)
            self._held[held] = name
            self._outcome.kills += 1
            self._outcome.killing = self._outcome.killing or Killing(name, before, held)
            self.tell(f"{name} (process {number}) is killed while it holds {held}")
            self.tell(f"{name} is started again (process {await self._company.start(name)})")
            return True
        return False

    async def _pause(self) -> bool:
        """Pause the workflow, kills who conducts it, and resumes it."""
        workflows, outcome = self._managers.workflows, self._outcome
        try:
            await workflows.pause(stage.WORKFLOW)
        except TransitionError:  # all was done before
            return True
        self.tell("the workflow is paused: the agents finish what they hold, and wait")
        while not await self._is_waiting():
            await self._look()
            await asyncio.sleep(_AIM_EVERY_S)
        before = await self._totals()
        number = await self._company.kill(stage.CONDUCTOR)
        outcome.conductors_killed += 1
        self.tell(f"the conductor (process {number}) is killed as well, in the middle of step {stage.INDEX}")
        await self._company.start(stage.CONDUCTOR)
        await asyncio.sleep(_STILL_S)
        await self._look()
        outcome.paused_at, outcome.has_stood_still = before["modules"], await self._totals() == before
        stands = "nothing has moved" if outcome.has_stood_still else "IT HAS MOVED"
        self.tell(f"{before['modules']:,} modules then, and a second later: {stands}")
        await workflows.resume(stage.WORKFLOW)
        self.tell("the workflow is resumed")
        return True

    async def _is_waiting(self) -> bool:
        """Return whether each agent waits, or has nothing more to do."""
        team = await self._managers.teams.get_team(stage.TEAM, tasks=False)
        assert team is not None
        return all(
            agent.status == WAITING or not self._company.is_running(name)
            for name, agent in team.agents.items()
        )

    async def _totals(self) -> Totals:
        totals: Totals = await self._run.documents.get("totals", NOTHING)
        return totals


def _said_of(told: dict[str, Any]) -> str:
    result = told["result"]
    match told["name"]:
        case "collect":
            return f"the team's queue has {result['tasks']:,} tasks"
        case "index":
            return f"all {result['modules']:,} modules, {result['lines']:,} lines"
        case "link":
            ((most, times), *_) = result["most"] or [["nothing", 0]]
            return f"{result['names']:,} names are imported, {most} most often: by {times:,} modules"
        case _:
            return f"the knowledge base is complete, with {result['documents']:,} documents"


def _listed(names: Any) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
