"""The bases of adapters: a store of any form, in any event loop, with names of any text, and an end.

An adapter of a framework keeps each conversation in a space of its own: `KIND/ID`, or `KIND/~OWNER/ID` if it
has an owner, whose data `erase` then removes. Ids are any text; see `names.segment`.

`StoreAdapter` has all of it. `RecordingAdapter` adds a history, and `Adapter` a life for each conversation.
`OneSpaceAdapter` keeps all data in one space. An adapter takes the base whose options it can honor.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from copy import copy
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, TypeAlias, TypedDict, TypeVar, Unpack, cast

from keepstate.adapters.loop_handles import LoopHandles, OnHandles, Opened
from keepstate.engine.documents.documents import DocumentEntry, Documents
from keepstate.engine.kernel.arguments import check_duration_ms, check_flag, check_space_name, check_text
from keepstate.engine.space.erasure import Erased, erase_spaces
from keepstate.engine.space.joint_work import run_in_transaction
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import AppliedTransaction, Space, Transaction
from keepstate.errors import ConflictError, InvalidError, KeepstateError
from keepstate.names import DEFAULT_URL, beginning, segment
from keepstate.sessions.namespace import ANY_USER, SessionGenerations
from keepstate.stores.protocol import Store, TrimsLogs
from keepstate.values import limits

if TYPE_CHECKING:
    from keepstate.stores.wrappers.encrypted import KeyRing

T = TypeVar("T")

StoreLike: TypeAlias = str | PathLike[str] | Store | Keepstate
"""A store URL, the path of an SQLite file, an open store, or a handle on one."""

_log = logging.getLogger("keepstate.adapters")

_OWNER: Final = "~"
"""Begins the segment of an owner; no segment of an id begins with it."""
_SHORTENED: Final = ("memory:", "sqlite:")
"""Stores whose logs are shortened. They send no batch again, so they do not need the tokens of older ones."""


class StoreOptions(TypedDict, total=False):
    """The options of a `StoreAdapter`.

    Attributes:
        tenant: The tenant of the spaces, if any.
        author: The author in recorded changes.
        encryption: The keys that encrypt all values of the store.
    """

    tenant: str | None
    author: str | None
    encryption: KeyRing | None


class RecordingOptions(StoreOptions, total=False):
    """The options of a `RecordingAdapter`.

    Attributes:
        record: Keep every moment of each space in its history.
    """

    record: bool


class AdapterOptions(RecordingOptions, total=False):
    """The options of an `Adapter`.

    Attributes:
        ttl_s: Seconds from each use until a conversation ends as a whole; None means never.
    """

    ttl_s: float | None


async def outlast_cancellation(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of work that is not stopped by a cancellation of its caller.

    A cancelled caller waits until the work has ended; then the cancellation goes on. So a caller that reads
    again knows whether its write was applied. A write ends at the latest when the store stops to retry it, by
    its `retry_for_s`. An error of the work is noted at the cancellation.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.cancelled():
                raise  # the work was cancelled itself, by the end of its event loop
            cancelled = error
        except BaseException:  # noqa: BLE001 - the work has ended, and its error is raised below
            break
    if cancelled is None:
        return task.result()
    if not task.cancelled() and (failed := task.exception()) is not None:
        cancelled.add_note(f"The write that was waited for failed: {failed!r}")
    raise cancelled


async def read_each(documents: Documents, names: Sequence[str]) -> dict[str, DocumentEntry[Any]]:
    """Return the documents that exist, by name, in as few reads as their number and sizes allow.

    Outside of a transaction, only those of one read are of one revision.
    """
    if not names:
        return {}
    if len(names) <= limits.READ_KEYS:
        try:
            return await documents.entries(*names)
        except InvalidError:  # too large for one read
            if len(names) == 1:
                raise
    half = len(names) // 2
    return await read_each(documents, names[:half]) | await read_each(documents, names[half:])


async def sweep_numbers(space: Space, folder: str, *, last: int, live: Collection[int]) -> int:
    """Delete the documents of all numbers that have ended, by one short read for each number.

    Args:
        space: The space, whose documents are named `FOLDER/NUMBER/…`.
        folder: The folder.
        last: The last number that was given before `live` was read. Later ones are new.
        live: The numbers that have not ended.

    Returns:
        The number of deleted documents.
    """
    removed, after = 0, None
    while names := [name async for name in space.documents.keys(prefix=f"{folder}/", after=after, limit=1)]:
        number = names[0].split("/")[1]
        if int(number) <= last and int(number) not in live:
            removed += await space.documents.delete_all(f"{folder}/{number}/")
        after = f"{folder}/{number}0"  # which sorts behind all names of the number
    return removed


class StoreAdapter(OnHandles):
    """The base of a framework's adapter on a keepstate store. Threads and event loops may share one.

    Subclasses give `kind`, and the framework's own methods. An embedded store (memory, file, SQLite) is read
    and written in a worker thread, so the event loop is free. A store with a server has one handle for each
    event loop.

    Args:
        store: A store URL, the path of an SQLite file, an open store, or a handle on one. A store or handle
            that was passed in stays open when the adapter closes.
        options: `tenant`, `author` and `encryption`; see `StoreOptions`.

    Raises:
        InvalidError: An argument is wrong, or the URL names no store.
    """

    kind: ClassVar[str]
    """The first segment of the names of all spaces of the adapter."""
    log_kept: ClassVar[int] = 32
    """Number of revisions that a shortened log keeps. It has at most twice as many."""
    ttl_s: float | None = None
    records: bool = False
    _shares: bool = False

    def __init__(self, store: StoreLike = DEFAULT_URL, **options: Unpack[StoreOptions]) -> None:
        self._handles = LoopHandles(store, **options)

    @classmethod
    def from_url(cls, url: StoreLike, /, *args: Any, **options: Any) -> Opened[Self]:
        """Return a block, for `with` and `async with`, that creates an adapter and closes it at its end.

        Args:
            url: A store URL, or anything else that the class takes as its store.
            args: As for the class.
            options: As for the class.
        """
        return Opened(lambda: cast("Any", cls)(*args, store=url, **options))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self._handles!r}>"

    # ---- spaces

    def space_name(self, *ids: str, owner: str | None = None) -> str:
        """Return the name of the space of these ids, each of which is any text.

        Args:
            ids: The ids, from the widest to the narrowest. A name that is too long keeps the kind and the
                owner, and its ids are hashed.
            owner: The person whose data it is, if any. `erase` removes all spaces of an owner.
        """
        segments = [segment(check_text("id", id)) for id in ids]
        first = self._first(owner)
        name = "/".join([first, *segments])
        tenant = self._handles.tenant_id
        most = limits.SPACE_BYTES - len(beginning(tenant).encode())
        if len(name.encode()) > most:
            name = (
                f"{first}/{segment(chr(0).join(segments) * 2)}"  # twice, so that it is long enough for a hash
            )
        return check_space_name("id", name, tenant)

    def _first(self, owner: str | None) -> str:
        if owner is None:
            return self.kind
        if not check_text("owner", owner):
            raise InvalidError("`owner` is empty; name the person, or give None")
        return f"{self.kind}/{_OWNER}{segment(owner)}"

    def space(self, *ids: str, owner: str | None = None) -> BoundSpace:
        """Return the space of these ids, for calls in any event loop; see `space_name`."""
        return BoundSpace(self, self.space_name(*ids, owner=owner))

    # ---- calls

    async def call(self, work: Callable[[Keepstate], Coroutine[Any, Any, T]]) -> T:
        """Return the result of work with the handle of this event loop.

        Args:
            work: A coroutine function. It awaits calls of keepstate only, because with an embedded store it
                runs in a worker thread without an event loop.
        """
        return await self._handles.wait(work)

    def call_blocking(self, work: Callable[[Keepstate], Coroutine[Any, Any, T]]) -> T:
        """Return the result of work, in a thread without a running event loop; as `call`."""
        return self._handles.finish(work)

    def conflict(self, error: ConflictError) -> Exception:
        """Return the error of the framework for a conflict; here the conflict itself."""
        return error

    # ---- ends

    def _copy(self) -> Self:
        """Return a copy on the same handles, for another conversation or owner. To close it closes none."""
        other = copy(self)
        other._shares = True
        return other

    def close(self) -> None:
        """Close the store for blocking calls; a store that was passed in stays open. Twice is allowed."""
        if not self._shares:
            super().close()

    async def aclose(self) -> None:
        """Close the store for this event loop and for blocking calls. Closing twice is allowed."""
        if not self._shares:
            await super().aclose()

    @property
    def shortens_logs(self) -> bool:
        """Tells whether spaces keep only the last revisions in their logs; a conversation hardly needs more.

        So a file has little more than the conversations. Spaces with recorded moments keep their logs.
        """
        return not self.records and self._handles.url.startswith(_SHORTENED)

    async def sweep(self) -> int:
        """Delete the documents of what has ended, was cleared or was deleted; return their number."""

        async def work(ks: Keepstate) -> int:
            names = [name async for name in ks.spaces(f"{self.kind}/")]
            return sum([await self.sweep_space(ks.space(name, record=self.records)) for name in names])

        return await outlast_cancellation(self.call(work))

    async def sweep_space(self, space: Space) -> int:
        """Delete the documents of what has ended in a space, and return their number.

        Here these are earlier generations of a conversation; see `life`.
        """
        return await self.life(space).sweep()

    async def erase(self, owner: str) -> Erased:
        """Erase all conversations of an owner, with their logs and histories, and report it.

        An interrupted call is completed by the next one. What a writer stores for the owner during the call
        may remain.
        """
        under = self._first(owner)
        return await self.call(lambda ks: erase_spaces(ks, under))

    def life(self, target: Space | Transaction) -> SessionGenerations:
        """Return the generations of a conversation: the prefix of its documents, which ends as a whole.

        `to_write(tx)` returns the prefix for writes, and begins a generation if there is none. `to_read()`
        returns the prefix for reads, or None. `end()` ends the generation: the conversation is empty at once,
        however long it is. `sweep()` deletes what earlier generations left.
        """
        return SessionGenerations(
            target, "", what=f"the {self.kind} conversation", user_id=ANY_USER, ttl_s=self.ttl_s
        )


class RecordingAdapter(StoreAdapter):
    """A `StoreAdapter` whose spaces may keep every moment in their histories.

    Args:
        store: As for `StoreAdapter`.
        record: Keep every moment of each space in its history.
        options: `tenant`, `author` and `encryption`; see `StoreOptions`.

    Raises:
        InvalidError: An argument is wrong, or the URL names no store.
    """

    def __init__(
        self, store: StoreLike = DEFAULT_URL, *, record: bool = False, **options: Unpack[StoreOptions]
    ) -> None:
        self.records = check_flag("record", record)
        super().__init__(store, **options)


class Adapter(RecordingAdapter):
    """A `RecordingAdapter` whose conversations may end as a whole, by themselves.

    Args:
        store: As for `StoreAdapter`.
        ttl_s: Seconds from each use until a conversation ends as a whole; None means never.
        options: `tenant`, `author`, `encryption` and `record`; see `RecordingOptions`.

    Raises:
        InvalidError: An argument is wrong, or the URL names no store.
    """

    def __init__(
        self,
        store: StoreLike = DEFAULT_URL,
        *,
        ttl_s: float | None = None,
        **options: Unpack[RecordingOptions],
    ) -> None:
        if ttl_s is not None:
            check_duration_ms("ttl_s", ttl_s)
        self.ttl_s = ttl_s
        super().__init__(store, **options)


class OneSpaceAdapter(RecordingAdapter):
    """A `RecordingAdapter` whose data is in one space.

    Args:
        store: As for `StoreAdapter`.
        name: The name of the data, to keep those of several applications apart.
        owner: The person whose data it is, if it belongs to one. `erase` drops the space.
        options: `tenant`, `author`, `encryption` and `record`; see `RecordingOptions`.

    Raises:
        InvalidError: An argument is wrong, or the URL names no store.
    """

    def __init__(
        self,
        store: StoreLike = DEFAULT_URL,
        *,
        name: str = "main",
        owner: str | None = None,
        **options: Unpack[RecordingOptions],
    ) -> None:
        super().__init__(store, **options)
        self._bound = self.space(name, owner=owner)

    async def sweep_space(self, space: Space) -> int:
        """Return 0: nothing in the space ends by itself but documents with a life, for `keepstate sweep`."""
        return 0


class BoundSpace:
    """A space of an adapter, for calls in any event loop. Made by `StoreAdapter.space`.

    Attributes:
        name: The name of the space.
    """

    def __init__(self, adapter: StoreAdapter, name: str) -> None:
        self._adapter, self.name = adapter, name

    def __repr__(self) -> str:
        return f"<space {self.name!r} of {self._adapter!r}>"

    def on(self, ks: Keepstate) -> Space:
        """Return the space of a handle."""
        return ks.space(self.name, record=self._adapter.records)

    async def call(self, work: Callable[[Space], Coroutine[Any, Any, T]]) -> T:
        """Return the result of work with the space; as `StoreAdapter.call`."""
        return await self._adapter.call(lambda ks: work(self.on(ks)))

    def call_blocking(self, work: Callable[[Space], Coroutine[Any, Any, T]]) -> T:
        """Return the result of work with the space; as `StoreAdapter.call_blocking`."""
        return self._adapter.call_blocking(lambda ks: work(self.on(ks)))

    async def transact(
        self,
        fn: Callable[[Transaction], Awaitable[T]],
        *,
        message: str = "",
        attempts: int | None = None,
        turn: str = "adapter",
    ) -> AppliedTransaction[T]:
        """Apply a function as one batch, and return its value with the revision.

        A cancelled caller waits until the batch has ended; see `outlast_cancellation`.

        Args:
            fn: A coroutine function of the transaction. It may be called several times, and awaits calls of
                keepstate only; see `StoreAdapter.call`.
            message: The purpose, in the history of a recorded space.
            attempts: The largest number of calls. None calls it until that is hopeless.
            turn: The name of what the function changes in the space. Functions of this process with the same
                name run one after the other. Give names of your own if many conversations share a space.

        Raises:
            Exception: What `StoreAdapter.conflict` makes of a conflict that was not resolved.
        """

        async def work(ks: Keepstate) -> AppliedTransaction[T]:
            done: list[tuple[T, Transaction]] = []

            async def once(tx: Transaction) -> None:
                done[:] = [(await fn(tx), tx)]

            space = self.on(ks)
            await run_in_transaction(space, once, message=message, attempts=attempts, turn=turn)
            value, tx = done[0]
            await self.shorten_log(space, tx.revision)  # which is known after the end of the transaction
            return AppliedTransaction(value, tx.revision)

        try:
            return await outlast_cancellation(self._adapter.call(work))
        except ConflictError as error:
            translated = self._adapter.conflict(error)
            if translated is error:
                raise
            raise translated from error

    async def clear(self) -> None:
        """End the conversation of the space, however long: it is empty at once. Then delete its documents."""

        async def work(space: Space) -> None:
            life = self._adapter.life(space)
            await life.end()
            await life.sweep()
            await self.shorten_log(space)

        await outlast_cancellation(self.call(work))

    async def shorten_log(self, space: Space, revision: int | None = None) -> None:
        """Remove all but the last revisions from the log, if the adapter shortens logs.

        A failure is logged and not raised, because the write is applied, and a later one tries again.

        Args:
            space: This space, of a handle.
            revision: The revision of a write that was applied. Only one that `log_kept` divides shortens the
                log. Without it, the log keeps its last revision only.
        """
        kept = self._adapter.log_kept
        if not self._adapter.shortens_logs or (revision is not None and revision % kept):
            return
        try:
            store = await space.executor.store()
            if isinstance(store, TrimsLogs):
                await store.trim(space.executor.stored_name, keep=1 if revision is None else kept)
        except KeepstateError as error:
            _log.warning("the log of space %r was not shortened: %s", self.name, error)
