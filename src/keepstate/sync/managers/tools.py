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
from keepstate.sync.space import Space
from keepstate.sync.transaction import Transaction
from keepstate.sync.twin import inner_of


class ToolStateManager(ToolResults[managers.ToolStateManager]):
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
        """Whether completed executions leave their results in the cache."""
        return self._inner.cache_results

    @property
    def cache_ttl(self) -> float | None:
        """For how many seconds; None for ever. Of no account where they leave none."""
        return self._inner.cache_ttl

    def complete_execution(
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
        return finish(self._inner.complete_execution(execution_id, result, duration_ms))

    def close(self) -> None:
        """Note what was counted, and let go of the store."""
        finish(self._inner.close())
