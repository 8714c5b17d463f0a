"""The second count after a run: from the store, from the checkpoints, and from the sources."""

from __future__ import annotations

from examples.demo import stage
from examples.demo.history_tour import count_commits
from examples.demo.outcome import Outcome
from examples.demo.survey import NOTHING, Totals, add_module, sum_totals, survey
from keepstate import Space


async def count(run: Space, outcome: Outcome) -> None:
    """Fill an outcome with the numbers in the space, and with those counted again from the sources."""
    managers = stage.open_managers(run)
    outcome.counted = await run.documents.get("totals", NOTHING)
    outcome.last_commit = await count_commits(run)
    outcome.documents = len([name async for name in run.documents.keys("module/*")])
    names = set(outcome.names)
    async for commit in run.history.log():
        outcome.commits += commit.message.removeprefix("index ") in names
    outcome.completed = len((await managers.teams.get_queue_status(stage.TEAM)).completed)
    base = await managers.bases.get_knowledge_base_state(stage.BASE)
    outcome.embeddings = 0 if base is None else base.total_embeddings
    checkpoints = [await managers.agents.latest_checkpoint(name) for name in outcome.agents]
    own: list[Totals] = [point.state for point in checkpoints if point is not None]
    outcome.by_agents = sum_totals(*own)
    for module in outcome.names:
        outcome.recounted = add_module(outcome.recounted, survey(module))
