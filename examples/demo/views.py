"""The data of each manager at the end of the demo."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from examples.demo import stage
from examples.demo.outcome import Outcome
from keepstate import Space, ToolStateManager
from keepstate.cli.display import plain, shown


async def show_all(run: Space, tools: ToolStateManager, outcome: Outcome) -> None:
    """Print the view of each manager, under its name."""
    managers = stage.open_managers(run)
    await _team(managers, outcome)
    await _workflow(managers)
    await _tool(tools, managers)
    await _base(managers)


async def _team(managers: stage.Managers, outcome: Outcome) -> None:
    _head("The team", "OrchestrationStateManager, AgentStateStore")
    team = await managers.teams.get_team(stage.TEAM)
    assert team is not None
    table = _table("agent", "status", "its last checkpoint", ">modules", ">lines")
    for name, agent in team.agents.items():
        point = await managers.agents.latest_checkpoint(name)
        if point is None:
            table.add_row(plain(name), plain(agent.status), "none", "0", "0")
        else:
            at = "" if point.saved_at is None else f", {point.saved_at:%H:%M:%S}"
            done = point.state
            table.add_row(
                plain(name),
                plain(agent.status),
                f"{point.checkpoint_id!r}{at}",
                f"{done['modules']:,}",
                f"{done['lines']:,}",
            )
    shown().print(table)
    queue = team.task_queue
    _say(
        f"its queue: {len(queue.pending):,} pending, {len(queue.in_progress):,} in progress, "
        f"{len(queue.completed):,} completed ({outcome.taken_over:,} taken over), {len(queue.dead):,} dead"
    )


async def _workflow(managers: stage.Managers) -> None:
    _head("The workflow", "WorkflowStateManager")
    workflow = await managers.workflows.get(stage.WORKFLOW)
    assert workflow is not None
    table = _table(">step", "name", "status", "result")
    for step in await managers.workflows.list_steps(stage.WORKFLOW):
        table.add_row(str(step.step_number), step.name, step.status, plain(_brief(step.result)))
    shown().print(table)
    points = await managers.workflows.list_checkpoints(stage.WORKFLOW)
    _say(
        f"{workflow.status.name}: {workflow.steps_completed} of {workflow.total_steps} steps; "
        f"its checkpoints: {', '.join(point.checkpoint_id for point in points)}"
    )


async def _tool(tools: ToolStateManager, managers: stage.Managers) -> None:
    _head(f"The tool {stage.TOOL!r}", "ToolStateManager")
    stats = await tools.get_tool_stats(stage.TOOL)
    pending = await tools.get_pending_retries()
    link = await managers.workflows.get_step(stage.WORKFLOW, stage.STEPS.index("link") + 1)
    names = 0 if link is None else link.result["names"]
    again = sum(run.attempt > 1 for run in await tools.get_execution_history(stage.TOOL, limit=10_000))
    _say(
        f"called {stats.cache_hits + stats.cache_misses:,} times; {stats.cache_hit_rate:.0%} of the answers "
        f"came from the cache; for {names:,} names there were {stats.completed:,} executions, "
        f"{stats.avg_duration_ms:.0f} ms each"
    )
    _say(
        f"{again:,} of them failed at first and were retried; {stats.cancelled:,} more were cancelled, "
        f"because another caller had the answer; {len(pending):,} wait for a retry"
    )


async def _base(managers: stage.Managers) -> None:
    _head("The knowledge base", "KnowledgeStateManager")
    base = await managers.bases.get_knowledge_base_state(stage.BASE)
    assert base is not None
    _say(
        f"{base.status.name}: {base.processed_documents:,} of {base.total_documents:,} documents, "
        f"{base.failed_documents:,} failed, {base.total_embeddings:,} embeddings, "
        f"{base.storage_size_mb:.1f} MB"
    )
    due = [source.source_id for source in await managers.bases.needs_sync(stage.BASE)]
    for source in await managers.bases.get_sources(stage.BASE):
        state = "to be synchronized" if source.source_id in due else "up to date"
        _say(
            f"its source {source.source_id!r}: {source.sync_status.name}, "
            f"{source.documents_synced:,} documents, {state}"
        )


def _brief(result: Mapping[str, Any] | None) -> str:
    """Return the numbers of a step's result, in one line."""
    facts = (result or {}).items()
    return ", ".join(f"{value:,} {name}" for name, value in facts if isinstance(value, int))


def _table(*heads: str) -> Table:
    """Return a table. A head with a `>` makes a column of numbers."""
    table = Table(box=None, pad_edge=False)
    for head in heads:
        table.add_column(head.removeprefix(">"), justify="right" if head.startswith(">") else "left")
    return table


def _head(title: str, manager: str) -> None:
    shown().print(Text.assemble(("\n" + title, "bold"), (f"  ({manager})", "dim")), soft_wrap=True)


def _say(text: str) -> None:
    shown().print(Text(text), soft_wrap=True)
