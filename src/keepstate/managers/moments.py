"""Records that are kept as commits of a branch, so that each costs what changed since the one before.

Beside the branch a small document says under which id a commit is found. Their order is that of the commits:
neither an id's text nor anybody's clock decides which one is later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from typing import Any, Final

from keepstate.engine.admission import admit_text
from keepstate.errors import InvalidError, NotFoundError
from keepstate.managers.place import Folder
from keepstate.managers.records import put_together, record, taken_apart
from keepstate.values import limits

LATEST: Final = "latest"
"""Stands for the record that was saved last."""
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
        facts: What can be asked without reading it.
    """

    id: str
    commit: str
    order: int
    form: str
    saved_at: datetime
    facts: Mapping[str, Any] = field(default_factory=dict)


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
        """Returns the branch that they are commits of."""
        return self.folder.label(self.kind)

    def inside(self, folder: Folder) -> Moments:
        """Returns the same in a transaction."""
        return replace(self, folder=folder)

    async def add(
        self,
        value: object,
        *,
        id: str | None = None,
        facts: Mapping[str, Any] | None = None,
        message: str = "",
    ) -> Moment:
        """Keeps a record under an id, in place of one that has it; without an id, under its order."""
        form, parts = taken_apart(value)
        parts.pop(_SAVED_AT, None)
        space = self.folder.space
        commit = await space.history.commit(parts, branch=self.branch, message=message)
        name = f"{commit.generation:012d}" if id is None else id
        moment = Moment(name, commit.id, commit.generation, form, await space.now(), dict(facts or {}))
        await space.documents.put(self.folder.name(self.kind, name), moment)
        return moment

    async def find(self, id: str) -> Moment | None:
        """Returns where the record of an id is kept, or None."""
        return await self.folder.space.documents.get(self.folder.name(self.kind, id), type=Moment)

    async def all(self) -> Sequence[Moment]:
        """Returns where all records are kept, in order."""
        found = [moment async for _, moment in self.folder.values(self.kind)]
        return sorted(found, key=lambda moment: moment.order)

    async def newest(self, **facts: Any) -> Moment | None:
        """Returns where the latest record with these facts is kept, or None."""
        fitting = [
            moment
            for moment in await self.all()
            if all(moment.facts.get(name) == fact for name, fact in facts.items())
        ]
        return fitting[-1] if fitting else None

    async def read(self, moment: Moment) -> Any:
        """Returns the record itself.

        Raises:
            CorruptError: What is stored is no such record.
        """
        checkout = await self.folder.space.history.checkout(moment.commit)
        value = put_together(moment.form, dict(checkout))
        has_time = any(each.name == _SAVED_AT for each in fields(value))
        return replace(value, saved_at=moment.saved_at) if has_time else value

    async def get(self, id: str) -> Any:
        """Returns the record of an id, or None."""
        moment = await self.find(id)
        return None if moment is None else await self.read(moment)

    async def demanded(self, id: str, **facts: Any) -> Any:
        """Returns the record of an id; that of `latest` is the latest with these facts.

        Raises:
            NotFoundError: There is none.
        """
        moment = await (self.newest(**facts) if id == LATEST else self.find(id))
        if moment is None or any(moment.facts.get(name) != fact for name, fact in facts.items()):
            wanted = "".join(f" {name}" for name in facts)
            raise NotFoundError(
                f"{self.folder.id!r} has no{wanted} {self.kind} {id!r}; see what is listed of it"
            )
        return await self.read(moment)

    async def list(self, limit: int | None = None) -> list[Any]:
        """Returns the records in order: all, or the last so many."""
        if limit is not None:
            limits.admit_count("limit", limit)
        found = await self.all()
        return [await self.read(moment) for moment in (found if limit is None else found[-limit:])]

    async def remove(self, id: str) -> bool:
        """Forgets the record of an id, and returns whether there was one; its commit stays in the history."""
        return await self.folder.space.documents.delete(self.folder.name(self.kind, id))

    async def remove_old(self, before: datetime) -> int:
        """Forgets what was saved before a time, and returns how many that were."""
        old = [moment for moment in await self.all() if moment.saved_at < before]
        for moment in old:
            await self.remove(moment.id)
        return len(old)


def admit_id(what: str, id: object) -> str:
    """Returns the id of a record.

    Raises:
        InvalidError: It is no text, or `latest`, which stands for another.
    """
    text = admit_text(what, id)
    if text == LATEST:
        raise InvalidError(f"`{what}` is {LATEST!r}, which stands for the one that was saved last")
    return text
