"""A state with every version of it: checkpoints, steps back, forks and merges, on the history of a space.

Versions are commits of one branch, in the order in which they were made; nothing is erased by going back. A
small document says which version is the present one, and from which one each was made.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from os import PathLike
from typing import Any, TypeVar

from keepstate._runner import Mode
from keepstate.engine.history.merge import MergeRules
from keepstate.engine.kernel.arguments import check_name
from keepstate.engine.space.joint_work import together
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space
from keepstate.engine.space.transaction import Transaction
from keepstate.errors import AlreadyExistsError, InvalidError, NotFoundError
from keepstate.home import quoted
from keepstate.sessions.binding import Home, short
from keepstate.sessions.resource import Kept
from keepstate.stores.protocol import Store
from keepstate.values import limits
from keepstate.values.schema import register

T = TypeVar("T")


@register("keepstate.Versions")
@dataclass
class VersionsRecord:
    """Which version is the present one; -1 if there is none."""

    current: int = -1
    count: int = 0
    made_from: dict[int, int] = field(default_factory=dict[int, int])
    """From which version each was made, where that is not the one before it."""

    def before(self, version: int) -> int:
        """Return the version from which another was made; -1 if it was the first."""
        return self.made_from.get(version, version - 1)

    @property
    def is_earlier(self) -> bool:
        """Whether the present version is not the last one."""
        return 0 <= self.current < self.count - 1

    def grown(self) -> None:
        """Count a version that was made from the present one."""
        if self.current != self.count - 1:
            self.made_from[self.count] = self.current
        self.current, self.count = self.count, self.count + 1


class VersionedState(Kept):
    """Versions of a state, in the space `versions/<id>`; each costs what it changes, and none is lost.

    Args:
        id: Which state; without it one that nobody else has, unless a place is given.
        fork: The fork of it that this one is; `fork` makes it.
        persistence: A URL, the path of an SQLite file, an open store, or a handle on one.
        space: Instead: a space, or a transaction whose batch all checkpoints join.

    Attributes:
        id: Which state.
    """

    id: str

    def __init__(
        self,
        id: str | None = None,
        *,
        fork: str | None = None,
        persistence: str | PathLike[str] | Store | Keepstate | None = None,
        space: Space | Transaction | None = None,
        _mode: Mode = "async",
    ) -> None:
        home = Home(persistence, space, mode=_mode, is_private=id is None)
        self._begin(home, "default" if id is None else id, fork)

    def _begin(self, home: Home, id: str, fork: str | None, *, closes: bool = True) -> None:
        self._home, self.id, self._fork = home, id, fork
        self._closing = home if closes else None
        self._place = home.place("versions", id)
        fork = "" if fork is None else quoted(check_name("fork", fork))
        self._name = f"{home.prefix('versions', id)}versions{'/' if fork else ''}{fork}"
        self._branch = short(self._name)
        self._present = f"{self._branch}/present"

    def __repr__(self) -> str:
        fork = "" if self._fork is None else f" fork {self._fork!r}"
        return f"<VersionedState {self.id!r}{fork} in {self._home!r}>"

    async def checkpoint(self, state: object, *, message: str = "") -> int:
        """Save a version, which is the present one then, and return its number; the first one has 0."""

        async def grow(tx: Transaction, record: VersionsRecord) -> int:
            record.grown()
            told = message or f"version {record.current}"
            await tx.history.commit({"state": state}, branch=self._branch, message=told)
            return record.current

        return await self._changed(grow)

    async def rollback(self, steps: int = 1) -> Any:
        """Make an earlier version the present one and return its state; stops at the first.

        Raises:
            NotFoundError: There is no version.
        """
        limits.admit_count("steps", steps)

        async def back(tx: Transaction, record: VersionsRecord) -> int:
            for _ in range(steps):
                if record.before(record.current) < 0:
                    break
                record.current = record.before(record.current)
            return record.current

        return await self.state_at(await self._changed(back, needs_version=True))

    async def get_state(self) -> Any:
        """Return a copy of the present version's state.

        Raises:
            NotFoundError: There is no version.
        """
        return await self.state_at((await self._record(self._place, needs_version=True)).current)

    async def current_version(self) -> int:
        """Return the number of the present version; -1 if there is none."""
        return (await self._record(self._place)).current

    async def state_at(self, version: int) -> Any:
        """Return a copy of a version's state.

        Raises:
            NotFoundError: There is no such version.
        """
        if type(version) is not int or version < 0:
            raise InvalidError(f"`version` is {version!r}; give the number of one, from 0")
        try:
            return (await self._place.history.checkout(f"{self._branch}#{version + 1}"))["state"]
        except NotFoundError as error:
            count = (await self._record(self._place)).count
            if version < count:
                raise
            raise self._no_version(version, count) from error

    def _no_version(self, version: object, count: int) -> NotFoundError:
        there = f"it has 0 to {count - 1}" if count else "it has none; checkpoint one first"
        return NotFoundError(f"{self!r} has no version {version!r}; {there}")

    # ---- forks

    async def fork(self, name: str, *, at: int | None = None) -> VersionedState:
        """Return a state of its own that begins with a version of this one; closing it leaves this one open.

        Args:
            name: What the fork is called; `VersionedState(id, fork=name)` is the same again.
            at: The version; the present one, if it is not given.

        Raises:
            AlreadyExistsError: There is a fork of this name.
            NotFoundError: There is no such version.
        """
        made = VersionedState.__new__(VersionedState)
        made._begin(self._home, self.id, name, closes=False)

        async def work(tx: Transaction) -> None:
            record = await self._record(tx, needs_version=True)
            version = record.current if at is None else at
            if type(version) is not int or not 0 <= version < record.count:
                raise self._no_version(version, record.count)
            if await tx.documents.get(made._name) is not None:
                raise AlreadyExistsError(f"{self!r} has a fork {name!r}; give another name")
            await tx.history.branch(made._branch, at=f"{self._branch}#{version + 1}")
            before = {number: origin for number, origin in record.made_from.items() if number <= version}
            await tx.documents.put(made._name, VersionsRecord(version, version + 1, before))

        await together(self._place, work, message=f"fork {name}")
        return made

    async def merge(self, fork: str, *, rules: MergeRules | None = None) -> int:
        """Make a version of the present one and of what a fork has changed, and return its number.

        Args:
            fork: The name of the fork.
            rules: What to do where both changed the same, as for `History.merge`, by paths in the state.

        Raises:
            MergeConflictError: Both changed the same and no rule decides; nothing was changed.
            InvalidError: The rules are none.
            NotFoundError: There is no such fork.
        """
        if rules is not None and not isinstance(rules, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidError(f"`rules` is {rules!r}; give a dict of paths and rules")
        other = VersionedState.__new__(VersionedState)
        other._begin(self._home, self.id, fork, closes=False)
        inside: dict[Any, Any] = {
            ("state", *(path if isinstance(path, tuple) else (path,))): rule
            for path, rule in (rules or {}).items()
        }

        async def join(tx: Transaction, record: VersionsRecord) -> int:
            theirs = await self._record(tx, other._name, needs_version=True)
            if record.current != record.count - 1:  # a merge goes on from the last one
                present = await tx.history.checkout(f"{self._branch}#{record.current + 1}")
                record.grown()
                await tx.history.commit(
                    dict(present), branch=self._branch, message="go on from an earlier version"
                )
            head = await tx.history.find(self._branch)
            source = f"{other._branch}#{theirs.current + 1}"
            merged = await tx.history.merge(source, into=self._branch, rules=inside, message=f"merge {fork}")
            if merged.id != head.id:
                record.grown()
            return record.current

        return await self._changed(join, needs_version=True)

    # ---- its document

    async def _record(
        self, place: Space | Transaction, name: str | None = None, *, needs_version: bool = False
    ) -> VersionsRecord:
        record = await place.documents.get(name or self._name, type=VersionsRecord) or VersionsRecord()
        if needs_version and record.current < 0:
            raise NotFoundError(f"{name or self._name!r} of {place!r} has no version; checkpoint one first")
        return record

    async def _changed(
        self, change: Callable[[Transaction, VersionsRecord], Awaitable[T]], *, needs_version: bool = False
    ) -> T:
        async def work(tx: Transaction) -> T:
            record = await self._record(tx, needs_version=needs_version)
            was_earlier = record.is_earlier
            answer = await change(tx, record)
            await tx.documents.put(self._name, record)
            if was_earlier:
                await tx.history.delete_tag(self._present)
            if record.is_earlier:  # what is let go of in the space takes no commit that has a name
                await tx.history.tag(self._present, at=f"{self._branch}#{record.current + 1}")
            return answer

        return await together(self._place, work, message="versions", turn=self._name)
