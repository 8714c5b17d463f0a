"""Records that are kept as commits of a branch, so that each costs what changed since the one before.

Beside the branch a small document by id says which commit it is, and one for all which is the newest. Their
order is that of the commits: neither an id's text nor anybody's clock decides which one is later.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from functools import partial
from typing import Any, Final

from keepstate.engine.kernel.arguments import check_text
from keepstate.engine.space.transaction import Transaction
from keepstate.errors import InvalidError, NotFoundError
from keepstate.managers.binding import Folder, Together
from keepstate.managers.records import put_together, record, taken_apart
from keepstate.values import limits

LATEST: Final = "latest"
"""Stands for the record that was saved last."""
_READ_AT_ONCE: Final = 16
_REMOVED_AT_ONCE: Final = 300
_SAVED_AT: Final = "saved_at"
"""The field of a record that the store's time is put into."""


@record("Moment")
class Moment:
    """Where a record is kept.

    Attributes:
        id: What it is found by.
        commit: The id of its commit.
        order: Higher is later.
        form: The name and version of its class.
        saved_at: When it was saved, by the store's clock.
        facts: What holds of it, and can be asked without reading it.
    """

    id: str
    commit: str
    order: int
    form: str
    saved_at: datetime
    facts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Moments:
    """The records of one subject and kind.

    Attributes:
        folder: What belongs to the subject.
        kind: The first segment of their documents, and the name of their branch.
    """

    folder: Folder
    kind: str

    @property
    def branch(self) -> str:
        """The branch that they are commits of."""
        return self.folder.label(self.kind)

    def inside(self, folder: Folder) -> Moments:
        """Return the same in a transaction."""
        return replace(self, folder=folder)

    async def add(
        self, value: object, *, id: str | None = None, facts: Sequence[str] = (), message: str = ""
    ) -> Moment:
        """Keep a record under an id, in place of one that has it; without an id, under its order.

        Args:
            value: The record.
            id: What to find it by.
            facts: What holds of it, and the newest may be asked for by.
            message: What the history says.
        """
        form, parts = taken_apart(value)
        parts.pop(_SAVED_AT, None)
        space = self.folder.space
        newest = await self._newest()
        commit = await space.history.commit(parts, branch=self.branch, message=message)
        name = f"{commit.generation:012d}" if id is None else id
        moment = Moment(name, commit.id, commit.generation, form, await space.now(), tuple(facts))
        await space.documents.put(self.folder.name(self.kind, name), moment)
        replaced = {fact for fact, known in newest.items() if known.id == name and fact not in ("", *facts)}
        newest |= dict.fromkeys(("", *facts), moment)
        await self._note(newest, replaced)
        return moment

    async def _newest(self) -> dict[str, Moment]:
        """Return the newest moment by each fact, and by "" the newest of all."""
        return dict(await self.folder.space.documents.get(self.folder.name(self.kind), {}))

    async def _note(self, newest: dict[str, Moment], outdated: Collection[str]) -> None:
        """Write which are the newest, after a search for those by facts that held of one which is gone."""
        if outdated:
            moments = await self.all()
            for fact in outdated:
                fitting = [moment for moment in moments if not fact or fact in moment.facts]
                newest.pop(fact, None)
                if fitting:
                    newest[fact] = fitting[-1]
        await self.folder.space.documents.put(self.folder.name(self.kind), newest)

    async def find(self, id: str) -> Moment | None:
        """Return where the record of an id is kept, or None."""
        found: Moment | None = await self.folder.space.documents.get(self.folder.name(self.kind, id))
        return found

    async def all(self) -> Sequence[Moment]:
        """Return where all records are kept, in order."""
        found = [moment async for _, moment in self.folder.values(self.kind)]
        return sorted(found, key=lambda moment: moment.order)

    async def newest(self, fact: str = "") -> Moment | None:
        """Return where the latest record is kept, or the latest of which a fact holds; None if none is."""
        return (await self._newest()).get(fact)

    async def read(self, moment: Moment) -> Any:
        """Return the record itself.

        Raises:
            CorruptError: What is stored is no such record.
        """
        checkout = await self.folder.space.history.checkout(moment.commit)
        value = put_together(moment.form, dict(checkout))
        has_time = any(each.name == _SAVED_AT for each in fields(value))
        return replace(value, saved_at=moment.saved_at) if has_time else value

    async def get(self, id: str) -> Any:
        """Return the record of an id, or None."""
        moment = await self.find(id)
        return None if moment is None else await self.read(moment)

    async def demanded(self, id: str, fact: str = "") -> Any:
        """Return the record of an id, or of `latest`; one of which a fact holds, if it is given.

        Raises:
            NotFoundError: There is none.
        """
        moment = await (self.newest(fact) if id == LATEST else self.find(id))
        if moment is None or (fact and fact not in moment.facts):
            wanted = f"{fact} {self.kind}".strip()
            raise NotFoundError(f"{self.folder.id!r} has no {wanted} {id!r}; see what is listed of it")
        return await self.read(moment)

    async def list(self, limit: int | None = None) -> list[Any]:
        """Return the records in order: all, or the last so many; where they are is read of all."""
        if limit is not None:
            limits.admit_count("limit", limit)
        found = await self.all()
        wanted = found if limit is None else found[-limit:]
        return [
            value
            for begin in range(0, len(wanted), _READ_AT_ONCE)
            for value in await self._read_all(wanted[begin : begin + _READ_AT_ONCE])
        ]

    async def _read_all(self, moments: Sequence[Moment]) -> Sequence[Any]:
        """Return records that are read beside one another, where that saves the time of waiting."""
        space = self.folder.space
        if space.runner.mode == "blocking" or isinstance(space, Transaction):
            return [await self.read(moment) for moment in moments]
        found = await space.runner.gather([partial(self.read, moment) for moment in moments])
        for each in found:
            if isinstance(each, BaseException):
                raise each
        return found

    async def remove(self, *ids: str) -> bool:
        """Forget records, and return whether one was there; their commits stay in the history."""
        existed = [await self.folder.space.documents.delete(self.folder.name(self.kind, id)) for id in ids]
        newest = await self._newest()
        outdated = [fact for fact, known in newest.items() if known.id in ids]
        if outdated:
            await self._note(newest, outdated)
        return any(existed)

    async def remove_unchanged(self, known: Sequence[Moment]) -> int:
        """Forget records that still are what they were when they were listed, and return how many."""
        names = {self.folder.name(self.kind, moment.id): moment for moment in known}
        entries = await self.folder.space.documents.entries(*names)
        same = [each.id for name, each in names.items() if name in entries and entries[name].value == each]
        await self.remove(*same)
        return len(same)

    async def old(self, before: datetime) -> tuple[Sequence[Moment], datetime]:
        """Return what was saved before a time and is not the newest, and since when history is needed."""
        newest = {moment.id for moment in (await self._newest()).values()}
        moments = await self.all()
        old = [moment for moment in moments if moment.saved_at <= before and moment.id not in newest]
        gone = {moment.id for moment in old}
        kept = next((moment for moment in moments if moment.id not in gone), None)
        if kept is None:
            return old, before
        # A commit is never before its parents, so that it may be later than what is kept says.
        return old, min(before, (await self.folder.space.history.find(kept.commit)).created_at)


async def forget_old(
    folder: Folder, kinds: Sequence[str], before: datetime, together: Together
) -> tuple[int, datetime]:
    """Forget what was saved before a time, but for the newest.

    Args:
        folder: The subject.
        kinds: Those of the records.
        before: The time.
        together: How work is applied.

    Returns:
        How many records that were, and since when the history is needed.
    """
    removed, since = 0, before
    for kind in kinds:
        old, needed = await Moments(folder, kind).old(before)
        since = min(since, needed)
        for begin in range(0, len(old), _REMOVED_AT_ONCE):
            page = old[begin : begin + _REMOVED_AT_ONCE]

            async def work(inside: Folder, kind: str = kind, page: Sequence[Moment] = page) -> int:
                return await Moments(inside, kind).remove_unchanged(page)

            removed += await together(folder, work, message="clean up what is old")
    return removed, since


def admit_id(what: str, id: object) -> str:
    """Return the id of a record.

    Raises:
        InvalidError: It is no text, empty, or `latest`, which stands for another.
    """
    text = check_text(what, id)
    if not text:
        raise InvalidError(f"`{what}` is empty; give a name")
    if text == LATEST:
        raise InvalidError(f"`{what}` is {LATEST!r}, which stands for the one that was saved last")
    return text
