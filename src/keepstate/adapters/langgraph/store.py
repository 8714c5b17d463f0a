"""`KeepstateStore`: LangGraph's long-term memory in any keepstate store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence, Sized
from os import PathLike
from typing import TYPE_CHECKING, TypeVar, cast
from weakref import WeakKeyDictionary

from langgraph.store.base import (
    Embeddings,
    GetOp,
    IndexConfig,
    ListNamespacesOp,
    Op,
    PutOp,
    Result,
    SearchOp,
    TTLConfig,
)

from keepstate._finish import finish
from keepstate._runner import Signal
from keepstate._runner import Work as BackgroundWork
from keepstate.adapters.langgraph.item_store import ItemStore, StoredVectors
from keepstate.adapters.langgraph.items import lifetime_ms
from keepstate.adapters.langgraph.on_store import Done, OnStore, open_handles
from keepstate.adapters.langgraph.operations import Keyed, check_operations
from keepstate.adapters.langgraph.vectors import Index, Vectors
from keepstate.adapters.loop_handles import Work, both
from keepstate.engine.kernel.arguments import check_flag, check_space_name
from keepstate.engine.kernel.executor import SpaceExecutor
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import ClosedError, InvalidError, KeepstateError
from keepstate.names import DEFAULT_URL
from keepstate.stores.protocol import Store

if TYPE_CHECKING:
    from keepstate.stores.wrappers.encrypted import KeyRing

T = TypeVar("T")

_LOG = logging.getLogger("keepstate.adapters.langgraph")

_SPACE = "store"
_SWEEP_MINUTES = 5.0
_AT_ONCE = 64
_TTL_KEYS = frozenset(("default_ttl", "refresh_on_read", "sweep_interval_minutes", "omit_expired"))
"""`omit_expired` is an option of LangGraph's store on PostgreSQL; this store never returns expired items."""


class KeepstateStore(OnStore, Keyed):
    """LangGraph's `BaseStore` on a keepstate store: for `compile(store=…)`, in blocking and asynchronous use.

    All items are in one space. The puts of a `batch` apply together, up to 400 of them; its other operations
    see the state before them. No put is lost unless another one replaces it. Values are copied on put and on
    get. Expired items are never returned, swept or not. Threads may share a store.

    Args:
        url: A store URL, the path of an SQLite file, an open store, or a handle on one.
        index: Search by meaning: `dims`, `embed`, `fields`, `distance_type`. Vectors are compared in process.
        ttl: `default_ttl` in minutes, `refresh_on_read`, `sweep_interval_minutes`.
        tenant: The tenant of the items, if any.
        author: The author in recorded changes.
        encryption: The keys that encrypt values.
        space: The space of all items.
        record: Record each change, so that `keepstate log` and `show` can read past states.

    Raises:
        InvalidError: An argument is wrong, or the URL names no store.
        MissingExtraError: There is an index, and numpy is not installed.
    """

    supports_ttl = True

    def __init__(
        self,
        url: str | PathLike[str] | Store | Keepstate = DEFAULT_URL,
        *,
        index: Index | IndexConfig | None = None,
        ttl: TTLConfig | None = None,
        tenant: str | None = None,
        author: str | None = None,
        encryption: KeyRing | None = None,
        space: str = _SPACE,
        record: bool = False,
    ) -> None:
        self.ttl_config = _check_ttl(ttl)
        self._vectors = None if index is None else Vectors(index)
        self.index_config = None if index is None else index.copy()
        self._handles = open_handles(url, tenant=tenant, author=author, encryption=encryption)
        self._space = check_space_name("space", space, self._handles.tenant_id)
        self._record = check_flag("record", record)
        self._sweeper: BackgroundWork | None = None
        self._limits_by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
            WeakKeyDictionary()
        )

    def __repr__(self) -> str:
        return f"<KeepstateStore {self._space!r} of {self._handles!r}>"

    @property
    def embeddings(self) -> Embeddings | None:
        """The embedding model of the index, if there is one."""
        return None if self._vectors is None else self._vectors.embeddings

    # ---- opening and closing

    def close(self) -> None:
        """Stop the sweeper and close the store for blocking calls; a store that was passed in stays open."""
        self.stop_ttl_sweeper()
        super().close()

    async def aclose(self) -> None:
        """Stop the sweeper and close the store for this event loop and for blocking calls."""
        self.stop_ttl_sweeper()
        await super().aclose()

    # ---- operations

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Return the results of operations, in their order; see `BaseStore` for the single calls.

        Raises:
            InvalidError: An operation is wrong; none of them was done.
        """
        plan = _Plan(ops, self._vectors)
        made: Sequence[Sequence[float]] = ()
        if self._vectors is not None:
            if plan.texts:
                made = self._vectors.blocking().embed_documents(plan.texts)
            plan.queries = {text: self._vectors.blocking().embed_query(text) for text in plan.queries}
        return self._handles.finish(lambda handle: plan.perform(self._items(handle), made))

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Return the results of operations; as `batch`."""
        plan = _Plan(ops, self._vectors)
        made: Sequence[Sequence[float]] = ()
        if self._vectors is not None:
            if plan.texts:
                made = await self._vectors.embeddings.aembed_documents(plan.texts)
            plan.queries = {text: await self._vectors.embeddings.aembed_query(text) for text in plan.queries}
        async with self._limit():
            return await self._handles.wait(lambda handle: plan.perform(self._items(handle), made))

    def _limit(self) -> asyncio.Semaphore:
        """Return the semaphore of this event loop: other batches wait, and their timeouts do not run."""
        return self._limits_by_loop.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(_AT_ONCE))

    def _items(self, handle: Keepstate) -> ItemStore:
        space = handle.space(self._space)
        return ItemStore(SpaceExecutor(handle, space.name, space.author, record=self._record))

    # ---- times to live

    def _sweep_ttl(self) -> Work[int]:
        """Remove expired entries of the whole store, and return their number."""
        return Keepstate.sweep

    sweep_ttl, asweep_ttl = both(_sweep_ttl)

    def start_ttl_sweeper(self, sweep_interval_minutes: float | None = None) -> Done:
        """Sweep at intervals in a thread of its own, until it is stopped or the store is closed.

        Sweeping only frees storage, because expired items are never returned. The result may be awaited.

        Args:
            sweep_interval_minutes: The interval; by default that of the configuration, or 5 minutes.
        """
        configured = (self.ttl_config or {}).get("sweep_interval_minutes")
        interval_s = lifetime_ms(sweep_interval_minutes or configured or _SWEEP_MINUTES) / 1000
        handle = self._handles.blocking()

        async def sweeping(stopped: Signal) -> None:
            while not await stopped.wait(interval_s):
                try:
                    await handle.sweep()
                except KeepstateError as error:
                    _LOG.warning("expired items of %r stay until the next sweep: %s", self, error)
                    if isinstance(error, ClosedError):
                        return  # no sweep can follow

        if self._sweeper is None:
            self._sweeper = handle.runner.start(sweeping, "ttl sweeper")
        return Done()

    def stop_ttl_sweeper(self, timeout: float | None = None) -> bool:
        """Stop the sweeper after its current sweep; return True.

        Args:
            timeout: Accepted for compatibility with LangGraph; the wait is at most 5 s.
        """
        work, self._sweeper = self._sweeper, None
        if work is not None:
            finish(work.stop())
        return True


class _Plan:
    """The operations of a batch by kind, and the texts to embed for them.

    Attributes:
        texts: The texts to embed for puts, in order.
        queries: The vector of each query, once it is computed.
    """

    def __init__(self, ops: Iterable[Op], vectors: Vectors | None) -> None:
        self._ops, self._vectors = check_operations(ops), vectors
        last = {(tuple(op.namespace), op.key): op for op in self._ops if isinstance(op, PutOp)}
        self._puts = list(last.values())
        self._paths = [vectors.texts(op) if vectors is not None else {} for op in self._puts]
        self.texts = [text for paths in self._paths for text in paths.values()]
        self.queries: dict[str, Sequence[float]] = {}
        if vectors is not None:
            self.queries = {op.query: () for op in self._ops if isinstance(op, SearchOp) and op.query}

    async def perform(self, items: ItemStore, made: Sequence[Sequence[float]]) -> list[Result]:
        """Read first, then put; return the results in the order of the operations."""
        stored = self._stored(made)
        results: list[Result] = [None] * len(self._ops)
        gets = [(place, op) for place, op in enumerate(self._ops) if isinstance(op, GetOp)]
        if gets:
            found = await items.get([op for _, op in gets])
            for (place, _), item in zip(gets, found, strict=True):
                results[place] = item
        for place, op in enumerate(self._ops):
            if isinstance(op, SearchOp):
                query = self.queries.get(op.query) if op.query else None
                results[place] = cast("Result", await items.search(op, self._vectors, query))
            elif isinstance(op, ListNamespacesOp):
                results[place] = await items.list_namespaces(op)
        if self._puts:
            await items.put(self._puts, stored)
        return results

    def _stored(self, made: Sequence[Sequence[float]]) -> list[StoredVectors]:
        if self._vectors is None:
            return [{} for _ in self._puts]
        count = len(made) if isinstance(cast("object", made), Sized) else 0
        if count != len(self.texts):
            raise InvalidError(
                f"the model returned {count} vectors for {len(self.texts)} texts; `embed` of the index must "
                "return one for each text"
            )
        given = iter(made)
        return [self._vectors.stored(paths, [next(given) for _ in paths]) for paths in self._paths]


def _check_ttl(ttl: TTLConfig | None) -> TTLConfig | None:
    if ttl is None:
        return None
    if not isinstance(cast("object", ttl), Mapping):
        raise InvalidError(
            f"`ttl` of the store is {ttl!r}; it must be a dict with `default_ttl` and other options"
        )
    if unknown := ttl.keys() - _TTL_KEYS:
        raise InvalidError(f"`ttl` has {min(unknown)!r}; there are {', '.join(sorted(_TTL_KEYS))}")
    for minutes in (ttl.get("default_ttl"), ttl.get("sweep_interval_minutes")):
        if minutes is not None:
            lifetime_ms(minutes)
    return ttl
