"""The demo's command: a team at work on one store, some of it killed, and in the end all is counted again."""

from __future__ import annotations

from shutil import rmtree
from tempfile import mkdtemp
from typing import Annotated

from cyclopts import Parameter

from keepstate.cli import exits
from keepstate.cli.session import said
from keepstate.errors import InvalidError


async def demo(
    *,
    workers: Annotated[int, Parameter(help="How many agents, each a process.")] = 4,
    kill: Annotated[int, Parameter(help="How many of them to kill in mid-run.")] = 1,
    most: Annotated[int | None, Parameter(help="Only the first so many modules.")] = None,
    url: Annotated[
        str | None,
        Parameter(
            help="A store that processes can share; default: a database in a temporary folder, which stays."
        ),
    ] = None,
    keep: Annotated[
        bool, Parameter(negative="", help="Leave the spaces in the store, to look into them afterwards.")
    ] = False,
    json: Annotated[bool, Parameter(negative="", help="Print JSON, one document.")] = False,
) -> int:
    """Let a team of agents index Python's own library, kill one of them, pause and resume it all.

    A workflow gives the team a task for each module. Its agents, each a process, claim tasks, ask a tool that
    sometimes fails, and finish each in one transaction: task, result, shared counters, knowledge base,
    checkpoint and event. One is killed and recovered; the workflow is paused, its conductor killed, and it is
    resumed. At the end everything is counted again, one module after the other: exit code 0 if all is equal,
    to the last one. Then you see what each manager knows, and what was known at each moment, and by whom.
    """
    _refuse_numbers(workers, kill, most)
    from keepstate.cli.demo.play import Play  # what it needs is much, and no other command needs it

    play = Play(workers, kill, most, as_json=json)
    if url is not None:
        return await play.on(url, keep=keep)
    folder, is_kept = mkdtemp(prefix="keepstate-demo-"), False
    try:
        code = await play.on(f"sqlite:///{folder}/demo.db", keep=not json)
        is_kept = keep or (code == exits.OK and not json)
        return code
    finally:
        if is_kept:
            said().print(f"The store stays. When you have seen enough of it: rm -r {folder}", markup=False)
        else:
            rmtree(folder, ignore_errors=True)


def _refuse_numbers(workers: int, kill: int, most: int | None) -> None:
    for option, given, least in (("workers", workers, 1), ("kill", kill, 0), ("most", most, 1)):
        if given is not None and given < least:
            raise InvalidError(f"--{option} {given} is too few; give {least} or more")
    if kill >= workers:
        raise InvalidError(f"--kill {kill} of --workers {workers} leaves nobody; one has to stay alive")
