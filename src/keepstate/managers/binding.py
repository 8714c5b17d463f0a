"""The storage binding of a manager: a store that it opens, with a space per subject, or a space passed in.

A subject's own space is the same whether it was reached through a store or passed in. Invariants: a binding
never closes a store or space that was passed in open. In a shared space it touches only names that begin with
the subject's prefix.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from copy import copy
from dataclasses import dataclass
from os import PathLike
from typing import Any, Final, TypedDict, TypeVar, cast

from keepstate._runner import Mode
from keepstate.binding import StoreBinding, check_storage, prefix_of, subjects_in
from keepstate.engine.documents.collection import Collection
from keepstate.engine.kernel.arguments import check_text
from keepstate.engine.space.joint_work import require_recorded
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space, Transaction
from keepstate.errors import ClosedError, InvalidError
from keepstate.managers import names as naming
from keepstate.managers.backends import Backend, url_of
from keepstate.opening import OpenStore
from keepstate.stores.protocol import Store
from keepstate.values import limits

T = TypeVar("T")

_HANDLES: Final = 1_024
CHANGED_AT_ONCE: Final = 300


@dataclass(frozen=True, slots=True)
class Namespace:
    """A key prefix in a space for one subject, or a whole space.

    Attributes:
        kind: The kind of subject.
        id: The id of the subject.
        space: The space, or a transaction on it.
        prefix: Prefix of all names; empty in a space of the subject's own.
    """

    kind: str
    id: str
    space: Space | Transaction
    prefix: str

    @property
    def has_own_space(self) -> bool:
        """True if the subject has the whole space, and no transaction is in progress on it."""
        return not self.prefix and isinstance(self.space, Space)

    def name(self, *segments: str) -> str:
        """Return the name of a document. The last segment may be any non-empty text.

        Raises:
            InvalidError: The last segment is empty, or too long after its prefix.
        """
        return naming.name_of(self.kind, self.prefix, segments)

    def name_prefix(self, *segments: str) -> str:
        """Return the prefix of the names of documents with these segments before the last one."""
        return self.prefix + "/".join((*segments, ""))

    def task(self, id: str) -> str:
        """Return the name of a task in the space's queue, whose limit is lower than that of a document."""
        return naming.name_of(self.kind, self.prefix, (id,), most_bytes=limits.SPACE_BYTES)

    def label(self, name: str) -> str:
        """Return the name of a branch, stream or lease."""
        return naming.shorten(self.prefix + name)

    def with_space(self, space: Space | Transaction) -> Namespace:
        """Return the same namespace on a transaction, or on the space of another author."""
        return Namespace(self.kind, self.id, space, self.prefix)

    def by(self, message: str) -> Namespace:
        """Return the same namespace, with a message for its next records."""
        return self.with_space(self.space.by(message=message))

    def collection(self, *segments: str) -> Collection[Any]:
        """Return the documents whose names begin with these segments."""
        return Collection(
            self.space.documents, self.name_prefix(*segments), lambda id: self.name(*segments, id)
        )

    async def get(self, *segments: str, default: Any = None) -> Any:
        """Return a copy of a document's value, or the default if it does not exist."""
        return await self.space.documents.get(self.name(*segments), default)

    async def put(self, value: object, *segments: str, ttl_s: float | None = None) -> None:
        """Write a document."""
        await self.space.documents.put(self.name(*segments), value, ttl_s=ttl_s)

    async def delete(self, *segments: str) -> bool:
        """Delete a document, and return whether it existed."""
        return await self.space.documents.delete(self.name(*segments))


ApplyWork = Callable[..., Awaitable[Any]]
"""Applies work on a namespace as one batch."""


async def change_pages(
    apply: ApplyWork,
    namespace: Namespace,
    items: Sequence[T],
    work: Callable[[Namespace, Sequence[T]], Awaitable[int]],
    *,
    message: str = "",
) -> int:
    """Change any number of things, at most 300 in one batch, and return the sum of the results.

    Args:
        apply: Applies work as one batch.
        namespace: The namespace of the subject.
        items: The things to change.
        work: Changes some of them.
        message: Message in the record of the space.
    """
    changed = 0
    for begin in range(0, len(items), CHANGED_AT_ONCE):
        page = items[begin : begin + CHANGED_AT_ONCE]

        async def change(inside: Namespace, page: Sequence[T] = page) -> int:
            return await work(inside, page)

        changed += await apply(namespace, change, message=message)
    return changed


class ManagerStorage(TypedDict, total=False):
    """The arguments of a manager's constructor that name its storage.

    Attributes:
        persistence: `memory`, `file`, `sqlite`, `redis` or `postgres`; a URL, a description, an open store or
            a handle on one.
        url: The URL, if `persistence` names a backend.
        redis_url: The URL of a Redis server.
        file_path: The file of a journal or SQLite database.
        space: A space or transaction that stores all subjects, in place of a store.
    """

    persistence: str | Backend | Store | Keepstate | None
    url: str | None
    redis_url: str | None
    file_path: str | PathLike[str] | None
    space: Space | Transaction | None
    _mode: Mode


class SubjectBinding(StoreBinding):
    """The store or space of one manager, and the namespaces of its subjects.

    Args:
        kind: The kind of its subjects: the first segment of all names.
        storage: The arguments of the manager that name its storage.
        records: Whether the spaces of subjects record every version of their documents.
    """

    def __init__(self, kind: str, storage: ManagerStorage, *, records: bool = True) -> None:
        self.kind, self._records, self._is_closed = kind, records, False
        self._namespaces: OrderedDict[str, Namespace] = OrderedDict()
        persistence, space = storage.get("persistence"), storage.get("space")
        mode = storage.get("_mode", "async")
        check_storage(persistence, space)
        given = {name: storage.get(name) for name in ("url", "redis_url", "file_path")}
        named = {name: cast("str", value) for name, value in given.items() if value is not None}
        if space is not None and (persistence is not None or named):
            raise InvalidError("`space` names the storage already. Pass no other storage with it.")
        opened: Keepstate | None = None
        if space is None and (persistence is None or isinstance(persistence, str | Backend)):
            opened = Keepstate(OpenStore(url_of(persistence, named), mode, makes_folder=True))
        elif named and not isinstance(persistence, Keepstate):
            url_of("memory", named)  # raises for names that have no effect
        passed = cast("Store | Keepstate | None", persistence) if opened is None else opened
        super().__init__({"persistence": passed, "space": space, "_mode": mode})
        self._is_own = self._is_own or opened is not None

    @property
    def transaction(self) -> Transaction | None:
        """The transaction that all work joins, or None."""
        return self.passed if isinstance(self.passed, Transaction) else None

    def in_transaction(self, tx: Transaction) -> SubjectBinding:
        """Return the same binding for work that joins a transaction."""
        inside = copy(self)
        inside.passed, inside.handle, inside._is_own = tx, None, False
        inside._namespaces = OrderedDict()
        return inside

    def record(self) -> None:
        """Record every version of documents in a space that was passed in.

        Raises:
            InvalidError: A transaction was passed whose space does not record.
        """
        if self.passed is not None:
            self.passed = require_recorded(self.passed)

    async def sweep(self) -> None:
        """Remove some expired entries, if this binding has a handle on the store."""
        if self.handle is not None:
            await self.handle.expire(1_000)

    # ---- opening and closing

    async def open(self) -> None:
        """Open the store, which otherwise the first call opens."""
        self.require_open()
        if self.handle is not None:
            await self.handle.opened()

    async def close(self) -> None:
        """Release a store that was opened here. The binding accepts no more calls in either case."""
        self._is_closed = True
        if self._is_own and isinstance(self.passed, Space):
            home: Any = self.passed.executor.home
            await home.close()
        await super().close()

    def require_open(self) -> None:
        """Raise `ClosedError` after `close`, because nothing would flush data staged later."""
        if self._is_closed:
            raise ClosedError(f"the manager on {self!r} is closed. Make a new one.")

    # ---- subjects

    def namespace(self, id: str, *, least: int = 1) -> Namespace:
        """Return the namespace of a subject whose id has at least `least` bytes, without a read."""
        self.require_open()
        found = self._namespaces.get(check_text(naming.argument_name(self.kind), id))
        if found is None:
            name = naming.space_of(self.kind, id, least=least)
            if self.passed is None:
                found = Namespace(self.kind, id, self._space(name, id), "")
            else:
                space, prefix = self.passed, prefix_of(self.passed, self.kind, id)
                if self._records and not prefix and isinstance(space, Space):
                    space = require_recorded(space)
                found = Namespace(self.kind, id, space.by(space.author or id or None), prefix)
            self._namespaces[id] = found
            if len(self._namespaces) > _HANDLES:
                self._namespaces.popitem(last=False)
        return found

    def _space(self, name: str, author: str) -> Space:
        assert self.handle is not None
        return self.handle.space(name, author=author or None, record=self._records)

    async def ids(self) -> AsyncIterator[str]:
        """Yield the ids of subjects that have data, in the order of their names."""
        if self.handle is not None:
            async for name in self.handle.spaces(f"{self.kind}/"):
                yield naming.id_in(self.kind, name)
            return
        assert self.passed is not None
        async for id in subjects_in(self.passed, self.kind):
            yield id

    async def spaces(self) -> AsyncIterator[Space]:
        """Yield the spaces that have data: one for each subject, or the space that was passed in."""
        if isinstance(self.passed, Space):
            yield self.passed
        elif self.handle is not None:
            async for name in self.handle.spaces(f"{self.kind}/"):
                yield self.handle.space(name)

    async def drop(self, namespace: Namespace) -> None:
        """Remove a subject's own space."""
        assert isinstance(namespace.space, Space)
        home: Any = namespace.space.executor.home
        await home.drop(naming.space_of(self.kind, namespace.id))

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to send. The copy releases its own handle on `close`."""
        if self.transaction is not None:
            raise TypeError(f"{self!r} cannot be pickled, because a transaction belongs to one process")
        return {**self.__dict__, "_namespaces": OrderedDict(), "_is_own": True}
