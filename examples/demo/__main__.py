"""Run the demo: `python -m examples.demo --help` in the checkout, or `make demo`."""

from __future__ import annotations

import asyncio
import sys
from shutil import rmtree
from tempfile import mkdtemp
from typing import Annotated

from cyclopts import App, Parameter

from examples.demo.play import Play
from keepstate import InvalidError, KeepstateError
from keepstate.cli import exits
from keepstate.cli.display import discard_output, said

app = App(name="demo", help_epilogue=exits.HELP, result_action="return_value")


@app.default
def demo(
    *,
    workers: Annotated[int, Parameter(help="Number of agents, each a process.")] = 4,
    kill: Annotated[int, Parameter(help="Number of agents to kill while they work.")] = 1,
    most: Annotated[int | None, Parameter(help="Index only the first N modules.")] = None,
    url: Annotated[
        str | None,
        Parameter(help="A store that processes can share. Default: a database in a new temporary folder."),
    ] = None,
    keep: Annotated[bool, Parameter(negative="", help="Leave the demo's spaces in the store.")] = False,
    serve: Annotated[
        bool, Parameter(negative="", help="Serve the store afterwards, and print a link to the inspector.")
    ] = False,
    json: Annotated[bool, Parameter(negative="", help="Print JSON, one document.")] = False,
) -> int:
    """Let a team of agents index Python's own library. Kill one of them, then pause and resume the rest.

    A workflow gives the team a task for each module. The agents claim tasks and ask a tool that sometimes
    fails. Each task ends in one transaction: task, result, shared counters, knowledge base, checkpoint and
    event. One agent is killed and recovered. The workflow is paused, its conductor is killed, and it is
    resumed. At the end the demo counts everything again, module by module, and prints the data of each
    manager and the state of the run at earlier moments. The exit code is 0 if all numbers are equal.
    """
    try:
        check_numbers(workers, kill, most)
        if serve and json:
            raise InvalidError("--serve and --json exclude each other; give one of them")
        play = Play(workers, kill, most, as_json=json)
        code = asyncio.run(run(play, url, keep=keep or serve, serve=serve))
        sys.stdout.flush()
        return code
    except KeepstateError as error:
        said().print(f"demo: {' '.join(str(error).split())}", markup=False)
        return exits.code_of(error)
    except BrokenPipeError:  # the reader of the output has closed it, as `head` does
        discard_output()
        return exits.OK
    except KeyboardInterrupt:
        return exits.INTERRUPTED


async def run(play: Play, url: str | None, *, keep: bool, serve: bool = False) -> int:
    """Play on a store, or on a database in a new folder, and return the exit code."""
    if url is not None:
        return await play_and_serve(play, url, keep=keep, serve=serve)
    folder, is_kept = mkdtemp(prefix="keepstate-demo-"), False
    try:
        url = f"sqlite:///{folder}/demo.db"
        code = await play_and_serve(play, url, keep=not play.as_json, serve=serve)
        is_kept = keep or (code == exits.OK and not play.as_json)
        return code
    finally:
        if is_kept:
            said().print(f"The store stays. To remove it: rm -r {folder}", markup=False)
        else:
            rmtree(folder, ignore_errors=True)


async def play_and_serve(play: Play, url: str, *, keep: bool, serve: bool) -> int:
    """Play on a store; with `serve`, serve it then, until Ctrl-C."""
    code = await play.on(url, keep=keep)
    if not serve or code != exits.OK:
        return code
    said().print("\nServing the store for a browser, until Ctrl-C:", markup=False)
    sys.stdout.flush()
    words = ("-m", "keepstate", "serve", "--open", "--port", "0", "--url", url)
    server = await asyncio.create_subprocess_exec(sys.executable, *words)
    try:
        return await server.wait()
    except asyncio.CancelledError:  # Ctrl-C reaches the server too, which ends by itself
        await server.wait()
        raise


def check_numbers(workers: int, kill: int, most: int | None) -> None:
    """Check the options that are numbers."""
    for option, given, least in (("workers", workers, 1), ("kill", kill, 0), ("most", most, 1)):
        if given is not None and given < least:
            raise InvalidError(f"--{option} {given} is too small; give {least} or more")
    if kill >= workers:
        raise InvalidError(f"--kill {kill} of --workers {workers} leaves no agent; at least one has to live")


if __name__ == "__main__":
    sys.exit(app())
