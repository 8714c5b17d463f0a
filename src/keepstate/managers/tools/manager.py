"""Tools: their executions, results, retries, effects, and what became of it all."""

from __future__ import annotations

from os import PathLike
from typing import Any, ClassVar

from keepstate._runner import Mode
from keepstate.engine.kernel.arguments import check_flag
from keepstate.engine.kernel.times import check_duration_ms
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space
from keepstate.engine.space.transaction import Transaction
from keepstate.managers.backends import Backend
from keepstate.managers.deadlines import present
from keepstate.managers.parameters import parameters_hash
from keepstate.managers.tools.keys import Lookups
from keepstate.managers.tools.records import ToolCacheEntry, ToolExecution
from keepstate.managers.tools.results import ToolResults
from keepstate.managers.tools.single_flight import Flights
from keepstate.stores.protocol import Store


class ToolStateManager(ToolResults):
    """The use of tools, in 16 spaces `tools/<n>`.

    Attributes:
        cache_results: Whether completed executions leave their results in the cache.
        cache_ttl: For how many seconds; None for ever. Of no account where they leave none.

    Args:
        persistence: Where to keep it; see `StateManager`.
        url: The URL, if `persistence` names a kind of store.
        redis_url: The URL of a Redis server.
        file_path: The file of a journal or SQLite database.
        space: Instead: the space or transaction to keep it in.
        cache_results: As the attribute. Leave it off where a tool has effects, or its result depends on more
            than its parameters.
        cache_ttl: As the attribute.
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
        self._flights = Flights(self._runner)

    def __getstate__(self) -> dict[str, Any]:
        left = {name: value for name, value in super().__getstate__().items() if name not in _UNPICKLED}
        return left

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lookups, self._flights = Lookups(), Flights(self._runner)

    async def complete_execution(
        self, execution_id: str, result: object = None, duration_ms: float | None = None
    ) -> ToolExecution:
        """Note what an execution came to, and return it; again with an equal result does nothing.

        With `cache_results` the result is kept for equal parameters from then on. Where that failed, the same
        call again keeps it, for what is left of its time.

        Args:
            execution_id: Which execution.
            result: What the tool returned; None is a result too.
            duration_ms: How long it took, in milliseconds; by the store's clock, if it is not said.

        Raises:
            NotFoundError: It was never started.
            TransitionError: It is not running, or completed with another result.
        """
        execution, is_new = await self._complete(execution_id, result, duration_ms)
        if self.cache_results:
            hash = parameters_hash(execution.tool_name, execution.parameters)
            entry = ToolCacheEntry(
                execution.tool_name, hash, result, present(self._clock), ttl=self.cache_ttl
            )
            await (self.cache_result(entry) if is_new else self._cache_late(entry, execution.completed_at))
        return execution

    async def close(self) -> None:
        """Note what was counted, and let go of the store."""
        try:
            await self._note_lookups()
        finally:
            await super().close()


_UNPICKLED = ("_lookups", "_flights")
