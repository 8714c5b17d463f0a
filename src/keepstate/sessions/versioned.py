"""A state with all its versions: checkpoints, rollbacks, forks and merges, on the history of a space.

Versions are commits of one branch, in the order of their creation; a rollback erases nothing. A small
document records the current version, and the version from which each was made.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, Unpack

from keepstate.binding import PRIVATE, SHARED, Resource, StorageOptions, StoreBinding
from keepstate.engine.history.merge import MergeRules
from keepstate.engine.kernel.arguments import check_name, require_instance
from keepstate.engine.space.joint_work import run_in_transaction
from keepstate.engine.space.space import Space, Transaction
from keepstate.errors import AlreadyExistsError, NotFoundError
from keepstate.names import escape, shorten
from keepstate.values import limits
from keepstate.values.schema import register

T = TypeVar("T")


@register("keepstate.Versions")
@dataclass
class VersionsRecord:
    """The number of the current version, or -1, and the origins of versions."""

    current: int = -1
    count: int = 0
    made_from: dict[int, int] = field(default_factory=dict[int, int])
    """The origin of each version that was not made from the version before it."""

    def before(self, version: int) -> int:
        """Return the origin of a version; -1 for the first."""
        return self.made_from.get(version, version - 1)

    @property
    def is_earlier(self) -> bool:
        """True if the current version is not the newest."""
        return 0 <= self.current < self.count - 1

    def add_version(self) -> None:
        """Count a new version that was made from the current one, and make it current."""
        if self.current != self.count - 1:
            self.made_from[self.count] = self.current
        self.current, self.count = self.count, self.count + 1


class VersionedState(Resource):
    """A state with all its versions, in the space `versions/<id>`; each version costs only what it changes.

    Args:
        id: Id of the state; without it the state is private to this object, unless `persistence` or `space`
            is given.
        fork: Name of a fork of the state; `fork` creates it.
        persistence: A URL, the path of an SQLite file, an open store, or a handle on one.
        space: Instead: a space, or a transaction whose batch all checkpoints join.

    Attributes:
        id: Id of the state.
    """

    id: str

    def __init__(
        self,
        id: str | None = None,
        *,
        fork: str | None = None,
        **storage: Unpack[StorageOptions],
    ) -> None:
        binding = StoreBinding(storage, default=PRIVATE if id is None else SHARED)
        self._begin(binding, "default" if id is None else id, fork)

    def _begin(self, binding: StoreBinding, id: str, fork: str | None, *, closes: bool = True) -> None:
        self._binding, self.id, self._fork = binding, id, fork
        self._closing = binding if closes else None
        self._target, prefix = binding.locate("versions", id)
        fork = "" if fork is None else escape(check_name("fork", fork))
        self._name = f"{prefix}versions{'/' if fork else ''}{fork}"
        self._branch = shorten(self._name)
        self._present = f"{self._branch}/present"

    def __repr__(self) -> str:
        fork = "" if self._fork is None else f" fork {self._fork!r}"
        return f"<VersionedState {self.id!r}{fork} in {self._binding!r}>"

    async def checkpoint(self, state: object, *, message: str = "") -> int:
        """Save a new version, make it current, and return its number, from 0."""

        async def grow(tx: Transaction, record: VersionsRecord) -> int:
            record.add_version()
            label = message or f"version {record.current}"
            await tx.history.commit({"state": state}, branch=self._branch, message=label)
            return record.current

        return await self._change(grow)

    async def rollback(self, steps: int = 1) -> Any:
        """Make an earlier version current and return its state; stops at the first version.

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

        return await self.state_at(await self._change(back, needs_version=True))

    async def get_state(self) -> Any:
        """Return a copy of the current version's state.

        Raises:
            NotFoundError: There is no version.
        """
        return await self.state_at((await self._record(self._target, needs_version=True)).current)

    async def current_version(self) -> int:
        """Return the number of the current version; -1 if there is none."""
        return (await self._record(self._target)).current

    async def state_at(self, version: int) -> Any:
        """Return a copy of a version's state.

        Raises:
            NotFoundError: The version does not exist.
        """
        limits.admit_count("version", version, 0)
        try:
            return (await self._target.history.checkout(f"{self._branch}#{version + 1}"))["state"]
        except NotFoundError as error:
            count = (await self._record(self._target)).count
            if version < count:
                raise
            raise self._no_version(version, count) from error

    def _no_version(self, version: object, count: int) -> NotFoundError:
        known = f"It has 0 to {count - 1}." if count else "It has none. Call checkpoint() first."
        return NotFoundError(f"{self._place} has no version {version!r}. {known}")

    @property
    def _place(self) -> str:
        """The name of the state and its space, for messages."""
        return f"State {self.id!r} in space {self._target.executor.name!r}"

    # ---- forks

    async def fork(self, name: str, *, at: int | None = None) -> VersionedState:
        """Create an independent fork that begins with a version of this state.

        Closing the fork leaves this object open.

        Args:
            name: Name of the fork; `VersionedState(id, fork=name)` opens it again.
            at: The version; the current version by default.

        Raises:
            AlreadyExistsError: A fork of this name exists.
            NotFoundError: The version does not exist.
        """
        made = VersionedState.__new__(VersionedState)
        made._begin(self._binding, self.id, name, closes=False)

        async def work(tx: Transaction) -> None:
            record = await self._record(tx, needs_version=True)
            version = record.current if at is None else at
            if type(version) is not int or not 0 <= version < record.count:
                raise self._no_version(version, record.count)
            if await tx.documents.get(made._name) is not None:
                raise AlreadyExistsError(f"{self._place} already has a fork {name!r}. Choose another name.")
            await tx.history.branch(made._branch, at=f"{self._branch}#{version + 1}")
            before = {number: origin for number, origin in record.made_from.items() if number <= version}
            await tx.documents.put(made._name, VersionsRecord(version, version + 1, before))

        await run_in_transaction(self._target, work, message=f"fork {name}")
        return made

    async def merge(self, fork: str, *, rules: MergeRules | None = None) -> int:
        """Make a version from the present one and the changes of a fork, and return its number.

        Args:
            fork: The name of the fork.
            rules: What to do where both changed the same, as for `History.merge`, by paths in the state.

        Raises:
            MergeConflictError: Both changed the same and no rule decides; nothing was changed.
            InvalidError: The rules are none.
            NotFoundError: There is no such fork.
        """
        require_instance("rules", {} if rules is None else rules, Mapping)
        other = VersionedState.__new__(VersionedState)
        other._begin(self._binding, self.id, fork, closes=False)
        inside: dict[Any, Any] = {
            ("state", *(path if isinstance(path, tuple) else (path,))): rule
            for path, rule in (rules or {}).items()
        }

        async def join(tx: Transaction, record: VersionsRecord) -> int:
            theirs = await self._record(tx, other._name, needs_version=True)
            if record.current != record.count - 1:  # a merge continues from the newest version
                present = await tx.history.checkout(f"{self._branch}#{record.current + 1}")
                record.add_version()
                await tx.history.commit(
                    dict(present), branch=self._branch, message="continue from an earlier version"
                )
            head = await tx.history.find(self._branch)
            source = f"{other._branch}#{theirs.current + 1}"
            merged = await tx.history.merge(source, into=self._branch, rules=inside, message=f"merge {fork}")
            if merged.id != head.id:
                record.add_version()
            return record.current

        return await self._change(join, needs_version=True)

    # ---- its document

    async def _record(
        self, target: Space | Transaction, name: str | None = None, *, needs_version: bool = False
    ) -> VersionsRecord:
        record = await target.documents.get(name or self._name, type=VersionsRecord) or VersionsRecord()
        if needs_version and record.current < 0:
            raise NotFoundError(
                f"{name or self._name!r} in space {target.executor.name!r} has no version. Call checkpoint() "
                "first."
            )
        return record

    async def _change(
        self, change: Callable[[Transaction, VersionsRecord], Awaitable[T]], *, needs_version: bool = False
    ) -> T:
        async def work(tx: Transaction) -> T:
            record = await self._record(tx, needs_version=needs_version)
            was_earlier = record.is_earlier
            answer = await change(tx, record)
            await tx.documents.put(self._name, record)
            if was_earlier:
                await tx.history.delete_tag(self._present)
            if record.is_earlier:  # a tagged commit survives pruning of the space's history
                await tx.history.tag(self._present, at=f"{self._branch}#{record.current + 1}")
            return answer

        return await run_in_transaction(self._target, work, message="versions", turn=self._name)
