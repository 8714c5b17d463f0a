"""The handle on a store: spaces by name, and what concerns all of them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from contextlib import aclosing
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from keepstate import names
from keepstate._clock import SYSTEM_CLOCK, Clock
from keepstate._finish import finish
from keepstate._runner import Mode, Runner
from keepstate.engine.history.objects import Kept, SharedObjects
from keepstate.engine.history.recording.recorder import Recorder
from keepstate.engine.kernel.arguments import (
    check_author,
    check_flag,
    check_space_name,
    check_tenant,
    check_text,
)
from keepstate.engine.kernel.part_collector import collect_parts
from keepstate.engine.kernel.single_use import reject_with
from keepstate.engine.space.space import Space
from keepstate.errors import InvalidError, UnsupportedError
from keepstate.stores.protocol import ENCRYPTION_SPACE, LacksKeys, ReplacesKeys, Store
from keepstate.values import codec, limits
from keepstate.values.codec import FORMS, STATES, Codec

if TYPE_CHECKING:
    from keepstate.values.pickles import SignedPickle


_RECORDERS = 1_024
"""Spaces that a handle remembers to be recorded, and how they stand."""


class Source(Protocol):
    """Where a handle gets its store from, and lets it go."""

    @property
    def url(self) -> str:
        """Return what names the store, without a password."""
        ...

    @property
    def runner(self) -> Runner:
        """Return how the handle's colour waits."""
        ...

    async def opened(self) -> Store:
        """Return the store, opened on the first call."""
        ...

    def now(self) -> Store | None:
        """Return the store if it is open."""
        ...

    async def close(self) -> None:
        """Let go of it; the last one to do so closes it."""
        ...

    def twin(self, mode: Mode) -> Source:
        """Return the same store for another colour."""
        ...

    def pickled(self) -> tuple[Any, ...]:
        """Return a function and its arguments that make this source again."""
        ...


class Keepstate:
    """Spaces in one store. Made by `keepstate.open`.

    An asynchronous context manager, and awaitable: both open the store. Without either it opens with the
    first operation. In blocking use `keepstate.sync.open` gives the same without `await`.

    Attributes:
        tenant_id: The tenant whose spaces it names, or None.
        author: Who writes, or None.
    """

    tenant_id: str | None

    def __init__(
        self,
        source: Source,
        *,
        tenant: str | None = None,
        author: str | None = None,
        read: Callable[[bytes], Any] | None = None,
        pickle: SignedPickle | None = None,
    ) -> None:
        self.tenant_id = check_tenant("tenant", tenant)
        self.author = check_author(author)
        self._source, self._read, self._pickle = source, read, pickle
        self._recorders: dict[str, Recorder] = {}
        self._kept = SharedObjects()
        self._lender: Keepstate | None = None
        self._blocking: dict[str, Keepstate] = {}

    def __repr__(self) -> str:
        state = "open" if self._source.now() is not None else "not open"
        of = "" if self.tenant_id is None else f" of tenant {self.tenant_id!r}"
        return f"<Keepstate {self._source.url}{of} {state}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self._source.pickled(), self._options())

    def _options(self) -> dict[str, Any]:
        return {
            "tenant": self.tenant_id,
            "author": self.author,
            "read": self._read,
            "pickle": self._pickle,
        }

    # ---- opening and closing

    def __await__(self) -> Generator[Any, None, Self]:
        return self._ready().__await__()

    if not TYPE_CHECKING:  # who checks types is told without it
        __enter__ = __exit__ = reject_with

    async def __aenter__(self) -> Self:
        return await self._ready()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _ready(self) -> Self:
        await self._source.opened()
        return self

    async def close(self) -> None:
        """Let go of the store; twice is once. A store that was passed in open stays open."""
        if self._lender is not None:
            return
        try:
            for inner in self._blocking.values():
                await self.runner.call(finish, inner.close())
        finally:
            self.runner.close()
            await self._source.close()

    @property
    def url(self) -> str:
        """Return what names the store, without a password."""
        return self._source.url

    def in_mode(self, mode: Mode) -> Keepstate:
        """Return a handle on the same data for the other colour; it is closed by who asked for it."""
        return Keepstate(self._source.twin(mode), **self._options())

    def for_blocking(self) -> Keepstate:
        """Return a handle on the same data for blocking calls, always the same one, closed with this one.

        It opens a store of its own with its first operation. `keepstate.sync.of` wraps it for callers.
        """
        if self._lender is not None and self.tenant_id is not None:
            return self._lender.for_blocking().tenant(self.tenant_id)
        if "handle" not in self._blocking:  # two threads may both make one; the first is kept
            self._blocking.setdefault("handle", self.in_mode("blocking"))
        return self._blocking["handle"]

    @property
    def store(self) -> Store:
        """The opened store.

        Raises:
            InvalidError: Nothing has opened it yet.
        """
        store = self._source.now()
        if store is None:
            raise InvalidError(f"{self!r} has no open store; enter it first, or call an operation")
        return store

    # ---- spaces

    def space(self, name: str, *, author: str | None = None, record: bool = False) -> Space:
        """Return a space; asks the store nothing.

        Args:
            name: Any text of 1 to 200 bytes of UTF-8. A tenant's id takes room of these: its own bytes and 5
                more, and one more for each of the characters 0 to 2.
            author: Who writes there; without it, who writes here.
            record: Keeps every moment of its documents: from the next change on, each batch that changes some
                has a commit of `main` in it. The space remembers that; every handle in every process obeys,
                and it does not end. See `Space.at` and `Space.by`.
        """
        return Space(
            self,
            check_space_name("name", name, self.tenant_id),
            author=self.author if author is None else check_author(author),
            record=check_flag("record", record),
        )

    def tenant(self, id: str) -> Keepstate:
        """Return the handle of a tenant on the same store; asks the store nothing.

        It names the tenant's spaces and reaches no others. It is closed with this handle, and its own end
        closes nothing.

        Args:
            id: Any text but the empty one.

        Raises:
            InvalidError: This handle is a tenant's itself, or the id is empty or too long.
        """
        if self.tenant_id is not None:
            raise InvalidError(
                f"{self!r} is a tenant's, and a tenant has none; use a handle without `tenant`"
            )
        if not check_text("id", id):
            raise InvalidError("`id` is empty; name a tenant")
        handle = Keepstate(self._source, tenant=id, author=self.author, read=self._read, pickle=self._pickle)
        handle._lender = self
        return handle

    async def spaces(self, under: str = "") -> AsyncIterator[str]:
        """Yield the names of spaces that hold something, in the order of their UTF-8 bytes.

        Those of this handle's tenant; without a tenant, those that have none.

        Args:
            under: Only the space of this name and those that continue it after a `/`: with `user/1` also
                `user/1/notes`, and not `user/10`. With a `/` at its end only those that continue it.
        """
        store, start = await self.opened(), check_text("under", under)
        if start and not start.endswith("/"):
            name = self.stored_name(start)
            if name != ENCRYPTION_SPACE and await store.spaces(name, limit=1) == [name]:
                yield start
            start += "/"
        prefix = names.stored_name(self.tenant_id, start)
        if len(prefix.encode()) > limits.SPACE_BYTES:
            return
        async with aclosing(self.stored_names(prefix)) as found:
            async for stored in found:
                tenant, name = names.parts_of(stored)
                if tenant != self.tenant_id:
                    return  # those of tenants come after those of none
                yield name

    async def drop(self, space: str) -> None:
        """Remove all that is in a space, its log too; an absent one stays absent."""
        name = self.stored_name(check_space_name("space", space, self.tenant_id))
        await (await self.opened()).drop(name)

    async def sweep(self) -> int:
        """Remove what has expired and parts of large values that nothing names; returns how many.

        A tenant's handle sweeps the tenant's spaces, any other one those of all tenants. Of an encrypted
        store that was opened without keys, only what has expired.
        """
        store = await self.opened()
        removed = 0
        while swept := await self.expire(1_000):
            removed += swept
        if isinstance(store, LacksKeys):
            return removed  # who cannot read the values would take all parts for unnamed
        async for stored in self.stored_names():
            removed += await collect_parts(store, stored)
        return removed

    async def rotate(self) -> int:
        """Encrypt again, under the newest key, what stands under older ones; returns how many values.

        Others may read and write meanwhile. It can be ended at any time: the next call goes on. Versions stay
        as they are, and no change is told of. A tenant's handle takes the tenant's spaces alone; an older key
        may go only after a handle without a tenant has done the whole store.

        Raises:
            UnsupportedError: The store is not encrypted.
        """
        store = await self.opened()
        if not isinstance(store, ReplacesKeys):
            raise UnsupportedError(f"{self.url} is not encrypted; open it with `encryption`")
        return await store.rotate(names.beginning(self.tenant_id))

    # ---- what its spaces and managers ask of it

    def stored_name(self, space: str) -> str:
        """Return the name that one of its spaces has in the store."""
        return names.stored_name(self.tenant_id, space)

    async def stored_names(self, prefix: str = "") -> AsyncGenerator[str]:
        """Yield the names that spaces have in the store: its tenant's, or without a tenant those of all."""
        start, after = prefix or names.beginning(self.tenant_id), None
        store = await self.opened()
        while page := await store.spaces(start, after=after):
            for name in page:
                if name != ENCRYPTION_SPACE:
                    yield name
            after = page[-1]

    async def expire(self, limit: int) -> int:
        """Remove up to `limit` entries that have expired, and return how many."""
        return await (await self.opened()).sweep(names.beginning(self.tenant_id), limit=limit)

    async def everywhere(self) -> AsyncIterator[tuple[str | None, Space]]:
        """Yield all spaces that hold something, each behind its tenant or None: of a tenant, its own."""
        async for stored in self.stored_names():
            tenant, name = names.parts_of(stored)
            handle = self if tenant in (None, self.tenant_id) else self.tenant(tenant)
            yield tenant, handle.space(name)

    @property
    def runner(self) -> Runner:
        """Return how this colour waits."""
        return self._source.runner

    @property
    def clock(self) -> Clock:
        """Time and randomness of this process."""
        return SYSTEM_CLOCK

    @property
    def pickle(self) -> SignedPickle | None:
        """Return what stores objects of classes that nobody registered, if that was asked for."""
        return self._pickle

    async def opened(self) -> Store:
        """Return the store, opened on the first call."""
        return self._source.now() or await self._source.opened()

    @property
    def states(self) -> Codec:
        """Return what encodes and decodes values in histories."""
        if self._pickle is not None:
            return self._pickle.states
        return STATES if self._read is None else FORMS

    def recorder(self, space: str) -> Recorder:
        """Return what records changes of documents of a space, by its name in the store."""
        if self._lender is not None:
            return self._lender.recorder(space)
        recorder = self._recorders.get(space)
        if recorder is None:
            if len(self._recorders) >= _RECORDERS:
                self._recorders = {}
            recorder = self._recorders.setdefault(space, Recorder(Kept(self._kept, space)))
        return recorder

    def decode(self, encoded: bytes, type: Any = None) -> Any:
        """Return a stored value in the form that the handle reads; a `type` is asked for by its class."""
        if type is not None:
            return codec.decode(encoded, type=type)
        return codec.decode(encoded) if self._read is None else self._read(encoded)


def _again(source: tuple[Any, ...], options: dict[str, Any]) -> Keepstate:
    make, *args = source
    return Keepstate(make(*args), **options)
