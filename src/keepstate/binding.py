"""Storage bindings: the store that a part opens, or the space or transaction that its caller passed.

A subject's own space is `<kind>/<id>`. There the names of its documents have no prefix, whether the space was
reached through a store or passed. In any other space they begin with `<kind>/<id>/`, the id escaped.
Invariant: a binding never closes what was passed in open.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TypedDict

from keepstate._clock import Clock
from keepstate._runner import Mode, Runner
from keepstate.engine.kernel.arguments import (
    check_author,
    check_flag,
    check_space_name,
    check_target,
    check_text,
    reject_with,
)
from keepstate.engine.kernel.glob import escape_pattern
from keepstate.engine.space.joint_work import require_recorded
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space, Transaction
from keepstate.errors import InvalidError
from keepstate.names import escape, unescape
from keepstate.opening import source_of
from keepstate.stores.protocol import Store

PRIVATE: Final = "memory://"
"""Memory that only one binding sees."""
SHARED: Final = "memory://default"
"""Memory that this process shares."""
_LAST: Final = chr(0x10FFFF)
"""Sorts after every other character."""


class StorageOptions(TypedDict, total=False):
    """The arguments of a constructor that name its storage.

    Attributes:
        persistence: A URL, the path of an SQLite file, an open store, or a handle on one.
        space: Instead: a space or transaction.
    """

    persistence: str | PathLike[str] | Store | Keepstate | None
    space: Space | Transaction | None
    _mode: Mode


def space_name(kind: str, id: str) -> str:
    """Return the name of a subject's own space. It contains the id unchanged."""
    return f"{kind}/{id}"


def is_own_space(target: Space | Transaction | None, kind: str, id: str) -> bool:
    """Return whether a space, or the space of a transaction, is the subject's own."""
    return target is not None and _name_of(target) == space_name(kind, id)


def prefix_of(passed: Space | Transaction | None, kind: str, id: str) -> str:
    """Return the prefix of a subject's names; empty in the subject's own space, or if no space was passed."""
    return "" if passed is None or is_own_space(passed, kind, id) else f"{kind}/{escape(id)}/"


async def subjects_in(passed: Space | Transaction, kind: str) -> AsyncIterator[str]:
    """Yield the ids of all subjects of a kind in a space that was passed, first the one that owns the space.

    The owner is counted only if the space has a document of its own, not only documents of other subjects.
    Cost: a scan of the other subjects' names, and at most two pages.
    """
    begin, name = f"{kind}/", _name_of(passed)
    if name.startswith(begin) and await _has_own(passed, begin):
        yield name[len(begin) :]
    last: str | None = None
    async for key in passed.documents.keys(f"{escape_pattern(begin)}*"):
        segment = key[len(begin) :].partition("/")[0]
        if segment != last:
            yield unescape(segment)
        last = segment


async def _has_own(passed: Space | Transaction, begin: str) -> bool:
    """Return whether a document exists whose name does not begin with this prefix."""
    for after in (None, begin + _LAST):
        async for key in passed.documents.keys(after=after):
            if not key.startswith(begin):
                return True
            break
    return False


def _name_of(target: Space | Transaction) -> str:
    return target.space if isinstance(target, Transaction) else target.name


def check_storage(persistence: object, space: object) -> None:
    """Raise `InvalidError` for a space or transaction as `persistence`, or a handle as `space`."""
    held, target = getattr(persistence, "_inner", persistence), getattr(space, "_inner", space)
    if isinstance(held, Space | Transaction):
        raise InvalidError(f"`persistence` is {held!r} ({type(held).__name__}); pass it as `space`")
    if isinstance(target, Keepstate):
        raise InvalidError(
            f"`space` is {target!r} (Keepstate); pass it as `persistence`, or one of its spaces as `space`"
        )


class StoreBinding:
    """Resolves the spaces of subjects. Closes a store that it has opened.

    Attributes:
        passed: The space or transaction that was passed.
        handle: Instead: the handle on a store.
        is_private: Whether no other object shares the store.

    Args:
        storage: The arguments of the constructor.
        default: The URL of the store if the arguments name none.
        author: The author of writes.
        record: Whether subjects' own spaces are recorded.

    Raises:
        InvalidError: The arguments name two storages, or one of the other mode.
        TypeError: The constructor has no argument of this name.
    """

    def __init__(
        self,
        storage: StorageOptions,
        *,
        default: str = SHARED,
        author: str | None = None,
        record: bool = False,
    ) -> None:
        if unknown := sorted(storage.keys() - StorageOptions.__annotations__.keys()):
            raise TypeError(
                f"unexpected keyword argument {unknown[0]!r}. Storage is named by `persistence` or `space`."
            )
        persistence, space = storage.get("persistence"), storage.get("space")
        mode = storage.get("_mode", "async")
        self.passed: Space | Transaction | None = None
        self.handle: Keepstate | None = None
        self.is_private = default == PRIVATE and persistence is None and space is None
        self._is_own = False
        self._author, self._record = check_author(author), check_flag("record", record)
        check_storage(persistence, space)
        if space is not None:
            if persistence is not None:
                raise InvalidError("`space` names the storage already. Pass no `persistence` with it.")
            if record:
                raise InvalidError(
                    "record=True has no effect on `space`. Open the space itself with record=True."
                )
            self.passed = check_target("space", space, mode, Space, Transaction)
        elif isinstance(persistence, Keepstate) or hasattr(persistence, "_inner"):
            self.handle = check_target("persistence", persistence, mode, Keepstate)
        else:
            url = default if persistence is None else persistence
            self.handle, self._is_own = Keepstate(source_of(url, mode)), True

    def __repr__(self) -> str:
        return repr(self._target)

    @property
    def _target(self) -> Space | Transaction | Keepstate:
        target = self.passed or self.handle
        assert target is not None
        return target

    @property
    def runner(self) -> Runner:
        """The runner of the mode."""
        return self._target.runner

    @property
    def mode(self) -> Mode:
        """The mode: `async` or `blocking`."""
        return self.runner.mode

    @property
    def clock(self) -> Clock:
        """The source of time and randomness."""
        return self._target.clock

    def target(self, name: str, *, record: bool = False) -> Space | Transaction:
        """Return the space of this name, or the one that was passed, whose name differs; no access.

        Raises:
            InvalidError: A space of the store cannot have this name.
        """
        if self.handle is not None:
            return self.handle.space(name, author=self._author, record=record or self._record)
        assert self.passed is not None
        return self.passed if self._author is None else self.passed.by(self._author)

    def locate(
        self, kind: str, id: str, *, record: bool = False, what: str = "id"
    ) -> tuple[Space | Transaction, str]:
        """Return the space of a subject, or the one that was passed, and the prefix of its names; no access.

        Args:
            kind: The kind of subject.
            id: Its id.
            record: Whether the subject's own space is recorded, even if it was passed.
            what: The name of the id in messages.

        Raises:
            InvalidError: The id is empty, or the name of its space would be over 200 bytes.
        """
        if not check_text(what, id):
            raise InvalidError(f"`{what}` is empty. Pass the id of the {kind}.")
        target = self.target(check_space_name(what, space_name(kind, id)), record=record)
        prefix = prefix_of(self.passed, kind, id)
        is_recorded = record and self.passed is not None and isinstance(target, Space) and not prefix
        return require_recorded(target) if is_recorded else target, prefix

    def is_own_space(self, kind: str, id: str) -> bool:
        """Return whether the passed space, or the space of the passed transaction, is the subject's own."""
        return is_own_space(self.passed, kind, id)

    def sibling(self, kind: str, id: str) -> Space | None:
        """Return the recorded space of another subject, in the store of the space that was passed.

        Return None if a transaction was passed, because a transaction reaches one space only.
        """
        if not isinstance(self.passed, Space):
            return None
        handle = self.passed.executor.home
        name = check_space_name("id", space_name(kind, id), handle.tenant_id)
        return Space(handle, name, author=self.passed.author, record=True, meta=self.passed.executor.meta)

    def require_outside_transaction(self, what: str) -> None:
        """Raise `InvalidError` inside a transaction, for work that cannot wait for its commit."""
        if isinstance(self.passed, Transaction):
            raise InvalidError(
                f"{what} takes effect at once, so it cannot be in a transaction. Do it outside."
            )

    async def close(self) -> None:
        """Release a store that was opened here."""
        if self.handle is not None and self._is_own:
            await self.handle.close()


class Resource:
    """A context manager that releases its storage binding on exit; a borrowed binding stays open."""

    _closing: StoreBinding | None = None

    if not TYPE_CHECKING:  # hidden from type checkers, which then reject `with`
        __enter__ = __exit__ = reject_with

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Release the store. A store, handle or space that was passed in open stays open."""
        if self._closing is not None:
            await self._closing.close()
