"""Records that are stored as commits of a branch, so that each costs only its changes since the last one.

Two kinds of small documents go with the branch: one per id, with the commit of its record, and one with the
newest record of each label. Records are ordered by their commits, so neither the text of an id nor the clock
of a process decides which record is later.
"""

from __future__ import annotations

from collections.abc import Collection as Many
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from functools import partial
from typing import Any, Final, Generic, TypeVar

from keepstate.engine.documents.collection import Collection
from keepstate.engine.kernel.arguments import check_text
from keepstate.engine.space.space import Transaction
from keepstate.errors import InvalidError, NotFoundError
from keepstate.managers.binding import ApplyWork, Namespace, change_pages
from keepstate.managers.records import from_fields, record, to_fields
from keepstate.values import limits

T = TypeVar("T")

LATEST: Final = "latest"
"""The id that selects the record saved last."""
_READ_AT_ONCE: Final = 16
_SAVED_AT: Final = "saved_at"
"""The field of a record that receives the store's time."""


@record("Moment")
class SavedRecord:
    """The location and labels of a record.

    Attributes:
        id: Id of the record.
        commit: Id of its commit.
        order: Position in the history; higher is later.
        form: Name and version of its class.
        saved_at: Time when it was saved, by the store's clock.
        facts: Labels of the record, which can be queried without reading it.
    """

    id: str
    commit: str
    order: int
    form: str
    saved_at: datetime
    facts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RecordHistory(Generic[T]):
    """The records of one subject and kind.

    Attributes:
        namespace: Namespace of the subject.
        kind: First segment of the names of their documents, and the name of their branch.
        apply: Applies work as one batch, outside a transaction.
    """

    namespace: Namespace
    kind: str
    apply: ApplyWork

    @property
    def _locations(self) -> Collection[SavedRecord]:
        return self.namespace.collection(self.kind)

    def inside(self, namespace: Namespace) -> RecordHistory[T]:
        """Return the same history inside a transaction."""
        return replace(self, namespace=namespace)

    # ---- one record

    async def save(
        self, value: T, *, id: str | None = None, facts: Sequence[str] = (), message: str = ""
    ) -> str:
        """Save a record as one batch, and return the id of its commit; see `add`."""

        async def work(inside: Namespace) -> str:
            return await self.inside(inside).add(value, id=id, facts=facts, message=message)

        commit: str = await self.apply(self.namespace, work, message=message)
        return commit

    async def add(
        self, value: T, *, id: str | None = None, facts: Sequence[str] = (), message: str = ""
    ) -> str:
        """Save a record under an id, and replace a record that has the id. Without an id, use its order.

        Args:
            value: The record.
            id: The id to save it under.
            facts: Labels by which the newest record can be found.
            message: Message of the commit.

        Returns:
            The id of the commit.
        """
        form, parts = to_fields(value)
        parts.pop(_SAVED_AT, None)
        space = self.namespace.space
        newest = await self._read_newest()
        commit = await space.history.commit(parts, branch=self.namespace.label(self.kind), message=message)
        name = f"{commit.generation:012d}" if id is None else id
        saved = SavedRecord(name, commit.id, commit.generation, form, await space.now(), tuple(facts))
        await self._locations.put(name, saved)
        replaced = {fact for fact, known in newest.items() if known.id == name and fact not in ("", *facts)}
        newest |= dict.fromkeys(("", *facts), saved)
        await self._write_newest(newest, replaced)
        return commit.id

    async def get(self, id: str) -> T | None:
        """Return the record with an id, or None."""
        return await self._read_found(await self._locations.get(id))

    async def newest(self, fact: str = "") -> T | None:
        """Return the newest record, or the newest with a label; None if there is none."""
        return await self._read_found((await self._read_newest()).get(fact))

    async def require(self, id: str, fact: str = "") -> T:
        """Return the record with an id, or the newest for `latest`, if it has the label.

        Raises:
            NotFoundError: There is no such record.
        """
        saved = (await self._read_newest()).get(fact) if id == LATEST else await self._locations.get(id)
        if saved is None or (fact and fact not in saved.facts):
            wanted = f"{fact} {self.kind}".strip()
            raise NotFoundError(f"{self.namespace.id!r} has no {wanted} {id!r}. List its records.")
        return await self._read(saved)

    async def _read_found(self, saved: SavedRecord | None) -> T | None:
        return None if saved is None else await self._read(saved)

    async def _read(self, saved: SavedRecord) -> T:
        """Read a record.

        Raises:
            CorruptError: The stored data is not such a record.
        """
        checkout = await self.namespace.space.history.checkout(saved.commit)
        value: Any = from_fields(saved.form, dict(checkout))
        has_time = any(each.name == _SAVED_AT for each in fields(value))
        found: T = replace(value, saved_at=saved.saved_at) if has_time else value
        return found

    # ---- all records

    async def list(self, limit: int | None = None) -> list[T]:
        """Return the last `limit` records or all, oldest first. Always reads the locations of all."""
        if limit is not None:
            limits.admit_count("limit", limit)
        found = await self._list_locations()
        wanted = found if limit is None else found[-limit:]
        return [
            value
            for begin in range(0, len(wanted), _READ_AT_ONCE)
            for value in await self._read_all(wanted[begin : begin + _READ_AT_ONCE])
        ]

    async def _read_all(self, records: Sequence[SavedRecord]) -> Sequence[T]:
        """Read records, concurrently in async mode outside a transaction."""
        space = self.namespace.space
        if space.runner.mode == "blocking" or isinstance(space, Transaction):
            return [await self._read(saved) for saved in records]
        return unwrap_all(await space.runner.gather([partial(self._read, saved) for saved in records]))

    async def _list_locations(self) -> Sequence[SavedRecord]:
        """Return the locations of all records, oldest first."""
        return sorted([saved async for saved in self._locations.values()], key=lambda saved: saved.order)

    async def _read_newest(self) -> dict[str, SavedRecord]:
        """Return the newest record by label; the label "" selects the newest of all."""
        return dict(await self.namespace.get(self.kind, default={}))

    async def _write_newest(self, newest: dict[str, SavedRecord], outdated: Many[str]) -> None:
        """Write the newest records, after searching the newest one of each outdated label again."""
        if outdated:
            records = await self._list_locations()
            for fact in outdated:
                fitting = [saved for saved in records if not fact or fact in saved.facts]
                newest.pop(fact, None)
                if fitting:
                    newest[fact] = fitting[-1]
        await self.namespace.put(newest, self.kind)

    # ---- removal

    async def remove(self, id: str, *, message: str = "") -> bool:
        """Delete a record as one batch, and return whether it existed. Its commit stays in the history."""

        async def work(inside: Namespace) -> bool:
            return await self.inside(inside)._delete([id])

        existed: bool = await self.apply(self.namespace, work, message=message)
        return existed

    async def _delete(self, ids: Sequence[str]) -> bool:
        existed = [await self._locations.delete(id) for id in ids]
        newest = await self._read_newest()
        outdated = [fact for fact, known in newest.items() if known.id in ids]
        if outdated:
            await self._write_newest(newest, outdated)
        return any(existed)

    async def clean(self, before: datetime) -> tuple[int, datetime]:
        """Delete the records that were saved before a time, except the newest.

        Returns:
            The number of deleted records, and the start of the history that is still needed.
        """
        newest = {saved.id for saved in (await self._read_newest()).values()}
        records = await self._list_locations()
        old = [saved for saved in records if saved.saved_at <= before and saved.id not in newest]
        gone = {saved.id for saved in old}
        kept = next((saved for saved in records if saved.id not in gone), None)
        if kept is not None:
            # A commit is never earlier than its parents, so its time may be later than `saved_at`.
            before = min(before, (await self.namespace.space.history.find(kept.commit)).created_at)
        removed = await change_pages(
            self.apply, self.namespace, old, self._delete_unchanged, message="clean up old records"
        )
        return removed, before

    async def _delete_unchanged(self, inside: Namespace, known: Sequence[SavedRecord]) -> int:
        """Delete records that are unchanged since they were listed, and return their number."""
        history = self.inside(inside)
        stored = await history._locations.get_each(*(saved.id for saved in known))
        same = [saved.id for saved in known if stored.get(saved.id) == saved]
        await history._delete(same)
        return len(same)


def unwrap_all(answers: Sequence[T | BaseException]) -> list[T]:
    """Return the results of concurrent work, or raise its first error."""
    found: list[T] = []
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
        found.append(answer)
    return found


def check_record_id(what: str, id: object) -> str:
    """Check the id of a record, and return it.

    Raises:
        InvalidError: The id is not text, is empty, or is `latest`, which is reserved.
    """
    text = check_text(what, id)
    if not text:
        raise InvalidError(f"`{what}` is empty. Pass a name.")
    if text == LATEST:
        raise InvalidError(f"`{what}` is {LATEST!r}, which selects the newest record. Use another id.")
    return text
