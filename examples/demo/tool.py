"""The tool of the demo: it returns the origin of an imported module, and fails now and then.

Answers are cached. Concurrent calls for the same name, in any process, wait for one execution. For one name
in eight, the first call of a process fails like a network, and is retried.
"""

from __future__ import annotations

import asyncio
import sys
from importlib.util import find_spec
from typing import Any
from zlib import crc32

from examples.demo.stage import LEASE_S, TOOL
from keepstate import ToolExecutionStatus, ToolStateManager

_FAILS_ONE_IN = 8
_TAKES_S = 0.005
_FIRST_DELAY_S = 0.05
_failed = set[str]()


async def ask(tools: ToolStateManager, name: str, *, id: str) -> str:
    """Return the origin of a module, and retry while the tool fails.

    Args:
        tools: The manager of the tool.
        name: The module.
        id: The name of the execution, if the answer is not cached.
    """
    wait_s = 0.0
    while True:
        await asyncio.sleep(wait_s)
        try:
            entry = await tools.run(TOOL, {"module": name}, locate, execution_id=id, lease_s=LEASE_S)
        except ConnectionError as error:
            await tools.schedule_retry(id, error, first_delay_s=_FIRST_DELAY_S)
            wait_s = wait_s * 2 or _FIRST_DELAY_S
            continue
        if wait_s:
            await _drop_overtaken(tools, id)
        answer: str = entry.result
        return answer


async def _drop_overtaken(tools: ToolStateManager, id: str) -> None:
    """Cancel a retry that another caller has made unnecessary by getting the answer."""
    execution = await tools.get_execution(id)
    if execution is not None and execution.status is ToolExecutionStatus.FAILED:
        await tools.cancel_execution(id, "another caller got the answer")


async def locate(parameters: dict[str, Any]) -> str:
    """Return the origin of a module of this Python."""
    name: str = parameters["module"]
    await asyncio.sleep(_TAKES_S)
    if name not in _failed and crc32(name.encode()) % _FAILS_ONE_IN == 0:
        _failed.add(name)
        raise ConnectionError("the catalogue does not answer")
    if name in sys.builtin_module_names:
        return "built in"
    if name not in sys.stdlib_module_names:
        return "elsewhere"
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.origin is None:
        return "other systems"
    return "Python" if spec.origin.endswith(".py") else "extension"
