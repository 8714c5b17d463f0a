"""The search for what belongs to an owner in a tenant, for its erasure and its export.

A walk over all spaces finds the subjects by their own records, so it also finds sessions that have ended or
expired, and the state of a user in a space without a session. Cost: a few reads of each space.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from itertools import pairwise
from typing import Any, Final, NamedTuple, cast

from keepstate.engine.documents.record import split_record
from keepstate.engine.index.carrier import Carrier
from keepstate.engine.index.walk import subjects_of_documents
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.subjects import Subject, owner_of
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.space.expunge import USAGE
from keepstate.errors import CorruptError, UnsupportedError
from keepstate.names import escape, stored_name
from keepstate.values import codec
from keepstate.values.key import pack

USER: Final = "user"
HEADS: Final = {"session": ("session", "user_id"), "memory": ("memories", "owner")}
"""The document that names the owner, and the field in it, by the kind of the subject."""
LIVES: Final = "lives"
"""The document of a session that names the owners of its generations."""
UNOWNED: Final = "data that names this person, but is not a subject of this owner"


class OwnedPart(NamedTuple):
    """A subject of the owner, or the state of the user, in a space.

    Attributes:
        space: The name of the space.
        prefix: The prefix of its names; an empty one stands for all of the space.
        subject: The subject; None for the state of the user.
        lives: If others owned the session too: the generations of this owner.
        is_head: Whether the live generation is among them.
    """

    space: str
    prefix: str
    subject: Subject | None = None
    lives: tuple[int, ...] = ()
    is_head: bool = False


class OwnerSearch:
    """The search for the subjects of one owner.

    Attributes:
        users: The prefix of the names of this user's state in a shared space.
        left: What could not be judged, in words.
    """

    def __init__(self, carrier: Carrier, owner: str) -> None:
        self._carrier, self._owner, self._store = carrier, owner, carrier.store
        self.users = f"{USER}/{escape(owner)}/"
        self.left: list[str] = []

    async def find(self) -> AsyncGenerator[OwnedPart]:
        """Yield what belongs to the owner, in the order of the spaces."""
        async for space in self._carrier.spaces():
            own = owner_of(space)
            if own is not None and (one := await self._owned(space, own, "")) is not None:
                yield one
                if not one.lives:
                    continue
            if space == f"{USER}/{self._owner}":
                yield OwnedPart(space, "")
                continue
            parts = (await self._store.sizes(self._stored(space))).parts
            if any(part in parts or part[:1] in parts for part in (layout.DOCUMENTS, *USAGE)):
                async for subject in subjects_of_documents(self._store, self._stored(space), space):
                    prefix = f"{subject.kind}/{escape(subject.id)}/"
                    if subject != own and (one := await self._owned(space, subject, prefix)) is not None:
                        yield one
                if await self._has_state(space):
                    yield OwnedPart(space, self.users)

    async def _has_state(self, space: str) -> bool:
        """Return whether a shared space has something of the user's state, or its usage."""
        begins = [layout.name_prefix(layout.DOCUMENTS, self.users)]
        begins += [part + pack(self.users)[:-1] for part in USAGE]
        stored = self._stored(space)
        return any([(await self._store.scan(stored, begin, limit=1)).entries for begin in begins])

    async def _owned(self, space: str, subject: Subject, prefix: str) -> OwnedPart | None:
        if subject.kind not in HEADS:
            return None
        head_name, field = HEADS[subject.kind]
        try:
            head, lives = await self._read(space, prefix + head_name, prefix + LIVES)
        except (CorruptError, UnsupportedError):
            self.left.append(f"{subject.kind} {subject.id!r} in {space!r}, whose owner cannot be read")
            return None
        is_head = head.get(field) == self._owner
        owners = _owners(lives) if subject.kind == "session" else {}
        if set(owners.values()) - {None, self._owner} and self._owner in owners.values():
            mine = tuple(life for life, owner in owners.items() if owner == self._owner)
            return OwnedPart(space, prefix, subject, mine, is_head)
        return OwnedPart(space, prefix, subject) if is_head or self._owner in owners.values() else None

    async def _read(self, space: str, *names: str) -> list[Mapping[str, Any]]:
        """Return documents in builtin form; an empty dict for one that is missing or of another form."""
        unit = Unit(self._store, self._stored(space), space)
        keys = [layout.named_key(layout.DOCUMENTS, name) for name in names]
        found: list[Mapping[str, Any]] = []
        for key, entry in zip(keys, await unit.read(*keys), strict=True):
            value: Any = None
            if entry is not None:
                value = codec.to_builtin(split_record(key, await unit.value(entry))[1])
            found.append(cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {})
        return found

    def _stored(self, space: str) -> str:
        return stored_name(self._carrier.tenant, space)


def _owners(lives: Mapping[str, Any]) -> dict[int, str | None]:
    """Return the owner of each generation of a session."""
    owners: dict[int, str | None] = {}
    runs: list[tuple[int, str | None]] = [*lives.get("owners", ()), (lives.get("count", 0) + 1, None)]
    for (first, owner), (end, _) in pairwise(runs):
        owners.update(dict.fromkeys(range(first, end), owner))
    return owners
