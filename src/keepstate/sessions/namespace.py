"""Namespaces: the document name prefix of a part, in a space or transaction; and generations of sessions.

The prefix of a session depends on its current generation, which only the store knows. Other prefixes never
change. Parts ask their namespace for the prefix, so the same code serves both.

Each generation of a session ends as a whole when its TTL expires, and the next begins empty. A small
document, the head, has the TTL and the number of the current generation. The names of all documents of a
generation begin with its number, so a session of any size ends at once and as a whole. Documents of earlier
generations are never read, and `sweep` deletes them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final, NoReturn, TypeVar

from keepstate._runner import Runner, process_name
from keepstate.engine.documents.record import read_record
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.executor import Executor
from keepstate.engine.kernel.glob import escape_pattern
from keepstate.engine.kernel.stored import to_milliseconds
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.queue.lease import Lease
from keepstate.engine.space.joint_work import run_in_transaction
from keepstate.engine.space.space import Space, Transaction
from keepstate.engine.usage.ledger import UsageLedger
from keepstate.errors import InvalidError, NotOwnerError
from keepstate.sessions.past_documents import PastDocuments
from keepstate.values.schema import register

T = TypeVar("T")


class Namespace:
    """A namespace with a fixed prefix.

    Args:
        target: The space, or a transaction whose batch all writes join.
        prefix: The prefix of document names.
        lease: Writes apply only while this lease is held.

    Attributes:
        target: The space, or a transaction whose batch all writes join.
        prefix: The fixed prefix of document names.
    """

    def __init__(self, target: Space | Transaction, prefix: str = "", *, lease: Lease | None = None) -> None:
        self.target, self.prefix, self._lease = target, prefix, lease

    @property
    def runner(self) -> Runner:
        """The runner of the mode."""
        return self.target.runner

    @property
    def space(self) -> Space | None:
        """The space; None inside a transaction."""
        return self.target if isinstance(self.target, Space) else None

    @property
    def ledger(self) -> UsageLedger:
        """The ledger of usage: that of the own space, or an account of a shared one."""
        return self.target.usage.account(self.prefix)

    async def to_read(self) -> str | None:
        """Return the current prefix, or None if there are no documents."""
        return self.prefix

    async def prefix_in(self, past: PastDocuments) -> str | None:
        """Return the prefix at an earlier moment, or None if there were no documents."""
        return self.prefix

    def expected(self) -> tuple[str, str] | None:
        """Return the prefix seen last, and the document that must be read with it; None if none was seen."""
        return None

    def confirms(self, head: object, prefix: str) -> bool:
        """Return whether the document that was read confirms the expected prefix."""
        return False

    async def to_write(self, tx: Transaction) -> str:
        """Return the current prefix for the writes of a transaction."""
        return self.prefix

    async def together(
        self,
        work: Callable[[Transaction, str], Awaitable[T]],
        *,
        message: str = "",
        lease: Lease | None = None,
    ) -> T:
        """Apply work as one batch and return its result; see `engine.space.joint_work.run_in_transaction`.

        Calls of one process in the same namespace run one after another.

        Args:
            work: Called with the transaction and the current prefix.
            message: Description of the change.
            lease: Applies the batch only while this lease is held, instead of the namespace's own.
        """

        async def on(tx: Transaction) -> T:
            return await work(tx, await self.to_write(tx))

        return await run_in_transaction(
            self.target,
            on,
            lease=lease or self._lease,
            message=message,
            turn=f"namespace/{self.prefix}",
            supposes=True,
        )


class OutOfTransaction(Namespace):
    """Placeholder for data outside the current transaction. Every access raises `InvalidError`.

    Args:
        target: The space or transaction in use.
        why: The error message: names both spaces, and says what to do.
    """

    def __init__(self, target: Space | Transaction, why: str) -> None:
        super().__init__(target)
        self._why = why

    def _reject(self) -> NoReturn:
        raise InvalidError(self._why)

    @property
    def ledger(self) -> UsageLedger:
        """Raise `InvalidError`."""
        self._reject()

    async def to_read(self) -> str | None:
        """Raise `InvalidError`."""
        self._reject()

    async def to_write(self, tx: Transaction) -> str:
        """Raise `InvalidError`."""
        self._reject()

    async def prefix_in(self, past: PastDocuments) -> str | None:
        """Raise `InvalidError`."""
        self._reject()


_SHARE: Final = 16
"""A use within this fraction (1/n) of the TTL after the last renewal does not renew the TTL."""
_AT_ONCE: Final = 400
HEAD: Final = "session"
GENERATIONS: Final = "lives"


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
    """The head of a live session; `life` is its generation, from 1."""

    life: int
    used_ms: int
    ttl_s: float | None
    user_id: str | None


@dataclass(frozen=True)
class GenerationsRecord:
    """The generations of a session. Stored as a plain dict, which the erasure of an owner changes.

    Attributes:
        count: The number of generations so far.
        first_kept: The first generation that may still have documents.
        owners: Pairs of a generation and the owner from this one on, up to the next pair. They outlive the
            heads, so that ended and expired generations of an owner can be erased.
        later: Fields added by a later version of keepstate. They are written back unchanged.
    """

    count: int = 0
    first_kept: int = 1
    owners: list[tuple[int, str | None]] = field(default_factory=list[tuple[int, str | None]])
    later: dict[str, Any] = field(default_factory=dict[str, Any])

    def owned(self, life: int, owner: str | None) -> GenerationsRecord:
        """Return the record with `life` as the last generation, and its owner."""
        owners = [run for run in self.owners if run[0] < life]
        if owner != (owners[-1][1] if owners else None):
            owners.append((life, owner))
        return replace(self, count=life, owners=owners)

    def owner_of(self, life: int) -> str | None:
        """Return the owner of a generation, or of its end; None if it had none, or has not begun."""
        if life > self.count:
            return None
        return next((owner for first, owner in reversed(self.owners) if first <= life), None)


def generation_prefix(prefix: str, life: int) -> str:
    """Return the name prefix of one generation's documents."""
    return f"{prefix}life/{life}/"


def life_in(name: str) -> tuple[int, str]:
    """Return the generation in the name of a document after the session's prefix, and the rest of the name.

    The generation is 0 for a document of none.
    """
    begin, _, rest = name.partition("/")
    number, _, rest = rest.partition("/")
    is_number = begin == "life" and number.isascii() and number.isdecimal()
    return (int(number), rest) if is_number else (0, name)


@dataclass(frozen=True)
class _OwnerGuard:
    """Refuses the ledger of a session to callers who may not open the session."""

    session: SessionGenerations

    @property
    def key(self) -> bytes:
        return layout.named_key(layout.DOCUMENTS, self.session.prefix + HEAD)

    async def check(self, executor: Executor, unit: Unit) -> None:
        entry = await unit.get(self.key)
        if entry is not None:
            head: HeadRecord = (await read_record(executor, unit, entry, HeadRecord)).value
            self.session.require_owner(head.user_id)


class SessionGenerations(Namespace):
    """The namespace of a session's current generation.

    Args:
        target: The space, or a transaction whose batch all writes join.
        prefix: The name prefix of the session.
        what: Name of the session in error messages.
        user_id: The user who opens the session. A session that another user owns is rejected, also if this is
            None; `ANY_USER` opens every session.
        ttl_s: Seconds from each use until the session ends, unless it was written with a longer TTL; None
            means never.
        lease: Writes apply only while this lease is held.
    """

    def __init__(
        self,
        target: Space | Transaction,
        prefix: str,
        *,
        what: str,
        user_id: str | AnyUser | None,
        ttl_s: float | None,
        lease: Lease | None = None,
    ) -> None:
        super().__init__(target, prefix, lease=lease)
        self._what, self._user_id, self.ttl_s = what, user_id, ttl_s
        self._seen = 0

    def on(self, target: Space | Transaction, lease: Lease | None = None) -> SessionGenerations:
        """Return the same namespace in a transaction, or fenced by a lease."""
        return SessionGenerations(
            target, self.prefix, what=self._what, user_id=self._user_id, ttl_s=self.ttl_s, lease=lease
        )

    async def to_read(self) -> str | None:
        """Return the prefix of the current generation, or None if there is none."""

        async def work(tx: Transaction) -> str | None:
            head = await self._read_head(tx)
            if head is None:
                return None
            await self._record_use(tx, head, head)
            self._seen = head.life
            return generation_prefix(self.prefix, head.life)

        return await run_in_transaction(self.target, work, message=f"use {self._what}")

    async def to_write(self, tx: Transaction) -> str:
        """Return the prefix of the current generation; begins the next generation if there is none."""
        head = await self._read_head(tx)
        user_id = None if self._user_id is ANY_USER else self._user_id
        if head is None:
            generations = await self._read_generations(tx)
            head = HeadRecord(generations.count + 1, 0, self.ttl_s, user_id)
            await self._put_generations(tx, generations.owned(head.life, user_id))
        elif head.user_id is None and user_id is not None:
            generations = await self._read_generations(tx)
            await self._put_generations(tx, generations.owned(head.life, user_id))
        written = replace(head, ttl_s=_longer(head.ttl_s, self.ttl_s), user_id=head.user_id or user_id)
        await self._record_use(tx, head, written)
        self._seen = head.life
        return generation_prefix(self.prefix, head.life)

    async def prefix_in(self, past: PastDocuments) -> str | None:
        """Return the prefix of the generation of an earlier moment, or None if there was none.

        Raises:
            NotOwnerError: Another user owned the session at that moment.
        """
        head: HeadRecord | None = await past.get(self.prefix + HEAD)
        if head is None:
            return None
        await self.check_user_of(head.life, head.user_id)
        return generation_prefix(self.prefix, head.life)

    def expected(self) -> tuple[str, str] | None:
        """Return the prefix of the generation seen last, and the name of the head that must confirm it."""
        return (generation_prefix(self.prefix, self._seen), self.prefix + HEAD) if self._seen else None

    def confirms(self, head: object, prefix: str) -> bool:
        """Return whether the head is that of the expected generation, and its use need not be recorded.

        Raises:
            NotOwnerError: Another user owns the session.
        """
        if not isinstance(head, HeadRecord):
            return False
        self.require_owner(head.user_id)
        return head.ttl_s is None and head.used_ms > 0 and generation_prefix(self.prefix, head.life) == prefix

    @property
    def ledger(self) -> UsageLedger:
        """The ledger of usage, for callers who may open the session."""
        return super().ledger.guarded(_OwnerGuard(self))

    async def is_over(self, owner: str | None = None) -> bool:
        """Return whether there is no current generation, or none of this owner. Does not count as use."""
        head = await self._read_head(self.target)
        return head is None or owner not in (None, head.user_id)

    async def check_user(self) -> None:
        """Raise `NotOwnerError` if another user owns the session. Does not count as use."""
        await self._read_head(self.target)

    async def check_user_of(self, life: int, owner: str | None) -> None:
        """Raise `NotOwnerError` if a generation belongs to another user, given its owner at an earlier time.

        It may have got its owner later, also if it has ended since.
        """
        self.require_owner(owner)
        self.require_owner((await self.read_generations()).owner_of(life))

    async def read_generations(self) -> GenerationsRecord:
        """Return the generations so far, with their owners. Does not count as use."""
        return await self._read_generations(self.target)

    async def count_ended(self) -> int:
        """Return the number of generations that have ended. Does not count as use."""
        head = await self._read_head(self.target)
        return head.life - 1 if head else (await self.read_generations()).count

    async def end(self) -> bool:
        """End the current generation, and return whether there was one."""

        async def work(tx: Transaction) -> bool:
            await self._read_head(tx)
            return await tx.documents.delete(self.prefix + HEAD)

        return await run_in_transaction(self.target, work, lease=self._lease, message=f"end {self._what}")

    async def sweep(self) -> int:
        """Delete the documents of earlier generations, and return their number."""
        removed = 0
        generations = await self.read_generations()
        head = await self._read_head(self.target)
        past = range(generations.first_kept, head.life if head else generations.count + 1)
        for life in past:
            while names := await self._some_names(life):
                removed += await run_in_transaction(
                    self.target, make_deletion(names), message=f"sweep {self._what}"
                )

        if past and (space := self.space) is not None:
            begins = tuple(generation_prefix(self.prefix, life) for life in past)
            for stream in [name async for name in space.events.streams() if name.startswith(begins)]:
                await space.events.drop(stream)  # of a reply whose writer was killed

        async def record_sweep(tx: Transaction) -> None:
            now = await self._read_generations(tx)
            if now.first_kept < past.stop:
                await self._put_generations(tx, replace(now, first_kept=past.stop))

        if past:
            await run_in_transaction(self.target, record_sweep, message=f"sweep {self._what}")
        return removed

    async def _some_names(self, life: int) -> list[str]:
        names: list[str] = []
        prefix = generation_prefix(self.prefix, life)
        async for name in self.target.documents.keys(f"{escape_pattern(prefix)}*"):
            names.append(name)
            if len(names) == _AT_ONCE:
                break
        return names

    def require_owner(self, owner: str | None) -> None:
        """Raise `NotOwnerError` if the session has an owner other than the user who opens it.

        The message does not name the owner.
        """
        if owner is None or self._user_id is ANY_USER or self._user_id == owner:
            return
        if self._user_id is None:
            why = "has an owner, and no user_id was passed. Pass the owner's user_id, or user_id=ANY_USER."
        else:
            why = f"belongs to another user, not to {self._user_id!r}. Choose another session id."
        raise NotOwnerError(f"{self._what[:1].upper()}{self._what[1:]} {why}", user_id=self._user_id)

    # ---- its documents

    async def _read_generations(self, target: Space | Transaction) -> GenerationsRecord:
        fields: dict[str, Any] | None = await target.documents.get(self.prefix + GENERATIONS)
        if fields is None:
            return GenerationsRecord()
        later = dict(fields)
        count, first_kept, runs = (later.pop(name) for name in ("count", "first_kept", "owners"))
        return GenerationsRecord(count, first_kept, [(life, owner) for life, owner in runs], later)

    async def _put_generations(self, tx: Transaction, record: GenerationsRecord) -> None:
        owners = [list(run) for run in record.owners]
        fields = {"count": record.count, "first_kept": record.first_kept, "owners": owners}
        await tx.documents.put(self.prefix + GENERATIONS, record.later | fields)

    async def _read_head(self, target: Space | Transaction) -> HeadRecord | None:
        head = await target.documents.get(self.prefix + HEAD, type=HeadRecord)
        if head is not None:
            self.require_owner(head.user_id)
        return head

    async def _record_use(self, tx: Transaction, head: HeadRecord, used: HeadRecord) -> None:
        """Renew the session's TTL; skipped if nothing changed and it was renewed recently."""
        now_ms = to_milliseconds(await tx.now())
        is_fresh = used.ttl_s is None or now_ms - head.used_ms < used.ttl_s * 1000 / _SHARE
        if used == head and head.used_ms > 0 and is_fresh:
            return
        await tx.documents.put(self.prefix + HEAD, replace(used, used_ms=now_ms), ttl_s=used.ttl_s)


def _longer(one_s: float | None, other_s: float | None) -> float | None:
    return None if one_s is None or other_s is None else max(one_s, other_s)


def make_deletion(names: list[str]) -> Callable[[Transaction], Awaitable[int]]:
    """Return work that deletes documents and returns the number deleted."""

    async def work(tx: Transaction) -> int:
        return sum([await tx.documents.delete(name) for name in names])

    return work


@asynccontextmanager
async def hold_lease(space: Space, name: str, *, lease_s: float, turn_s: float) -> AsyncGenerator[Lease]:
    """Yield a lease, and renew it until the block ends.

    The holder is the author of the space, or else this process.

    Args:
        space: The space of the lease.
        name: The name of the lease.
        lease_s: Seconds until the lease expires without renewal. It is renewed three times in that time.
        turn_s: Maximum seconds to wait for the current holder.

    Raises:
        ConflictError: Another holder had the lease for all of `turn_s`.
    """
    own = space if space.author is not None else space.by(process_name())
    lease = await own.leases.acquire(name, lease_s, wait_s=turn_s)
    async with lease.kept_alive():
        yield lease
