"""The base class of all managers: storage binding, opening and closing, sizes and cleanup.

A manager opens its store on its first call, or when it is entered as a context manager. `close` releases the
store. Several managers can share one store. With `space=tx`, all work of the manager joins the one batch of
that transaction.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar, Final, Self, TypeVar, Unpack

from keepstate._clock import Clock
from keepstate._runner import Mode, Runner
from keepstate.binding import Resource
from keepstate.engine.kernel.executor import reject_coroutine_function
from keepstate.engine.queue.lease import Lease
from keepstate.engine.space.joint_work import run_in_transaction
from keepstate.engine.space.space import Space, Transaction
from keepstate.errors import InvalidError, KeepstateError
from keepstate.managers.arguments import check_age, subtract_age
from keepstate.managers.binding import (
    CHANGED_AT_ONCE,
    ManagerStorage,
    Namespace,
    SubjectBinding,
    change_pages,
)
from keepstate.managers.callbacks import Subscriptions
from keepstate.managers.sizes import AlertCallback, ManagerSize, SizeAlerts, SizeCache
from keepstate.values import limits

T = TypeVar("T")

_ATTEMPTS: Final = 1_000
_SWEEP_S: Final = 30.0
_REST_FACTOR: Final = 20
"""The pause between two sweeps is at least this many times the duration of the last sweep."""
_log = logging.getLogger("keepstate.managers")


class Manager(Resource):
    """The base class of every manager."""

    _kind: ClassVar[str]
    """The kind of subject: the first segment of the names of the subjects' spaces."""
    _records: bool = True
    """Whether the spaces of subjects record every version of their documents."""
    _local: ClassVar[tuple[str, ...]] = ("_alerts", "_measured", "_subscriptions")
    """The attributes that belong to one process."""

    def __init__(self, **storage: Unpack[ManagerStorage]) -> None:
        if unknown := sorted(storage.keys() - ManagerStorage.__annotations__.keys()):
            raise TypeError(f"{type(self).__name__} got an unexpected keyword argument {unknown[0]!r}")
        self._binding = SubjectBinding(self._kind, storage, records=self._records)
        self._sweep_s, self._due_s = _SWEEP_S, self._clock.monotonic_s() + _SWEEP_S
        self._init_local()

    def _init_local(self) -> None:
        """Make the objects that belong to one process. They are not sent with the manager."""
        self._alerts, self._measured = SizeAlerts(), SizeCache()
        self._subscriptions = Subscriptions(self._runner)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} in {self._binding!r}>"

    def __getstate__(self) -> dict[str, Any]:
        """Return the state that rebuilds the manager in another process."""
        sent = {name: value for name, value in self.__dict__.items() if name not in self._local}
        return {**sent, "_due_s": 0.0}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._init_local()

    # ---- opening and closing

    async def __aenter__(self) -> Self:
        await self._binding.open()
        return self

    async def close(self) -> None:
        """End subscriptions, and release the store. Its last user closes it.

        A store that was passed in open stays open.
        """
        try:
            await self._subscriptions.close()
        finally:
            await self._binding.close()

    # ---- how much there is

    async def size(self) -> ManagerSize:
        """Measure the stored data, and call the size alerts whose bounds it exceeds.

        Reads only the spaces that changed since the last measurement. A space that was passed in is counted
        whole, including data that other code stored in it.
        """
        self._binding.require_outside_transaction("measuring")
        size = await self._measured.measure([space async for space in self._binding.spaces()])
        await self._alerts.notify(size, self._clock.monotonic_s())
        return size

    def on_size_alert(
        self,
        *,
        limit_bytes: int | None = None,
        growth_per_hour: int | None = None,
        callback: AlertCallback,
    ) -> None:
        """Call a function each time the size rises above a bound.

        The size is measured by `size`, and after writes of this manager at most every 30 seconds (every
        `save_interval` of `StateConfig`).

        Args:
            limit_bytes: Alert when the total size is larger.
            growth_per_hour: Alert when the size grew by more bytes within the last hour, as far as it was
                measured.
            callback: Receives a `SizeAlert`.
        """
        self._check_callback(callback, "callback")
        self._alerts.add(limit_bytes, growth_per_hour, callback)

    async def cleanup(self, *, older_than: timedelta) -> int:
        """Remove finished subjects and records that were not written recently, and return their number.

        Args:
            older_than: Minimum time since the last write, by the store's clock.
        """
        self._binding.require_outside_transaction("cleaning up")
        check_age("older_than", older_than)
        removed = 0
        for namespace in await self._namespaces():
            removed += await self._clean(namespace, subtract_age(older_than, await namespace.space.now()))
        return removed

    async def _namespaces(self) -> list[Namespace]:
        """Return the namespaces to clean."""
        return [self._namespace(id) for id in await self._ids()]

    async def _clean(self, namespace: Namespace, before: datetime) -> int:
        """Remove finished data of a subject that was last written before a time, and return the count."""
        raise NotImplementedError

    # ---- for the managers

    @property
    def _runner(self) -> Runner:
        return self._binding.runner

    @property
    def _clock(self) -> Clock:
        return self._binding.clock

    def _namespace(self, id: str) -> Namespace:
        """Return the namespace of a subject, without a read.

        Raises:
            InvalidError: The id is empty, or the name of its space would exceed 200 bytes.
        """
        return self._binding.namespace(id)

    async def _ids(self) -> list[str]:
        """Return the ids of the subjects that have data."""
        return [id async for id in self._binding.ids()]

    async def _run_together(
        self,
        namespace: Namespace,
        work: Callable[[Namespace], Awaitable[T]],
        *,
        message: str = "",
        lease: Lease | None = None,
    ) -> T:
        """Apply all changes of a function as one batch, or join the current transaction; return its result.

        Args:
            namespace: The namespace of the subject.
            work: Receives the namespace inside a transaction. It is called again after a conflict.
            message: Message in the record of the space.
            lease: Apply the changes only while this lease is held.
        """
        answer = await self._apply(namespace, work, message=message, lease=lease)
        await self._after_write()
        return answer

    async def _apply(
        self,
        namespace: Namespace,
        work: Callable[[Namespace], Awaitable[T]],
        *,
        message: str = "",
        lease: Lease | None = None,
    ) -> T:
        """Like `_run_together`, without the sweep after a write."""

        async def apply(tx: Transaction) -> T:
            return await work(namespace.with_space(tx.by(namespace.space.author, message=message or None)))

        return await run_in_transaction(
            namespace.space, apply, lease=lease, message=message, attempts=_ATTEMPTS
        )

    async def _forget(self, namespace: Namespace, branches: Sequence[str] = (), *, last: str = "") -> bool:
        """Remove all data of a subject, and return whether there was any.

        A space of its own is dropped whole. In a space that was passed in, the documents of the subject are
        deleted, at most 300 in one batch. The document that marks the subject as present is deleted last.

        Args:
            namespace: The namespace of the subject.
            branches: Branches to delete from a space that was passed in.
            last: The document that marks the subject as present.

        Raises:
            InvalidError: The subject has too many documents for the current transaction.
        """
        names = [name async for name in namespace.collection().ids()]
        if namespace.has_own_space:
            await self._binding.drop(namespace)
            return bool(names)
        if self._binding.transaction is not None and len(names) >= limits.BATCH_WRITES:
            raise InvalidError(
                f"{self._kind} {namespace.id!r} has {len(names)} documents, and a transaction removes fewer "
                f"than {limits.BATCH_WRITES}. Remove it outside of a transaction."
            )
        if self._binding.transaction is None:
            others = [name for name in names if name != last]
            # The last page goes with the rest below.
            pages = others[: (len(others) - 1) // CHANGED_AT_ONCE * CHANGED_AT_ONCE]
            message = f"delete {namespace.id}"
            await change_pages(self._run_together, namespace, pages, _delete_names, message=message)

        async def work(inside: Namespace) -> bool:
            left = [name async for name in inside.collection().ids()]
            for name in left:
                await inside.delete(name)
            for branch in branches:
                await inside.space.history.delete_branch(inside.label(branch))
            return bool(left)

        return bool(names) and await self._run_together(namespace, work, message=f"delete {namespace.id}")

    async def _prune(self, namespace: Namespace, since: datetime) -> None:
        """Prune the history before a time in a subject's own space. Another space is pruned by its owner."""
        if namespace.has_own_space:
            assert isinstance(namespace.space, Space)
            await namespace.space.history.prune(older_than=since)

    async def _after_write(self) -> None:
        """Sweep after a write, if a sweep is due: at most once per interval, and at most 1/20 of the time.

        The write has been applied, so failures of the sweep are logged and never raised to the writer.
        """
        begun_s = self._clock.monotonic_s()
        if self._binding.transaction is not None or begun_s < self._due_s:
            return
        self._due_s = begun_s + self._sweep_s
        await self._run_logged(self._sweep())
        took_s = self._clock.monotonic_s() - begun_s
        self._due_s = begun_s + max(self._sweep_s, took_s * _REST_FACTOR)

    async def _run_logged(self, work: Awaitable[None]) -> None:
        """Run work that follows an applied write, and log its failure."""
        try:
            await work
        except KeepstateError as error:
            _log.warning("Could not sweep %r: %s", self, error)

    async def _sweep(self) -> None:
        """Do maintenance that is not needed after every write."""
        if self._alerts:
            await self.size()

    def _check_callback(self, function: Callable[..., Any], what: str = "function") -> None:
        """Raise `InvalidError` for a value that is not callable, or a coroutine function in blocking mode."""
        if not callable(function):  # pyright: ignore[reportUnnecessaryComparison]
            raise InvalidError(f"`{what}` is {function!r}, which cannot be called. Pass a function.")
        if self._runner.mode == "blocking":
            reject_coroutine_function(function)


async def _delete_names(inside: Namespace, names: Sequence[str]) -> int:
    for name in names:
        await inside.delete(name)
    return len(names)


# ---- for code that works on another manager's subjects


def mode_of(manager: Manager) -> Mode:
    """Return the mode of a manager: async or blocking."""
    return manager._binding.mode  # pyright: ignore[reportPrivateUsage]


def namespace_of(manager: Manager, id: str) -> Namespace:
    """Return the namespace of a manager's subject, without a read."""
    return manager._namespace(id)  # pyright: ignore[reportPrivateUsage]


async def run_together(
    manager: Manager,
    namespace: Namespace,
    work: Callable[[Namespace], Awaitable[T]],
    *,
    message: str = "",
    lease: Lease | None = None,
) -> T:
    """Apply all changes of a function as one batch of a manager, and return its result."""
    return await manager._run_together(  # pyright: ignore[reportPrivateUsage]
        namespace, work, message=message, lease=lease
    )
