"""How the demo ends: the history that it has made, shown by commands that anybody can run again."""

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
    """What was when the first agent was killed.

    Attributes:
        agent: Who was killed.
        commit: The last commit before, by its number.
        module: What it held, and somebody has done since.
    """

    agent: str
    commit: int
    module: str


async def commits_of(run: Space) -> int:
    """Return how many commits a recorded space has."""
    try:
        return (await run.history.find()).number or 0
    except NotFoundError:
        return 0


async def tell(run: Space, url: str, commits: int, killing: Killing | None) -> None:
    """Show the space's history, each step by its command.

    Args:
        run: The space.
        url: Where it is.
        commits: How many there are.
        killing: When an agent was killed, if one was.
    """
    session, space = Session(url=url), run.name
    _say(f"{commits:,} transactions changed documents, and each is a moment that can be read again.")
    early = min(_EARLY, commits)
    await _run(("show", space, f"main#{early}", "totals"), history.show, session)
    if killing is not None:
        _say(f"Time travel: what was known when {killing.agent} was killed.")
        await _run(("show", space, f"main#{killing.commit}", "totals"), history.show, session)
        next = await _next_module(run, killing.commit)
        _say("The next module, in one transaction: counters, checkpoint, task and result, or nothing.")
        await _run(("diff", space, f"main#{next - 1}", f"main#{next}"), history.diff, session)
        _say(f"Who has done what {killing.agent} held?")
        await _run(("blame", space, f"['module/{killing.module}']"), history.blame, session)
    else:
        _say("What did the last transaction change, and who counted last?")
        await _run(("diff", space, "main~1", "main"), history.diff, session)
        await _run(("blame", space, "totals"), history.blame, session)


async def _next_module(run: Space, behind: int) -> int:
    """Return the number of the first commit behind another that has a module in it."""
    number = behind + 1
    while not (await run.history.find(f"main#{number}")).message.startswith("index "):
        number += 1
    return number


async def _run(words: Sequence[str], command: Callable[..., Awaitable[int]], session: Session) -> None:
    shown().print(Text(f"$ keepstate {' '.join(map(quote, words))}", "bold"), soft_wrap=True)
    await partial(command, *words[1:])(session=session)


def _say(text: str) -> None:
    shown().print(Text(f"\n{text}"), soft_wrap=True)
