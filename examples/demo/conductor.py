"""The conductor of the demo: does the workflow's steps, and goes on where one before him was killed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from examples.demo import stage
from examples.demo.survey import NOTHING, Survey, Totals, modules, tops
from examples.demo.tool import ask
from keepstate import (
    IndexingStatus,
    NotFoundError,
    SourceState,
    Space,
    StepState,
    SyncStatus,
    ToolStateManager,
    Transaction,
    TransitionError,
)

_BY_BATCH = 100


class Conductor:
    """Who does the steps; each may be done again, if its process was killed within."""

    def __init__(self, run: Space, tools: ToolStateManager) -> None:
        self._run, self._tools, self._managers = run, tools, stage.managers(run)
        self._context: Mapping[str, Any] = {}

    async def work(self) -> None:
        """Do what is left of the workflow."""
        workflows = self._managers.workflows
        with suppress(NotFoundError):  # nobody has come to a checkpoint yet
            checkpoint = await workflows.resume_from(stage.WORKFLOW)
            told = {"checkpoint": checkpoint.checkpoint_id, "step": checkpoint.step}
            await self._run.events.append({"type": "resumed", **told})
        begun = await workflows.get(stage.WORKFLOW)
        assert begun is not None
        self._context = begun.context
        does: Sequence[Callable[[], Awaitable[dict[str, Any]]]] = (
            self._collect,
            self._index,
            self._link,
            self._report,
        )
        for number in range(begun.current_step + 1, len(does) + 1):
            await self._step(number, does[number - 1])

    async def _step(self, number: int, do: Callable[[], Awaitable[dict[str, Any]]]) -> None:
        step = StepState(number, stage.STEPS[number - 1], "running")
        while True:
            await self._managers.workflows.wait_until_resumed(stage.WORKFLOW)
            with suppress(TransitionError):  # it was paused just now
                await self._managers.workflows.update_step(stage.WORKFLOW, step)
                break
        result = await do()
        done = replace(step, status="completed", result=result)

        async def record(tx: Transaction) -> None:
            await stage.managers(tx).workflows.update_step(stage.WORKFLOW, done)
            await tx.events.append({"type": "step", "step": number, "name": step.name, "result": result})

        message = f"step {number}, {step.name}"
        await self._run.by(message=message).transact(record, attempts=stage.ATTEMPTS)

    async def _collect(self) -> dict[str, Any]:
        """Give the team a task for each module."""
        names = modules(self._context["most"])
        for start in range(0, len(names), _BY_BATCH):

            async def put(tx: Transaction, some: Sequence[str] = names[start : start + _BY_BATCH]) -> None:
                teams = stage.managers(tx).teams
                for module in some:
                    await teams.enqueue_task(stage.TEAM, {"id": module})

            await self._run.transact(put, attempts=stage.ATTEMPTS)
        return {"tasks": len(names)}

    async def _index(self) -> dict[str, Any]:
        """Wait until the team has indexed all."""
        async with self._run.documents.watch("totals") as watch:
            while True:
                totals: Totals = await self._run.documents.get("totals", NOTHING)
                if totals["modules"] >= self._context["modules"]:
                    return {"modules": totals["modules"], "lines": totals["lines"]}
                await watch.take(1.0)

    async def _link(self) -> dict[str, Any]:
        """Count who imports whom, and ask the tool where each comes from: by now it knows."""
        importers = Counter[str]()
        async for _, found in self._run.documents.items("module/*"):
            survey: Survey = found
            importers.update(tops(survey))
        homes = Counter([await ask(self._tools, name, id=f"link {name}") for name in sorted(importers)])
        links = {"most": [list(each) for each in importers.most_common(5)], "homes": dict(homes)}
        await self._run.documents.put("links", links)
        return {"names": len(importers), **links}

    async def _report(self) -> dict[str, Any]:
        """Say that the knowledge base is complete."""

        async def record(tx: Transaction) -> dict[str, Any]:
            bases = stage.managers(tx).bases
            progress = await bases.set_indexing_status(stage.BASE, IndexingStatus.COMPLETED)
            count = progress.processed_documents
            await bases.update_source_state(
                SourceState(stage.SOURCE, stage.BASE, SyncStatus.SYNCED, datetime.now(UTC), count)
            )
            return {"documents": count}

        return await self._run.transact(record, attempts=stage.ATTEMPTS)
