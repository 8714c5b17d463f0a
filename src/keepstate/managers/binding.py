"""Where a manager keeps things: a store of its own opening, with a space for each subject, or a space passed.

A subject's own space is the same place whether it was reached by a store or passed. Invariant: what was
passed in open is never closed here, and in a space that is not the subject's own nothing is touched whose
name does not begin as the subject's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from copy import copy
from dataclasses import dataclass
from os import PathLike
from typing import Any, Final

from keepstate._clock import Clock
from keepstate._runner import Mode, Runner
from keepstate.engine.kernel.arguments import check_target, check_text, reject_twin
from keepstate.engine.kernel.glob import escape_pattern
from keepstate.engine.space.joint_work import recorded
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space
from keepstate.engine.space.transaction import Transaction
from keepstate.errors import ClosedError, InvalidError
from keepstate.home import prefix_of, refuse_exchanged, subjects_in
from keepstate.managers import names as naming
from keepstate.managers.backends import Backend, url_of
from keepstate.opening import OpenStore, source_of
from keepstate.stores.protocol import Store
from keepstate.values import limits

_HANDLES: Final = 1_024


@dataclass(frozen=True, slots=True)
class Folder:
    """What belongs to one subject: a part of a space, or all of it.

    Attributes:
        kind: What the subject is.
        id: Which one.
        space: The space, or a transaction on it.
        prefix: What names begin with; empty in a space of the subject's own.
    """

    kind: str
    id: str
    space: Space | Transaction
    prefix: str

    @property
    def has_own_space(self) -> bool:
        """Return whether the subject has the space for itself, and no transaction is under way on it."""
        return not self.prefix and isinstance(self.space, Space)

    def name(self, *segments: str) -> str:
        """Return the name of a document; the last segment may be any text but an empty one.

        Raises:
            InvalidError: It is none, or too long behind what stands before it.
        """
        return naming.name_of(self.kind, self.prefix, segments)

    def beginning(self, *segments: str) -> str:
        """Return what the names of documents begin with that have these segments before their last one."""
        return self.prefix + "/".join((*segments, ""))

    def task(self, id: str) -> str:
        """Return the name of a task in the space's queue, which may be shorter than that of a document."""
        return naming.name_of(self.kind, self.prefix, (id,), most_bytes=limits.SPACE_BYTES)

    def label(self, name: str) -> str:
        """Return the name of a branch, stream or lease."""
        return naming.short(self.prefix + name)

    def on(self, space: Space | Transaction) -> Folder:
        """Return the same part of a transaction on the space, or of the space for another author."""
        return Folder(self.kind, self.id, space, self.prefix)

    def by(self, message: str) -> Folder:
        """Return the same for what is done now, which records name by the message."""
        return self.on(self.space.by(message=message))

    async def names(self, *segments: str) -> AsyncIterator[str]:
        """Yield what stands last in the names of the documents that begin with these segments."""
        begin = self.beginning(*segments)
        async for key in self.space.documents.keys(escape_pattern(begin) + "*"):
            yield key[len(begin) :]

    async def values(self, *segments: str, after: str | None = None) -> AsyncIterator[tuple[str, Any]]:
        """Yield the same with the values, behind the name of `after`."""
        begin = self.beginning(*segments)
        place = None if after is None else begin + after
        async for key, value in self.space.documents.items(escape_pattern(begin) + "*", after=place):
            yield key[len(begin) :], value


Together = Callable[..., Awaitable[Any]]
"""Applies work on what belongs to a subject as one batch."""


class Place:
    """The store or space of one manager.

    Args:
        kind: What its subjects are: the first segment of all names.
        persistence: A name, a URL, a description, an open store or a handle on one.
        url: A URL, for the names that need one.
        redis_url: The URL of a Redis server.
        file_path: The file of a journal or SQLite database.
        space: Instead: a space or transaction to keep all subjects in.
        mode: How it is used.
        records: Whether spaces of subjects keep every moment of their documents.
    """

    def __init__(
        self,
        kind: str,
        *,
        persistence: str | Backend | Store | Keepstate | None,
        url: str | None,
        redis_url: str | None,
        file_path: str | PathLike[str] | None,
        space: Space | Transaction | None,
        mode: Mode,
        records: bool = True,
    ) -> None:
        self.kind, self._records = kind, records
        self.mode: Mode = mode
        self._handle: Keepstate | None = None
        self._is_own, self._is_closed = False, False
        self.space: Space | Transaction | None = None
        self._folders: OrderedDict[str, Folder] = OrderedDict()
        refuse_exchanged(persistence, space)
        if space is not None:
            if (persistence, url, redis_url, file_path) != (None, None, None, None):
                raise InvalidError("`space` says where to keep things already; give nothing beside it")
            self.space = check_target("space", space, mode, Space, Transaction)
        elif isinstance(persistence, Keepstate):
            self._handle = check_target("persistence", persistence, mode, Keepstate)
        elif persistence is None or isinstance(persistence, str | Backend):
            text = url_of(persistence, url=url, redis_url=redis_url, file_path=file_path)
            self._handle, self._is_own = Keepstate(OpenStore(text, mode, makes_folder=True)), True
        else:
            url_of("memory", url=url, redis_url=redis_url, file_path=file_path)
            reject_twin("persistence", persistence)
            self._handle = Keepstate(source_of(persistence, mode))

    def __repr__(self) -> str:
        return repr(self._parts)

    @property
    def _parts(self) -> Keepstate | Space | Transaction:
        place = self._handle or self.space
        assert place is not None
        return place

    @property
    def runner(self) -> Runner:
        """Return how the colour waits."""
        return self._parts.runner

    @property
    def clock(self) -> Clock:
        """Time and randomness of this process."""
        return self._parts.clock

    @property
    def handle(self) -> Keepstate | None:
        """The handle on the store; None where a space was passed."""
        return self._handle

    @property
    def transaction(self) -> Transaction | None:
        """The transaction that all work joins, or None."""
        return self.space if isinstance(self.space, Transaction) else None

    def on(self, tx: Transaction) -> Place:
        """Return the same place for what joins a transaction."""
        inside = copy(self)
        inside.space, inside._handle, inside._is_own = tx, None, False
        inside._folders = OrderedDict()
        return inside

    def record(self) -> None:
        """Let a space that was passed keep every moment of its documents.

        Raises:
            InvalidError: A transaction was passed, of a space that was not asked to.
        """
        if self.space is not None:
            self.space = recorded(self.space)

    def require_outside_transaction(self, what: str) -> None:
        """Raise `InvalidError` inside a transaction, for what cannot wait until that applies."""
        if self.transaction is not None:
            raise InvalidError(f"{what} acts at once and cannot be part of a transaction; do it outside")

    async def sweep(self) -> None:
        """Remove some of what has expired, where the store is this manager's."""
        if self._handle is not None:
            await self._handle.expire(1_000)

    # ---- opening and closing

    async def open(self) -> None:
        """Open the store, which else the first call does."""
        self.refuse_closed()
        if self._handle is not None:
            await self._handle.opened()

    async def close(self) -> None:
        """Let go of a store that was opened here; nothing more goes to one that was passed, either."""
        self._is_closed = True
        if not self._is_own:
            return
        if self._handle is not None:
            await self._handle.close()
        elif isinstance(self.space, Space):
            home: Any = self.space.executor.home
            await home.close()

    def refuse_closed(self) -> None:
        """Raise `ClosedError` once it is closed: what a manager stages after that nobody would flush."""
        if self._is_closed:
            raise ClosedError(f"the manager of what is in {self!r} is closed; make another")

    # ---- subjects

    def folder(self, id: str, *, least: int = 1) -> Folder:
        """Return what belongs to a subject, whose id has at least so many bytes; asks the store nothing."""
        self.refuse_closed()
        found = self._folders.get(check_text(naming.argument_of(self.kind), id))
        if found is None:
            name = naming.space_of(self.kind, id, least=least)
            if self.space is None:
                found = Folder(self.kind, id, self._space(name, id), "")
            else:
                space, prefix = self.space, prefix_of(self.space, self.kind, id)
                if self._records and not prefix and isinstance(space, Space):
                    space = recorded(space)
                found = Folder(self.kind, id, space.by(space.author or id or None), prefix)
            self._folders[id] = found
            if len(self._folders) > _HANDLES:
                self._folders.popitem(last=False)
        return found

    def _space(self, name: str, author: str) -> Space:
        assert self._handle is not None
        return self._handle.space(name, author=author or None, record=self._records)

    async def ids(self) -> AsyncIterator[str]:
        """Yield the subjects that hold something, in the order of their names; see `home.subjects_in`."""
        if self._handle is not None:
            async for name in self._handle.spaces(f"{self.kind}/"):
                yield naming.id_in(self.kind, name)
            return
        assert self.space is not None
        async for id in subjects_in(self.space, self.kind):
            yield id

    async def spaces(self) -> AsyncIterator[Space]:
        """Yield the spaces that hold something: those of the subjects, or the one that was passed."""
        if isinstance(self.space, Space):
            yield self.space
        elif self._handle is not None:
            async for name in self._handle.spaces(f"{self.kind}/"):
                yield self._handle.space(name)

    async def drop(self, folder: Folder) -> None:
        """Remove a subject's own space."""
        assert isinstance(folder.space, Space)
        home: Any = folder.space.executor.home
        await home.drop(naming.space_of(self.kind, folder.id))

    def __getstate__(self) -> dict[str, Any]:
        """Return what is sent; what arrives has a handle of its own, and close it."""
        return {**self.__dict__, "_folders": OrderedDict(), "_is_own": True}
