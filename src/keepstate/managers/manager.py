"""What all managers share: where they keep things, how they open and close, how large they are.

A manager opens its store with its first call, or on entering it as a context manager, and closes it in
`close`. Several managers on one store share it. Inside a transaction, `space=tx`, all that a manager does
joins the transaction's one batch.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, TypeVar

from keepstate._clock import Clock
from keepstate._runner import Mode, Runner
from keepstate.engine.kernel.executor import reject_coroutine_function
from keepstate.engine.kernel.single_use import reject_with
from keepstate.engine.queue.lease import Lease
from keepstate.engine.space.joint_work import together
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space
from keepstate.engine.space.transaction import Transaction
from keepstate.errors import InvalidError, KeepstateError
from keepstate.managers.backends import Backend
from keepstate.managers.binding import Folder, Place
from keepstate.managers.deadlines import admit_age, ago
from keepstate.managers.sizes import AlertCallback, ManagerSize, Measured, SizeAlerts
from keepstate.stores.protocol import Store
from keepstate.values import limits

T = TypeVar("T")

_FORGOTTEN_AT_ONCE: Final = 300
_SWEEP_S: Final = 30.0
_RESTED: Final = 20
"""How many times longer than a sweep took the next one is away at least."""
_log = logging.getLogger("keepstate.managers")


class Manager:
    """The part that every manager has."""

    _kind: ClassVar[str]
    """What its subjects are: the first segment of the names of their spaces."""
    _records: bool = True
    """Whether the spaces of subjects keep every moment of their documents."""

    def __init__(
        self,
        *,
        persistence: str | Backend | Store | Keepstate | None = None,
        url: str | None = None,
        redis_url: str | None = None,
        file_path: str | PathLike[str] | None = None,
        space: Space | Transaction | None = None,
        _mode: Mode = "async",
    ) -> None:
        self._place = Place(
            self._kind,
            persistence=persistence,
            url=url,
            redis_url=redis_url,
            file_path=file_path,
            space=space,
            mode=_mode,
            records=self._records,
        )
        self._alerts, self._measured = SizeAlerts(), Measured()
        self._sweep_s, self._due_s = _SWEEP_S, self._clock.monotonic_s() + _SWEEP_S

    def __repr__(self) -> str:
        return f"<{type(self).__name__} in {self._place!r}>"

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process makes the same manager of; who is told of what stays here."""
        return {**self.__dict__, "_alerts": SizeAlerts(), "_measured": Measured(), "_due_s": 0.0}

    # ---- opening and closing

    if not TYPE_CHECKING:  # who checks types is told without it
        __enter__ = __exit__ = reject_with

    async def __aenter__(self) -> Self:
        await self._place.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Let go of the store; the last one to do so closes it. What was passed in open stays open."""
        await self._place.close()

    # ---- how much there is

    async def size(self) -> ManagerSize:
        """Return how much is kept, and tell those who want to hear.

        It reads the spaces that have changed since this manager last measured them. A space that was passed
        counts whole, with what others keep in it.
        """
        self._place.require_outside_transaction("measuring")
        size = await self._measured.measure([space async for space in self._place.spaces()])
        await self._alerts.tell(size, self._clock.monotonic_s())
        return size

    def on_size_alert(
        self,
        *,
        limit_bytes: int | None = None,
        growth_per_hour: int | None = None,
        callback: AlertCallback,
    ) -> None:
        """Call a function when more is kept than it should be; again when that happens again.

        The size is measured by `size`, and by writes of this manager: at most every 30 seconds, or every
        `save_interval` of `StateConfig`.

        Args:
            limit_bytes: More than so much altogether.
            growth_per_hour: More than so much within the last hour, as far as this manager has measured.
            callback: Gets a `SizeAlert`.
        """
        self._refuse_coroutine(callback, "callback")
        self._alerts.add(limit_bytes, growth_per_hour, callback)

    async def cleanup(self, *, older_than: timedelta) -> int:
        """Remove what is over and has not been written for so long, and return how much that was.

        Args:
            older_than: By the store's clock.
        """
        self._place.require_outside_transaction("cleaning up")
        admit_age("older_than", older_than)
        removed = 0
        for folder in await self._folders():
            removed += await self._clean(folder, ago(older_than, await folder.space.now()))
        return removed

    async def _folders(self) -> list[Folder]:
        """Return what is to be cleaned."""
        return [self._folder(id) for id in await self._ids()]

    async def _clean(self, folder: Folder, before: datetime) -> int:
        """Remove what of a subject is over and was last written before then; returns how much."""
        raise NotImplementedError

    # ---- for the managers

    @property
    def _runner(self) -> Runner:
        return self._place.runner

    @property
    def _clock(self) -> Clock:
        return self._place.clock

    def _folder(self, id: str) -> Folder:
        """Return what belongs to a subject; asks the store nothing.

        Raises:
            InvalidError: The id is empty, or its space's name would be over 200 bytes.
        """
        return self._place.folder(id)

    async def _ids(self) -> list[str]:
        """Return the subjects that hold something."""
        return [id async for id in self._place.ids()]

    async def _together(
        self,
        folder: Folder,
        work: Callable[[Folder], Awaitable[T]],
        *,
        message: str = "",
        lease: Lease | None = None,
        attempts: int = 1_000,
    ) -> T:
        """Return what the work returned once all that it did is applied, or joins the present transaction.

        Args:
            folder: What belongs to a subject.
            work: Gets the same in a transaction; is called again where it met a conflict.
            message: What the record of the space says.
            lease: Applies only while it is held.
            attempts: How often to call it at the most.
        """
        answer = await self._applied(folder, work, message=message, lease=lease, attempts=attempts)
        await self._wrote()
        return answer

    async def _applied(
        self,
        folder: Folder,
        work: Callable[[Folder], Awaitable[T]],
        *,
        message: str = "",
        lease: Lease | None = None,
        attempts: int = 1_000,
    ) -> T:
        """Do the same, and nothing of what is due after a write."""

        async def on(tx: Transaction) -> T:
            return await work(folder.on(tx.by(folder.space.author, message=message or None)))

        return await together(folder.space, on, lease=lease, message=message, attempts=attempts)

    async def _forget(self, folder: Folder, branches: Sequence[str] = (), *, last: str = "") -> bool:
        """Remove all of a subject, and return whether there was something.

        Its own space goes whole. Of one that was passed its documents go, at most 300 together, and last of
        all what says that the subject is there.

        Args:
            folder: What belongs to the subject.
            branches: What else goes from a space that was passed.
            last: The document that says so.

        Raises:
            InvalidError: There is too much to remove in the present transaction.
        """
        names = [name async for name in folder.names()]
        if folder.has_own_space:
            await self._place.drop(folder)
            return bool(names)
        if self._place.transaction is not None and len(names) >= limits.BATCH_WRITES:
            raise InvalidError(
                f"{self._kind} {folder.id!r} has {len(names)} documents, and a transaction removes fewer "
                f"than {limits.BATCH_WRITES}; remove it outside of one"
            )
        if self._place.transaction is None:
            await self._forget_most(folder, [name for name in names if name != last])

        async def work(inside: Folder) -> bool:
            left = [name async for name in inside.names()]
            for name in left:
                await inside.space.documents.delete(inside.name(name))
            for branch in branches:
                await inside.space.history.delete_branch(inside.label(branch))
            return bool(left)

        return bool(names) and await self._together(folder, work, message=f"delete {folder.id}")

    async def _forget_most(self, folder: Folder, names: Sequence[str]) -> None:
        """Remove documents, but for the last ones that go in one batch."""
        for begin in range(0, len(names) - _FORGOTTEN_AT_ONCE, _FORGOTTEN_AT_ONCE):
            page = names[begin : begin + _FORGOTTEN_AT_ONCE]

            async def work(inside: Folder, page: Sequence[str] = page) -> None:
                for name in page:
                    await inside.space.documents.delete(inside.name(name))

            await self._together(folder, work, message=f"delete {folder.id}")

    async def _prune(self, folder: Folder, since: datetime) -> None:
        """Let go of the history before a time in a subject's own space; in another it is its owner's."""
        if folder.has_own_space:
            assert isinstance(folder.space, Space)
            await folder.space.history.prune(older_than=since)

    async def _wrote(self) -> None:
        """Do what is due after a write: not more often than the interval says, nor a twentieth of the time.

        The write has applied: what goes wrong here is logged, and never told to who wrote.
        """
        begun_s = self._clock.monotonic_s()
        if self._place.transaction is not None or begun_s < self._due_s:
            return
        self._due_s = begun_s + self._sweep_s
        await self._logged(self._sweep())
        took_s = self._clock.monotonic_s() - begun_s
        self._due_s = begun_s + max(self._sweep_s, took_s * _RESTED)

    async def _logged(self, work: Awaitable[None]) -> None:
        """Do what comes after writes that have applied: where it fails, that is logged."""
        try:
            await work
        except KeepstateError as error:
            _log.warning("%r was not swept: %s", self, error)

    async def _sweep(self) -> None:
        """Do what need not be done with every write."""
        if self._alerts:
            await self.size()

    def _refuse_coroutine(self, function: Callable[..., Any], what: str = "function") -> None:
        """Raise `InvalidError` for what is no function, or one that nobody here could await."""
        if not callable(function):  # pyright: ignore[reportUnnecessaryComparison]
            raise InvalidError(f"`{what}` is {function!r}, which cannot be called; give a function")
        if self._runner.mode == "blocking":
            reject_coroutine_function(function)


# ---- for what works on another manager's subjects


def mode_of(manager: Manager) -> Mode:
    """Return how a manager is used."""
    return manager._place.mode  # pyright: ignore[reportPrivateUsage]


def folder_of(manager: Manager, id: str) -> Folder:
    """Return what belongs to a manager's subject; asks the store nothing."""
    return manager._folder(id)  # pyright: ignore[reportPrivateUsage]


async def done_together(
    manager: Manager,
    folder: Folder,
    work: Callable[[Folder], Awaitable[T]],
    *,
    message: str = "",
    lease: Lease | None = None,
) -> T:
    """Return what the work returned, once all that it did is applied."""
    return await manager._together(  # pyright: ignore[reportPrivateUsage]
        folder, work, message=message, lease=lease
    )
