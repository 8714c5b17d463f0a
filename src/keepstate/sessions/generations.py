"""How long a session lives: until nobody has used it for its time, by the store's clock, and then anew.

One small document, the head, has the time to live; it says which life is the present one, and the names of
all that belongs to a life begin with its number. So a session ends as a whole and at once, however much it
holds; what earlier lives left is read by nobody, and swept.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from keepstate.engine.kernel.glob import escape_pattern
from keepstate.engine.kernel.times import to_milliseconds
from keepstate.engine.queue.lease import Lease
from keepstate.engine.space.joint_work import together
from keepstate.engine.space.space import Space
from keepstate.engine.space.transaction import Transaction
from keepstate.errors import NotOwnerError
from keepstate.sessions.site import Site
from keepstate.values.schema import register

_SHARE: Final = 16
"""A use that comes within this part of the time after the one before renews nothing."""
_AT_ONCE: Final = 400
HEAD: Final = "session"
LIVES: Final = "lives"


class AnyUser(Enum):
    """The type of `ANY_USER`."""

    ANY_USER = "any user"

    def __repr__(self) -> str:
        return "ANY_USER"


ANY_USER: Final = AnyUser.ANY_USER
"""Opens a session whichever user owns it: for the application itself, never for a request of a user."""


@register("keepstate.Session")
@dataclass(frozen=True)
class HeadRecord:
    """The head of a session that lives."""

    life: int
    used_ms: int
    ttl_s: float | None
    user_id: str | None


@register("keepstate.SessionLives")
@dataclass(frozen=True)
class LivesRecord:
    """How many lives a session has had, and which is the first of which documents may be left."""

    count: int = 0
    first_kept: int = 1


def life_prefix(prefix: str, life: int) -> str:
    """Return what the names of one life's documents begin with."""
    return f"{prefix}life/{life}/"


class SessionGenerations(Site):
    """The place of a session's documents, as long as it lives.

    Args:
        place: The space, or a transaction whose batch all joins.
        prefix: What the names of the session begin with.
        what: What it is called in refusals.
        user_id: The user who opens it. Refuses a session that another user owns, also if this is None;
            `ANY_USER` opens all.
        ttl_s: For how long it lives from each use on, if nobody has written it with more; None for ever.
        lease: Applies what is written only while this is held.
    """

    def __init__(
        self,
        place: Space | Transaction,
        prefix: str,
        *,
        what: str,
        user_id: str | AnyUser | None,
        ttl_s: float | None,
        lease: Lease | None = None,
    ) -> None:
        super().__init__(place, prefix, lease=lease)
        self._what, self._user_id, self.ttl_s = what, user_id, ttl_s

    def on(self, place: Space | Transaction, lease: Lease | None = None) -> SessionGenerations:
        """Return the same in a transaction, or while a lease is held."""
        return SessionGenerations(
            place, self.prefix, what=self._what, user_id=self._user_id, ttl_s=self.ttl_s, lease=lease
        )

    async def to_read(self) -> str | None:
        """Return what names begin with in the present life; None if there is none."""

        async def work(tx: Transaction) -> str | None:
            head = await self._head(tx)
            if head is None:
                return None
            await self._use(tx, head, head)
            return life_prefix(self.prefix, head.life)

        return await together(self.place, work, message=f"use {self._what}")

    async def to_write(self, tx: Transaction) -> str:
        """Return what names begin with in the present life, which begins if there is none."""
        head = await self._head(tx)
        user_id = None if self._user_id is ANY_USER else self._user_id
        if head is None:
            lives = await self._lives(tx)
            head = HeadRecord(lives.count + 1, 0, self.ttl_s, user_id)
            await tx.documents.put(self.prefix + LIVES, replace(lives, count=head.life))
        written = replace(head, ttl_s=_longer(head.ttl_s, self.ttl_s), user_id=head.user_id or user_id)
        await self._use(tx, head, written)
        return life_prefix(self.prefix, head.life)

    async def is_over(self, owner: str | None = None) -> bool:
        """Return whether no life is present, or none of this owner; asking does not count as use."""
        head = await self._head(self.place)
        return head is None or owner not in (None, head.user_id)

    async def admit_user(self) -> None:
        """Raise `NotOwnerError` if another user owns the session; asking does not count as use."""
        await self._head(self.place)

    async def admit_user_of(self, life: int, owner: str | None) -> None:
        """Raise `NotOwnerError` if a life is another user's, given its owner at one moment.

        The present life may have got its owner after that moment.
        """
        head = await self.place.documents.get(self.prefix + HEAD, type=HeadRecord)
        self.refuse_other(head.user_id if head is not None and head.life == life else owner)

    async def end(self) -> bool:
        """End the present life, and return whether there was one."""

        async def work(tx: Transaction) -> bool:
            await self._head(tx)
            return await tx.documents.delete(self.prefix + HEAD)

        return await together(self.place, work, lease=self._lease, message=f"end {self._what}")

    async def sweep(self) -> int:
        """Remove what earlier lives left, and return how many documents that were."""
        removed = 0
        lives = await self._lives(self.place)
        head = await self._head(self.place)
        past = range(lives.first_kept, head.life if head else lives.count + 1)
        for life in past:
            while names := await self._some_names(life):
                removed += await together(self.place, removing(names), message=f"sweep {self._what}")

        async def note(tx: Transaction) -> None:
            now = await self._lives(tx)
            if now.first_kept < past.stop:
                await tx.documents.put(self.prefix + LIVES, replace(now, first_kept=past.stop))

        if past:
            await together(self.place, note, message=f"sweep {self._what}")
        return removed

    async def _some_names(self, life: int) -> list[str]:
        names: list[str] = []
        async for name in self.place.documents.keys(escape_pattern(life_prefix(self.prefix, life)) + "*"):
            names.append(name)
            if len(names) == _AT_ONCE:
                break
        return names

    def refuse_other(self, owner: str | None) -> None:
        """Raise `NotOwnerError` if the session has an owner who is not the user that opens it.

        The message does not name the owner.
        """
        if owner is None or self._user_id is ANY_USER or self._user_id == owner:
            return
        if self._user_id is None:
            why = "has an owner, and no user was given; pass its user_id, or user_id=ANY_USER to open any"
        else:
            why = f"is another user's, not that of {self._user_id!r}; take another session id"
        raise NotOwnerError(f"{self._what} {why}", user_id=self._user_id)

    # ---- its documents

    async def _lives(self, place: Space | Transaction) -> LivesRecord:
        return await place.documents.get(self.prefix + LIVES, LivesRecord(), type=LivesRecord)

    async def _head(self, place: Space | Transaction) -> HeadRecord | None:
        head = await place.documents.get(self.prefix + HEAD, type=HeadRecord)
        if head is not None:
            self.refuse_other(head.user_id)
        return head

    async def _use(self, tx: Transaction, head: HeadRecord, used: HeadRecord) -> None:
        """Let the head live on from now, unless nothing else changes and it was just renewed."""
        now_ms = to_milliseconds(await tx.now())
        is_fresh = used.ttl_s is None or now_ms - head.used_ms < used.ttl_s * 1000 / _SHARE
        if used == head and head.used_ms > 0 and is_fresh:
            return
        await tx.documents.put(self.prefix + HEAD, replace(used, used_ms=now_ms), ttl_s=used.ttl_s)


def _longer(one_s: float | None, other_s: float | None) -> float | None:
    return None if one_s is None or other_s is None else max(one_s, other_s)


def removing(names: list[str]) -> Callable[[Transaction], Awaitable[int]]:
    """Return work that deletes documents, and return how many there were."""

    async def work(tx: Transaction) -> int:
        return sum([await tx.documents.delete(name) for name in names])

    return work
