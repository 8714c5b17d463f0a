"""Records that are stored as commits of a branch, so that each costs only its changes since the last one.

Two kinds of small documents go with the branch: one per id, with the commit of its record, and one with the
newest record of each label. Records are ordered by their commits, so neither the text of an id nor the clock
of a process decides which record is later.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from functools import partial
from typing import Any, Final

from keepstate.engine.kernel.arguments import check_text
from keepstate.engine.space.space import Transaction
from keepstate.errors import InvalidError, NotFoundError
from keepstate.managers.binding import ApplyWork, Namespace
from keepstate.managers.records import from_fields, record, to_fields
from keepstate.values import limits

LATEST: Final = "latest"
"""The id that selects the record saved last."""
_READ_AT_ONCE: Final = 16
_REMOVED_AT_ONCE: Final = 300
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
class RecordHistory:
    """The records of one subject and kind.

    Attributes:
        namespace: Namespace of the subject.
        kind: First segment of the names of their documents, and the name of their branch.
    """

    namespace: Namespace
    kind: str

    @property
    def branch(self) -> str:
        """The branch of their commits."""
        return self.namespace.label(self.kind)

    def inside(self, namespace: Namespace) -> RecordHistory:
        """Return the same history inside a transaction."""
        return replace(self, namespace=namespace)

    async def add(
        self, value: object, *, id: str | None = None, facts: Sequence[str] = (), message: str = ""
    ) -> SavedRecord:
        """Save a record under an id, and replace a record that has the id. Without an id, use its order.

        Args:
            value: The record.
            id: The id to save it under.
            facts: Labels by which the newest record can be found.
            message: Message of the commit.
        """
        form, parts = to_fields(value)
        parts.pop(_SAVED_AT, None)
        space = self.namespace.space
        newest = await self._read_newest()
        commit = await space.history.commit(parts, branch=self.branch, message=message)
        name = f"{commit.generation:012d}" if id is None else id
        saved = SavedRecord(name, commit.id, commit.generation, form, await space.now(), tuple(facts))
        await space.documents.put(self.namespace.name(self.kind, name), saved)
        replaced = {fact for fact, known in newest.items() if known.id == name and fact not in ("", *facts)}
        newest |= dict.fromkeys(("", *facts), saved)
        await self._write_newest(newest, replaced)
        return saved

    async def _read_newest(self) -> dict[str, SavedRecord]:
        """Return the newest record by label; the label "" selects the newest of all."""
        return dict(await self.namespace.space.documents.get(self.namespace.name(self.kind), {}))

    async def _write_newest(self, newest: dict[str, SavedRecord], outdated: Collection[str]) -> None:
        """Write the newest records, and search again for those of labels whose newest record is gone."""
        if outdated:
            records = await self.list_all()
            for fact in outdated:
                fitting = [saved for saved in records if not fact or fact in saved.facts]
                newest.pop(fact, None)
                if fitting:
                    newest[fact] = fitting[-1]
        await self.namespace.space.documents.put(self.namespace.name(self.kind), newest)

    async def find(self, id: str) -> SavedRecord | None:
        """Return the location of the record with an id, or None."""
        found: SavedRecord | None = await self.namespace.space.documents.get(
            self.namespace.name(self.kind, id)
        )
        return found

    async def list_all(self) -> Sequence[SavedRecord]:
        """Return the locations of all records, oldest first."""
        found = [saved async for _, saved in self.namespace.values(self.kind)]
        return sorted(found, key=lambda saved: saved.order)

    async def find_newest(self, fact: str = "") -> SavedRecord | None:
        """Return the location of the newest record, or of the newest with a label; None if there is none."""
        return (await self._read_newest()).get(fact)

    async def read(self, saved: SavedRecord) -> Any:
        """Read a record.

        Raises:
            CorruptError: The stored data is not such a record.
        """
        checkout = await self.namespace.space.history.checkout(saved.commit)
        value = from_fields(saved.form, dict(checkout))
        has_time = any(each.name == _SAVED_AT for each in fields(value))
        return replace(value, saved_at=saved.saved_at) if has_time else value

    async def get(self, id: str) -> Any:
        """Return the record with an id, or None."""
        saved = await self.find(id)
        return None if saved is None else await self.read(saved)

    async def require(self, id: str, fact: str = "") -> Any:
        """Return the record with an id, or the newest for `latest`, if it has the label.

        Raises:
            NotFoundError: There is no such record.
        """
        saved = await (self.find_newest(fact) if id == LATEST else self.find(id))
        if saved is None or (fact and fact not in saved.facts):
            wanted = f"{fact} {self.kind}".strip()
            raise NotFoundError(f"{self.namespace.id!r} has no {wanted} {id!r}. List its records.")
        return await self.read(saved)

    async def list(self, limit: int | None = None) -> list[Any]:
        """Return the last `limit` records or all, oldest first. Always reads the locations of all."""
        if limit is not None:
            limits.admit_count("limit", limit)
        found = await self.list_all()
        wanted = found if limit is None else found[-limit:]
        return [
            value
            for begin in range(0, len(wanted), _READ_AT_ONCE)
            for value in await self._read_all(wanted[begin : begin + _READ_AT_ONCE])
        ]

    async def _read_all(self, records: Sequence[SavedRecord]) -> Sequence[Any]:
        """Read records, concurrently in async mode outside a transaction."""
        space = self.namespace.space
        if space.runner.mode == "blocking" or isinstance(space, Transaction):
            return [await self.read(saved) for saved in records]
        found = await space.runner.gather([partial(self.read, saved) for saved in records])
        for each in found:
            if isinstance(each, BaseException):
                raise each
        return found

    async def remove(self, *ids: str) -> bool:
        """Delete records, and return whether one existed. Their commits stay in the history."""
        existed = [
            await self.namespace.space.documents.delete(self.namespace.name(self.kind, id)) for id in ids
        ]
        newest = await self._read_newest()
        outdated = [fact for fact, known in newest.items() if known.id in ids]
        if outdated:
            await self._write_newest(newest, outdated)
        return any(existed)

    async def remove_unchanged(self, known: Sequence[SavedRecord]) -> int:
        """Delete records that are unchanged since they were listed, and return their number."""
        names = {self.namespace.name(self.kind, saved.id): saved for saved in known}
        entries = await self.namespace.space.documents.entries(*names)
        same = [each.id for name, each in names.items() if name in entries and entries[name].value == each]
        await self.remove(*same)
        return len(same)

    async def find_old(self, before: datetime) -> tuple[Sequence[SavedRecord], datetime]:
        """Return the records saved before a time, but not the newest, and the start of the needed history."""
        newest = {saved.id for saved in (await self._read_newest()).values()}
        records = await self.list_all()
        old = [saved for saved in records if saved.saved_at <= before and saved.id not in newest]
        gone = {saved.id for saved in old}
        kept = next((saved for saved in records if saved.id not in gone), None)
        if kept is None:
            return old, before
        # A commit is never earlier than its parents, so its time may be later than `saved_at`.
        return old, min(before, (await self.namespace.space.history.find(kept.commit)).created_at)


async def delete_old_records(
    namespace: Namespace, kinds: Sequence[str], before: datetime, together: ApplyWork
) -> tuple[int, datetime]:
    """Delete the records that were saved before a time, except the newest.

    Args:
        namespace: Namespace of the subject.
        kinds: Kinds of records.
        before: The time.
        together: Applies work as one batch.

    Returns:
        The number of deleted records, and the start of the history that is still needed.
    """
    removed, since = 0, before
    for kind in kinds:
        old, needed = await RecordHistory(namespace, kind).find_old(before)
        since = min(since, needed)
        for begin in range(0, len(old), _REMOVED_AT_ONCE):
            page = old[begin : begin + _REMOVED_AT_ONCE]

            async def work(inside: Namespace, kind: str = kind, page: Sequence[SavedRecord] = page) -> int:
                return await RecordHistory(inside, kind).remove_unchanged(page)

            removed += await together(namespace, work, message="clean up old records")
    return removed, since


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
