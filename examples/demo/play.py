"""One run of the demo on a store, from its first space to the printed result."""

from __future__ import annotations

from uuid import uuid4

from rich.table import Table
from rich.text import Text

from examples.demo import stage, views
from examples.demo.director import Director
from examples.demo.history_tour import show_history
from examples.demo.outcome import Outcome
from examples.demo.processes import WorkerFailed
from examples.demo.recount import count
from examples.demo.survey import modules
from keepstate import InvalidError, Keepstate
from keepstate import open as open_store
from keepstate.cli import exits
from keepstate.cli.display import counted as counted_of
from keepstate.cli.display import said, shown, write_json
from keepstate.cli.session import quote


class Play:
    """One run.

    Args:
        workers: Number of agents.
        kill: Number of agents to kill.
        most: Index only this many modules, the first ones.
        as_json: Print one JSON document.
    """

    def __init__(self, workers: int, kill: int, most: int | None, *, as_json: bool) -> None:
        self._outcome = Outcome(modules(most), stage.agents(workers), wanted_kills=kill)
        self._most, self.as_json = most, as_json

    async def on(self, url: str, *, keep: bool) -> int:
        """Run on a store and return the exit code. With `keep`, the spaces of a run that ended stay."""
        async with open_store(url, author="demo") as ks:
            if not ks.store.capabilities.shared:
                raise InvalidError(
                    f"{ks.url} cannot be shared by several processes; give --url sqlite:///…, redis or "
                    "postgresql"
                )
            name, is_over = f"demo/{uuid4().hex[:8]}", False
            try:
                await self._play(ks, name, url)
                is_over = True
            except WorkerFailed as failure:
                said().print(f"keepstate: {failure}", markup=False)
                return failure.code
            finally:
                if not (keep and is_over):
                    for space in (name, stage.tools_space(name)):
                        await ks.drop(space)
            if keep and not self.as_json:
                _show_next(name, self._outcome.agents[0], str(ks.url))
        return exits.OK if self._outcome.is_whole else exits.FAILED

    async def _play(self, ks: Keepstate, name: str, url: str) -> None:
        outcome, run = self._outcome, stage.open_run(ks, name, "demo")
        said().print(
            f"A team of agents indexes Python's own library, {outcome.modules:,} modules. Their state is in "
            f"one store:\n{ks.url}\n",
            markup=False,
        )
        director = Director(run, url, self._most, outcome)
        await director.play()
        director.report("all processes have ended; everything is counted again from the sources")
        await count(run, outcome)
        if not outcome.has_killed:
            said().print(
                f"{outcome.kills} of {outcome.wanted_kills} agents were killed before all was done: "
                "take more modules"
            )
        if self.as_json:
            write_json({"space": name, **outcome.to_dict()})
            return
        _show(outcome)
        tools = stage.open_tools(ks, name)
        await views.show_all(run, tools, outcome)
        await show_history(run, url, outcome.last_commit, outcome.killing)


def _show(outcome: Outcome) -> None:
    table = Table("", "counted by the team", "counted again", "", box=None, pad_edge=False)
    table.columns[1].justify = table.columns[2].justify = "right"
    for name, counted, again in outcome.pairs():
        table.add_row(name, f"{counted:,}", f"{again:,}", _equal(is_so=counted == again))
    shown().print()
    shown().print(table)
    shown().print(
        Text.assemble(
            "in the agents' last checkpoints together: "
            f"{outcome.by_agents['modules']:,} modules, {outcome.by_agents['lines']:,} lines  ",
            Text.from_markup(_equal(is_so=outcome.by_agents == outcome.recounted)),
        ),
        soft_wrap=True,
    )
    shown().print(
        f"\n{outcome.modules:,} modules in {outcome.seconds:.1f} s: {outcome.transactions:,} transactions, "
        f"{counted_of(outcome.conflicts, 'conflict')} resolved,\n{outcome.kills} killed during the run, "
        f"{outcome.recovered} recovered, {counted_of(outcome.taken_over, 'module')} taken over."
    )


def _equal(*, is_so: bool) -> str:
    return "[green]equal[/]" if is_so else "[bold red]NOT EQUAL[/]"


def _show_next(name: str, agent: str, url: str) -> None:
    words = (
        (("queue", "list", name, "done"), "each task, the agent that did it, and its result"),
        (("ls", name, "team/*"), "the team's documents"),
        (("events", name), "all events, the first one first"),
        (("log", name, f"agent/{agent}/checkpoint"), f"each checkpoint of {agent}"),
        (("log", name), "each commit, its author and message"),
        (("serve", "--open"), "all of it in a browser: open the link that this prints"),
    )
    said().print("\nLook into it yourself:", markup=False)
    said().print(f"  export KEEPSTATE_URL='{url}'", markup=False)
    commands = [f"keepstate {' '.join(map(quote, each))}" for each, _ in words]
    widest = max(map(len, commands))
    for command, (_, what) in zip(commands, words, strict=True):
        said().print(f"  {command:{widest}}  # {what}", markup=False)
