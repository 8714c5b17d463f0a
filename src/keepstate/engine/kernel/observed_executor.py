"""Executor of an observed handle: reports attempts, revisions and commits to the observer.

Deliberately absent: any change of how work runs. Each method calls the executor of a plain handle.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from keepstate.engine.kernel.executor import ATTEMPTS, SpaceExecutor
from keepstate.engine.kernel.observation import current
from keepstate.engine.kernel.unit import Unit
from keepstate.stores.protocol import Applied, Entry

T = TypeVar("T")


class ObservedExecutor(SpaceExecutor):
    """Counts the attempts of the present operation, and notes its revision."""

    async def run(
        self,
        work: Callable[[Unit], Awaitable[T]],
        *,
        attempts: int | None = ATTEMPTS,
        supposes: bool = False,
    ) -> tuple[T, int]:
        """Run work, as an operation of its own if it is not part of one."""
        run = super().run
        if current() is not None:
            return await run(work, attempts=attempts, supposes=supposes)
        name = ".".join(work.__qualname__.split(".")[:2]).lower().replace("._", ".")
        observation, operation = self.begin_operation(name, self)
        return await observation.run(operation, lambda: run(work, attempts=attempts, supposes=supposes))

    async def read_once(self, key: bytes) -> tuple[Entry, bytes] | None:
        """Return an entry and its complete value, as one attempt of the operation."""
        if (operation := current()) is not None:
            operation.attempts += 1
        return await super().read_once(key)

    async def retry(
        self,
        once: Callable[[], Awaitable[T]],
        attempts: int | None,
        *,
        lost: int = 0,
        advice: str = "try again later",
    ) -> T:
        """Call `once` until there is no conflict, and count the calls."""
        operation = current()
        if operation is not None:
            operation.attempts = max(operation.attempts, lost)

        async def counted() -> T:
            if operation is not None:
                operation.attempts += 1
            return await once()

        return await super().retry(counted, attempts, lost=lost, advice=advice)

    async def apply(self, unit: Unit) -> Applied | None:
        """Apply a unit, and note its revision."""
        applied = await super().apply(unit)
        if (operation := current()) is not None and applied is not None and unit.writes:
            operation.revision = applied.revision
            if unit.recorded is not None:
                operation.commit = unit.recorded.id.hex()
        return applied
