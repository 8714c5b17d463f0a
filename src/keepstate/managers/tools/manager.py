"""Tools: executions, results, retries, effects, and statistics."""

from __future__ import annotations

from os import PathLike
from typing import Any, ClassVar

from keepstate._runner import Mode
from keepstate.engine.kernel.arguments import check_duration_ms, check_flag
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space, Transaction
from keepstate.managers.backends import Backend
from keepstate.managers.deadlines import caller_now
from keepstate.managers.parameters import parameters_hash
from keepstate.managers.tools.keys import Lookups
from keepstate.managers.tools.records import ToolCacheEntry, ToolExecution
from keepstate.managers.tools.results import ToolResults
from keepstate.managers.tools.single_flight import SingleFlight
from keepstate.stores.protocol import Store


class ToolStateManager(ToolResults):
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

    _kind: ClassVar[str] = "tools"
    cache_results: bool
    cache_ttl: float | None

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
        _mode: Mode = "async",
    ) -> None:
        super().__init__(
            persistence=persistence,
            url=url,
            redis_url=redis_url,
            file_path=file_path,
            space=space,
            _mode=_mode,
        )
        if cache_ttl is not None:
            check_duration_ms("cache_ttl", cache_ttl)
        self.cache_results, self.cache_ttl = check_flag("cache_results", cache_results), cache_ttl
        self._lookups = Lookups()
        self._flights = SingleFlight(self._runner)

    def __getstate__(self) -> dict[str, Any]:
        left = {name: value for name, value in super().__getstate__().items() if name not in _UNPICKLED}
        return left

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lookups, self._flights = Lookups(), SingleFlight(self._runner)

    async def complete_execution(
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
        execution, is_new = await self._complete(execution_id, result, duration_ms)
        if self.cache_results:
            hash = parameters_hash(execution.tool_name, execution.parameters)
            entry = ToolCacheEntry(
                execution.tool_name, hash, result, caller_now(self._clock), ttl=self.cache_ttl
            )
            await (self.cache_result(entry) if is_new else self._cache_earlier(entry, execution.completed_at))
        return execution

    async def close(self) -> None:
        """Store the counted lookups, and release the store."""
        try:
            await self._store_lookups()
        finally:
            await super().close()


_UNPICKLED = ("_lookups", "_flights")
