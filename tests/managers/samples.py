"""The blocks of code that agenticaiframework published, as on its page, and the names they leave free."""

from __future__ import annotations

import ast
import asyncio
import gc
import inspect
import re
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

from keepstate.managers.manager import Manager

Namespace = dict[str, Any]


@dataclass(frozen=True)
class Sample:
    """A block: the last heading before it, and its text."""

    heading: str
    text: str


def read_samples(page: Path) -> list[Sample]:
    """Return the blocks in order; each stands between a line `Python` and the next heading."""
    samples: list[Sample] = []
    heading = ""
    code: list[str] | None = None
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.endswith("ΒΆ"):
            if code is not None:
                samples.append(Sample(heading, "\n".join(code).strip() + "\n"))
            heading, code = line.removesuffix("ΒΆ").strip(), None
        elif line == "Python":
            code = []
        elif code is not None and not line.isdigit():  # the numbers of lines stand beside some
            code.append(line)
    return samples


def placed(text: str, url: str) -> str:
    """Return a block with the import path and the server's address changed, for a store of any kind."""
    text = text.replace("from agenticaiframework.state import", "from keepstate import")
    if url.startswith("redis://"):
        text = text.replace('"redis://localhost:6379"', repr(url))
        return re.sub(r'persistence="redis"(?!,\n\s*redis_url)', f"persistence={url!r}", text)
    text = re.sub(r'((?:persistence|backend)="redis",)\n\s*redis_url="[^"]*",', r"\1", text)
    return re.sub(r'(persistence|backend)="redis"', rf"\1={url!r}", text)


class SampleAgent:
    """The agent that the samples speak of: it fails once, and remembers what it was restored from."""

    id = "researcher_01"

    def __init__(self) -> None:
        self.memory = SimpleNamespace(export=lambda: {"facts": {"water is wet"}})
        self.tools = SimpleNamespace(get_state=lambda: {"search": 3})
        self.conversation_history = [{"role": "user", "content": "Hello"}]
        self.restored: list[Any] = []

    def restore_from_checkpoint(self, state: Any) -> None:
        self.restored.append(state)

    async def run(self, task: Any) -> Any:
        raise ConnectionError(f"{task} failed")

    async def resume(self) -> str:
        return "resumed"


@dataclass
class Stage:
    """One run of all blocks in one namespace, in one event loop."""

    url: str
    namespace: Namespace = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        async def execute(parameters: Any) -> Any:
            return {"executed": parameters}

        async def retry_tool(retry: Any) -> None:
            self.namespace.setdefault("retried", []).append(retry)

        self.namespace |= {
            "__name__": "sample",
            "agent": SampleAgent(),
            "task": "task",
            "tool": SimpleNamespace(execute=execute),
            "results": [1, 2, 3],
            "retry_tool": retry_tool,
            "current_state": {"pages": 12},
            "workflow_context": {"topic": "AI"},
            "datetime": datetime,
            "timedelta": timedelta,
        }

    def run(self, sample: Sample, loop: asyncio.Runner) -> None:
        """Execute a block."""
        code = compile(
            placed(sample.text, self.url),
            f"<{sample.heading}>",
            "exec",
            flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
            dont_inherit=True,
        )
        if code.co_flags & inspect.CO_COROUTINE:
            loop.run(FunctionType(code, self.namespace)())
        else:
            exec(code, self.namespace)

    async def close(self) -> None:
        """Close every manager that a block made and the namespace still has."""
        for manager in [each for each in self.namespace.values() if isinstance(each, Manager)]:
            await manager.close()
        gc.collect()
