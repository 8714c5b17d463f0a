"""A process of the demo: an agent, or the conductor.

`python -m examples.demo.worker SPACE NAME` reads the URL from standard input. Its results are in the store.
It prints only the reason of a failure, and its exit code is that of the error.
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
    """Run the agent or conductor of a name."""
    async with open_store(url, author=name) as ks:
        run, tools = stage.open_run(ks, space, name), stage.open_tools(ks, space)
        try:
            await (Conductor(run, tools) if name == stage.CONDUCTOR else Agent(name, run, tools)).work()
        finally:
            await tools.close()


def main() -> int:
    """Run a worker and return its exit code."""
    try:
        asyncio.run(work(sys.stdin.read(), *sys.argv[1:3]))
    except KeepstateError as error:
        sys.stdout.write(" ".join(str(error).split()))
        return exits.code_of(error)
    except Exception as error:  # noqa: BLE001  one line reports any failure
        sys.stdout.write(f"{type(error).__name__}: {error}")
        return exits.FAILED
    return exits.OK


if __name__ == "__main__":
    sys.exit(main())
