"""A process of the demo: an agent, or the conductor.

`python -m examples.demo.worker SPACE NAME` reads the URL from standard input. What it has done stands in
the store; only if it fails does it print why, and its exit code is that of the error.
"""

from __future__ import annotations

import asyncio
import sys

from examples.demo import stage
from examples.demo.agent import Agent
from examples.demo.conductor import Conductor
from keepstate import KeepstateError
from keepstate import open as open_store
from keepstate.cli import exits


async def work(url: str, space: str, name: str) -> None:
    """Do what somebody of this name does."""
    async with open_store(url, author=name) as ks:
        run, tools = stage.shared(ks, space, name), stage.tools(ks, space)
        try:
            await (Conductor(run, tools) if name == stage.CONDUCTOR else Agent(name, run, tools)).work()
        finally:
            await tools.close()


def main() -> int:
    """Return the exit code of a worker."""
    try:
        asyncio.run(work(sys.stdin.read(), *sys.argv[1:3]))
    except KeepstateError as error:
        sys.stdout.write(" ".join(str(error).split()))
        return exits.code_of(error)
    except Exception as error:  # noqa: BLE001  whatever it is, one line says it
        sys.stdout.write(f"{type(error).__name__}: {error}")
        return exits.FAILED
    return exits.OK


if __name__ == "__main__":
    sys.exit(main())
