"""What the demo counts afterwards: from the store, from the agents, and from the sources once more."""

from __future__ import annotations

from examples.demo import stage
from examples.demo.ending import commits_of
from examples.demo.outcome import Outcome
from examples.demo.survey import NOTHING, Totals, added, survey, together
from keepstate import Space


async def count(run: Space, outcome: Outcome) -> None:
    """Take into an outcome what stands in the space, and what should."""
    managers = stage.managers(run)
    outcome.counted = await run.documents.get("totals", NOTHING)
    outcome.last_commit = await commits_of(run)
    outcome.documents = len([name async for name in run.documents.keys("module/*")])
    names = set(outcome.names)
    async for commit in run.history.log():
        outcome.commits += commit.message.removeprefix("index ") in names
    outcome.completed = len((await managers.teams.get_queue_status(stage.TEAM)).completed)
    base = await managers.bases.get_knowledge_base_state(stage.BASE)
    outcome.embeddings = 0 if base is None else base.total_embeddings
    checkpoints = [await managers.agents.latest_checkpoint(name) for name in outcome.agents]
    own: list[Totals] = [point.state for point in checkpoints if point is not None]
    outcome.by_agents = together(*own)
    for module in outcome.names:
        outcome.recounted = added(outcome.recounted, survey(module))
