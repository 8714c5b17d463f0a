"""A tour of the history that the demo has made, by commands that you can run again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from rich.text import Text

from keepstate import NotFoundError, Space
from keepstate.cli import history
from keepstate.cli.display import shown
from keepstate.cli.session import Session, quote

_EARLY = 37


@dataclass(frozen=True, slots=True)
class Killing:
    """The kill of the first agent.

    Attributes:
        agent: The killed agent.
        commit: The number of the last commit before the kill.
        module: The module of the task that it held. Another agent has done it since.
    """

    agent: str
    commit: int
    module: str


async def count_commits(run: Space) -> int:
    """Return the number of commits of a recorded space."""
    try:
        return (await run.history.find()).number or 0
    except NotFoundError:
        return 0


async def show_history(run: Space, url: str, commits: int, killing: Killing | None) -> None:
    """Print the space's history, with the command for each step.

    Args:
        run: The space.
        url: The URL of its store.
        commits: The number of its commits.
        killing: The first kill, if there was one.
    """
    session, space = Session(url=url), run.name
    _say(f"{commits:,} transactions changed documents. Each is a commit, so you can read every state again.")
    early = min(_EARLY, commits)
    await _run(("show", space, f"main#{early}", "totals"), history.show, session)
    if killing is not None:
        _say(f"Time travel: the totals at the moment when {killing.agent} was killed.")
        await _run(("show", space, f"main#{killing.commit}", "totals"), history.show, session)
        next = await _next_module(run, killing.commit)
        _say("The next module, in one transaction: counters, checkpoint, task and result change together.")
        await _run(("diff", space, f"main#{next - 1}", f"main#{next}"), history.diff, session)
        _say(f"Which agent has done the task that {killing.agent} held?")
        await _run(("blame", space, f"['module/{killing.module}']"), history.blame, session)
    else:
        _say("What did the last transaction change, and which agent made it?")
        await _run(("diff", space, "main~1", "main"), history.diff, session)
        await _run(("blame", space, "totals"), history.blame, session)


async def _next_module(run: Space, behind: int) -> int:
    """Return the number of the first commit after `behind` that indexed a module."""
    number = behind + 1
    while not (await run.history.find(f"main#{number}")).message.startswith("index "):
        number += 1
    return number


async def _run(words: Sequence[str], command: Callable[..., Awaitable[int]], session: Session) -> None:
    shown().print(Text(f"$ keepstate {' '.join(map(quote, words))}", "bold"), soft_wrap=True)
    await partial(command, *words[1:])(session=session)


def _say(text: str) -> None:
    shown().print(Text(f"\n{text}"), soft_wrap=True)
