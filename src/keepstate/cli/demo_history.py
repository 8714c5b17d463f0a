"""How the demo ends: the history that it has made, shown by commands that anybody can run again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from rich.text import Text

from keepstate.cli import history
from keepstate.cli.session import Session, quoted, shown
from keepstate.engine.history.paths import shown as path_shown
from keepstate.engine.space import Space
from keepstate.errors import NotFoundError

_EARLY = 37


@dataclass(slots=True)
class Killing:
    """What was when the first worker was killed.

    Attributes:
        worker: Who was killed.
        commit: The last commit before, by its number.
        modules: What the worker held, and others have done since.
    """

    worker: str
    commit: int
    modules: Sequence[str] = field(default_factory=tuple[str, ...])


async def commits_of(run: Space) -> int:
    """Returns how many commits a recorded space has."""
    try:
        return (await run.history.find()).number or 0
    except NotFoundError:
        return 0


async def tell(space: str, url: str, commits: int, killing: Killing | None) -> None:
    """Shows the space's history, each step by its command.

    Args:
        space: The space.
        url: Where it is.
        commits: How many there are.
        killing: When a worker was killed, if one was.
    """
    session = Session(url=url)
    _say(f"{commits:,} transactions changed documents, and each is a moment that can be read again.")
    early = min(_EARLY, commits)
    await _run(("show", space, f"main#{early}", "totals"), history.show, session)
    if killing is not None and killing.commit:
        before = f"main#{killing.commit}"
        _say(f"Time travel: what was known when {killing.worker} was killed, and what came next.")
        await _run(("show", space, before, "totals"), history.show, session)
        if killing.commit < commits:
            await _run(("diff", space, before, f"main#{killing.commit + 1}"), history.diff, session)
        if killing.modules:
            path = path_shown((f"module/{killing.modules[-1]}",))
            _say(f"Who has done what {killing.worker} held?")
            await _run(("blame", space, path), history.blame, session)
    else:
        _say("What did the last transaction change, and who counted last?")
        if commits > 1:
            await _run(("diff", space, "main~1", "main"), history.diff, session)
        await _run(("blame", space, "totals"), history.blame, session)


async def _run(words: Sequence[str], command: Callable[..., Awaitable[int]], session: Session) -> None:
    shown().print(Text(f"$ keepstate {' '.join(map(quoted, words))}", "bold"), soft_wrap=True)
    await partial(command, *words[1:])(session=session)


def _say(text: str) -> None:
    shown().print(Text(f"\n{text}"), soft_wrap=True)
