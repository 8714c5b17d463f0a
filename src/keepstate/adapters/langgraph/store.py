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
from keepstate._runner import Signal, Work
from keepstate.adapters.langgraph.contexts import Done, OnStore
from keepstate.adapters.langgraph.item_calls import Keyed
from keepstate.adapters.langgraph.item_store import Kept, Shelf
from keepstate.adapters.langgraph.items import lifetime_ms
from keepstate.adapters.langgraph.loop_handles import Homes
from keepstate.adapters.langgraph.operations import admitted
from keepstate.adapters.langgraph.vectors import Index, Vectors
from keepstate.engine.kernel.arguments import check_flag, check_space_name
from keepstate.engine.kernel.executor import SpaceExecutor
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import ClosedError, InvalidError, KeepstateError
from keepstate.opening import DEFAULT_URL
from keepstate.stores.protocol import Store

if TYPE_CHECKING:
    from keepstate.stores.wrappers.encrypted import KeyRing

T = TypeVar("T")

_LOG = logging.getLogger("keepstate.adapters.langgraph")

_SPACE = "store"
_SWEEP_MINUTES = 5.0
_AT_ONCE = 64
_TTL_KEYS = frozenset(("default_ttl", "refresh_on_read", "sweep_interval_minutes", "omit_expired"))
"""The last is how LangGraph's store on PostgreSQL is told not to give what has expired; ours never does."""


class KeepstateStore(OnStore, Keyed):
    """LangGraph's `BaseStore` on a keepstate store: for `compile(store=…)`, in blocking and asynchronous use.

    All items are in one space. The puts of a `batch` apply together, up to 400 of them, and its other
    operations see what was there before. No put is lost that another one does not replace. Values are copies
    both ways. What has outlived its time to live is never given, swept or not. Threads may share it.

    Args:
        url: A store URL, the path of an SQLite file, an open store, or a handle on one.
        index: Finds items by meaning: `dims`, `embed`, `fields`, `distance_type`. Compared in process.
        ttl: `default_ttl` in minutes, `refresh_on_read`, `sweep_interval_minutes`.
        tenant: The tenant whose items they are, if any.
        author: Who writes, in what is recorded.
        encryption: The keys that values are encrypted under.
        space: The space that all items are in.
        record: Keeps every moment of all items, to be read again with `keepstate log` and `show`.

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
        self.ttl_config = _admitted_ttl(ttl)
        self._vectors = None if index is None else Vectors(index)
        self.index_config = None if index is None else index.copy()
        self._homes = Homes(url, tenant=tenant, author=author, encryption=encryption)
        self._space = check_space_name("space", space, self._homes.tenant_id)
        self._record = check_flag("record", record)
        self._sweeper: Work | None = None
        self._turns_by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
            WeakKeyDictionary()
        )

    def __repr__(self) -> str:
        return f"<KeepstateStore {self._space!r} of {self._homes!r}>"

    @property
    def embeddings(self) -> Embeddings | None:
        """Return what makes vectors of texts, if there is an index."""
        return None if self._vectors is None else self._vectors.embeddings

    # ---- opening and closing

    def close(self) -> None:
        """Let go of the store; twice is once. What was passed in open stays open."""
        self.stop_ttl_sweeper()
        self._homes.close()

    async def aclose(self) -> None:
        """Let go of the store in asynchronous use."""
        self.stop_ttl_sweeper()
        await self._homes.aclose()

    # ---- operations

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Return what each operation comes to, in their order; see `BaseStore` for the single calls.

        Raises:
            InvalidError: An operation cannot work as given; none of them was done.
        """
        plan = _Plan(ops, self._vectors)
        made: Sequence[Sequence[float]] = ()
        if self._vectors is not None:
            if plan.texts:
                made = self._vectors.blocking().embed_documents(plan.texts)
            plan.queries = {text: self._vectors.blocking().embed_query(text) for text in plan.queries}
        return self._homes.finish(lambda handle: plan.perform(self._shelf(handle), made))

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Return the same in asynchronous use."""
        plan = _Plan(ops, self._vectors)
        made: Sequence[Sequence[float]] = ()
        if self._vectors is not None:
            if plan.texts:
                made = await self._vectors.embeddings.aembed_documents(plan.texts)
            plan.queries = {text: await self._vectors.embeddings.aembed_query(text) for text in plan.queries}
        async with self._turns():
            return await self._homes.wait(lambda handle: plan.perform(self._shelf(handle), made))

    def _turns(self) -> asyncio.Semaphore:
        """Return what lets so many of this event loop through at once: others wait, and no timeout runs."""
        return self._turns_by_loop.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(_AT_ONCE))

    def _shelf(self, handle: Keepstate) -> Shelf:
        space = handle.space(self._space)
        return Shelf(SpaceExecutor(handle, space.name, space.author, record=self._record))

    # ---- times to live

    def sweep_ttl(self) -> int:
        """Remove what has expired anywhere in the store, and return how many entries that were."""
        return self._homes.finish(Keepstate.sweep)

    async def asweep_ttl(self) -> int:
        """Remove the same in asynchronous use."""
        return await self._homes.wait(Keepstate.sweep)

    def start_ttl_sweeper(self, sweep_interval_minutes: float | None = None) -> Done:
        """Sweep from time to time in a thread of its own, until it is stopped or the store closed.

        It only gives back room: what has expired is not given in any case. May be awaited.

        Args:
            sweep_interval_minutes: How often; without it, as the configuration says, or every 5 minutes.
        """
        told = (self.ttl_config or {}).get("sweep_interval_minutes")
        interval_s = lifetime_ms(sweep_interval_minutes or told or _SWEEP_MINUTES) / 1000
        handle = self._homes.blocking()

        async def sweeping(stopped: Signal) -> None:
            while not await stopped.wait(interval_s):
                try:
                    await handle.sweep()
                except KeepstateError as error:
                    _LOG.warning("expired items of %r stay until the next sweep: %s", self, error)
                    if isinstance(error, ClosedError):
                        return  # there will be none

        if self._sweeper is None:
            self._sweeper = handle.runner.start(sweeping, "ttl sweeper")
        return Done()

    def stop_ttl_sweeper(self, timeout: float | None = None) -> bool:
        """End what `start_ttl_sweeper` began, after the sweep that is under way; returns True.

        Args:
            timeout: Taken for LangGraph's sake; it never waits longer than 5 s.
        """
        work, self._sweeper = self._sweeper, None
        if work is not None:
            finish(work.stop())
        return True


class _Plan:
    """The operations of a batch by their kind, and what is to be embedded for them.

    Attributes:
        texts: To be embedded for puts, in order.
        queries: The vector of each query, once it is made.
    """

    def __init__(self, ops: Iterable[Op], vectors: Vectors | None) -> None:
        self._ops, self._vectors = admitted(ops), vectors
        last = {(tuple(op.namespace), op.key): op for op in self._ops if isinstance(op, PutOp)}
        self._puts = list(last.values())
        self._paths = [vectors.texts(op) if vectors is not None else {} for op in self._puts]
        self.texts = [text for paths in self._paths for text in paths.values()]
        self.queries: dict[str, Sequence[float]] = {}
        if vectors is not None:
            self.queries = {op.query: () for op in self._ops if isinstance(op, SearchOp) and op.query}

    async def perform(self, shelf: Shelf, made: Sequence[Sequence[float]]) -> list[Result]:
        """Read first, then put; returns the results in the order of the operations."""
        kept = self._kept(made)
        results: list[Result] = [None] * len(self._ops)
        gets = [(place, op) for place, op in enumerate(self._ops) if isinstance(op, GetOp)]
        if gets:
            items = await shelf.get([op for _, op in gets])
            for (place, _), item in zip(gets, items, strict=True):
                results[place] = item
        for place, op in enumerate(self._ops):
            if isinstance(op, SearchOp):
                query = self.queries.get(op.query) if op.query else None
                results[place] = cast("Result", await shelf.search(op, self._vectors, query))
            elif isinstance(op, ListNamespacesOp):
                results[place] = await shelf.list_namespaces(op)
        if self._puts:
            await shelf.put(self._puts, kept)
        return results

    def _kept(self, made: Sequence[Sequence[float]]) -> list[Kept]:
        if self._vectors is None:
            return [{} for _ in self._puts]
        count = len(made) if isinstance(cast("object", made), Sized) else 0
        if count != len(self.texts):
            raise InvalidError(
                f"the model made {count} vectors of {len(self.texts)} texts: `embed` of the index returns "
                "a list with one for each"
            )
        given = iter(made)
        return [self._vectors.stored(paths, [next(given) for _ in paths]) for paths in self._paths]


def _admitted_ttl(ttl: TTLConfig | None) -> TTLConfig | None:
    if ttl is None:
        return None
    if not isinstance(cast("object", ttl), Mapping):
        raise InvalidError(f"`ttl` of the store is {ttl!r}; it is a dict with `default_ttl` and others")
    if unknown := ttl.keys() - _TTL_KEYS:
        raise InvalidError(f"`ttl` has {min(unknown)!r}; there are {', '.join(sorted(_TTL_KEYS))}")
    for minutes in (ttl.get("default_ttl"), ttl.get("sweep_interval_minutes")):
        if minutes is not None:
            lifetime_ms(minutes)
    return ttl
