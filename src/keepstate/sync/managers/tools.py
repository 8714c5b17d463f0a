"""Blocking twins of `keepstate.managers.tools.manager`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from os import PathLike

from keepstate._finish import finish
from keepstate.managers.backends import Backend
from keepstate.managers.tools import manager as managers
from keepstate.managers.tools.records import ToolExecution
from keepstate.stores.protocol import Store
from keepstate.sync.keepstate import Keepstate
from keepstate.sync.managers.tools_results import ToolResults
from keepstate.sync.space import Space, Transaction
from keepstate.sync.twin import inner_of


class ToolStateManager(ToolResults[managers.ToolStateManager]):
    """The use of tools, in 16 spaces `tools/<n>`.

    Attributes:
        cache_results: Whether the results of completed executions are cached.
        cache_ttl: Seconds for which they are cached; None for ever. Ignored if they are not cached.

    Args:
        persistence: Storage of the data; see `StateManager`.
        url: The URL, if `persistence` names a backend.
        redis_url: The URL of a Redis server.
        file_path: The file of a journal or SQLite database.
        space: A space or transaction that stores the data, in place of a store.
        cache_results: Whether to cache results. Leave it off if a tool has effects, or if its result depends
            on more than its parameters.
        cache_ttl: Seconds for which results are cached; None for ever.
    """

    def __init__(
        self,
        *,
        persistence: str | Backend | Store | Keepstate | None = None,
        url: str | None = None,
        redis_url: str | None = None,
        file_path: str | PathLike[str] | None = None,
        space: Space | Transaction | None = None,
        cache_results: bool = False,
        cache_ttl: float | None = 3600,
    ) -> None:
        super().__init__(
            managers.ToolStateManager(
                persistence=inner_of(persistence) if isinstance(persistence, Keepstate) else persistence,
                url=url,
                redis_url=redis_url,
                file_path=file_path,
                space=inner_of(space)
                if isinstance(space, Space)
                else inner_of(space)
                if isinstance(space, Transaction)
                else space,
                cache_results=cache_results,
                cache_ttl=cache_ttl,
                _mode="blocking",
            )
        )

    @property
    def cache_results(self) -> bool:
        """Whether the results of completed executions are cached."""
        return self._inner.cache_results

    @property
    def cache_ttl(self) -> float | None:
        """Seconds for which they are cached; None for ever. Ignored if they are not cached."""
        return self._inner.cache_ttl

    def complete_execution(
        self, execution_id: str, result: object = None, duration_ms: float | None = None
    ) -> ToolExecution:
        """Record the result of an execution, and return it. Again with an equal result does nothing.

        With `cache_results`, the result is also cached for equal parameters. If caching failed, repeating the
        call caches it for the rest of its time.

        Args:
            execution_id: The execution.
            result: The tool's return value; None is a result too.
            duration_ms: Duration in milliseconds; by default it is measured with the store's clock.

        Raises:
            NotFoundError: The execution was never started.
            TransitionError: The execution is not running, or completed with another result.
        """
        return finish(self._inner.complete_execution(execution_id, result, duration_ms))

    def close(self) -> None:
        """Store the counted lookups, and release the store."""
        finish(self._inner.close())
