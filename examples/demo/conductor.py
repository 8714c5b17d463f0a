"""The conductor of the demo: runs the workflow's steps, and continues where a killed conductor stopped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from examples.demo import stage
from examples.demo.survey import NOTHING, Survey, Totals, imported_packages, modules
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
    """Runs the steps. A step that was interrupted by a kill runs again from its start."""

    def __init__(self, run: Space, tools: ToolStateManager) -> None:
        self._run, self._tools, self._managers = run, tools, stage.open_managers(run)
        self._context: Mapping[str, Any] = {}

    async def work(self) -> None:
        """Run the remaining steps of the workflow."""
        workflows = self._managers.workflows
        with suppress(NotFoundError):  # there is no checkpoint yet
            checkpoint = await workflows.resume_from(stage.WORKFLOW)
            facts = {"checkpoint": checkpoint.checkpoint_id, "step": checkpoint.step}
            await self._run.events.append({"type": "resumed", **facts})
        begun = await workflows.get(stage.WORKFLOW)
        assert begun is not None
        self._context = begun.context
        steps: Sequence[Callable[[], Awaitable[dict[str, Any]]]] = (
            self._collect,
            self._index,
            self._link,
            self._report,
        )
        for number in range(begun.current_step + 1, len(steps) + 1):
            await self._step(number, steps[number - 1])

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
            await stage.open_managers(tx).workflows.update_step(stage.WORKFLOW, done)
            await tx.events.append({"type": "step", "step": number, "name": step.name, "result": result})

        message = f"step {number}, {step.name}"
        await self._run.by(message=message).transact(record, attempts=stage.ATTEMPTS)

    async def _collect(self) -> dict[str, Any]:
        """Enqueue a task for each module."""
        names = modules(self._context["most"])
        for start in range(0, len(names), _BY_BATCH):

            async def put(tx: Transaction, some: Sequence[str] = names[start : start + _BY_BATCH]) -> None:
                teams = stage.open_managers(tx).teams
                for module in some:
                    await teams.enqueue_task(stage.TEAM, {"id": module})

            await self._run.transact(put, attempts=stage.ATTEMPTS)
        return {"tasks": len(names)}

    async def _index(self) -> dict[str, Any]:
        """Wait until the team has indexed all modules."""
        async with self._run.documents.watch("totals") as watch:
            while True:
                totals: Totals = await self._run.documents.get("totals", NOTHING)
                if totals["modules"] >= self._context["modules"]:
                    return {"modules": totals["modules"], "lines": totals["lines"]}
                await watch.take(1.0)

    async def _link(self) -> dict[str, Any]:
        """Count the importers of each package, and ask the tool for its origin. Most answers are cached."""
        importers = Counter[str]()
        async for _, found in self._run.documents.items("module/*"):
            survey: Survey = found
            importers.update(imported_packages(survey))
        homes = Counter([await ask(self._tools, name, id=f"link {name}") for name in sorted(importers)])
        links = {"most": [list(each) for each in importers.most_common(5)], "homes": dict(homes)}
        await self._run.documents.put("links", links)
        return {"names": len(importers), **links}

    async def _report(self) -> dict[str, Any]:
        """Mark the knowledge base as complete."""

        async def record(tx: Transaction) -> dict[str, Any]:
            bases = stage.open_managers(tx).bases
            progress = await bases.set_indexing_status(stage.BASE, IndexingStatus.COMPLETED)
            count = progress.processed_documents
            await bases.update_source_state(
                SourceState(stage.SOURCE, stage.BASE, SyncStatus.SYNCED, datetime.now(UTC), count)
            )
            return {"documents": count}

        return await self._run.transact(record, attempts=stage.ATTEMPTS)
