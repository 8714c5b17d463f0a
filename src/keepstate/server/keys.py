"""API keys: stored as hashes in a space of the administrator, and watched by every server.

A key is 256 random bits. The store has its SHA-256, so reading the store shows no key, and looking up a hash
in a table leaks nothing about the keys in it. Adding and revoking write an event of the audit stream in the
same batch. A server follows the space: a revoked key stops working, and its streams end, within a second.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Final, Literal, TypeAlias, cast, get_args

from keepstate._clock import Clock
from keepstate.engine.documents.documents import DocumentEntry
from keepstate.engine.kernel.arguments import check_space_name, check_tenant, require_instance
from keepstate.engine.kernel.positions import Page
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space, Transaction
from keepstate.errors import AlreadyExistsError, CorruptError, InvalidError, KeepstateError, NotFoundError
from keepstate.names import RESERVED, escape
from keepstate.server.limits import Bucket

Right: TypeAlias = Literal["read", "write", "work", "answer", "store", "admin"]
RIGHTS: Final[tuple[Right, ...]] = get_args(Right)
IMPLIED: Final[dict[Right, frozenset[Right]]] = {"admin": frozenset({"read", "write"})}
"""The rights that a right includes. No other right includes any."""
KEYS_SPACE: Final = f"{RESERVED}keys"
"""The name of the space with the keys and the audit stream; without a tenant."""
AUDIT: Final = "audit"
_PREFIX: Final = "ks_"
_KEY: Final = "key/"
_DIGITS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_SECRET_BYTES, _SECRET_DIGITS = 32, 43
_NAME_BYTES: Final = 80
_RETRY_S: Final = 0.5
_log = logging.getLogger("keepstate.server")


@dataclass(frozen=True, slots=True)
class Key:
    """A caller of the server, and its rights.

    Attributes:
        name: The author of its writes: 1 to 80 bytes of printable text without a slash.
        rights: `read`, `write`, `work` (claim tasks and end them), `answer` (answer approvals), `store` (the
            raw store protocol) and `admin`. Only `admin` includes others: `read` and `write`.
        tenant: The tenant whose spaces it reaches; None for the spaces without a tenant.
        under: The space that it reaches, with all spaces that continue this name after a `/`; empty for all.
        expires_at: The time from which it is not valid, aware; None for never.
        rate: Requests a second; None for the limit of the server.
    """

    name: str
    rights: frozenset[Right]
    tenant: str | None = None
    under: str = ""
    expires_at: datetime | None = None
    rate: float | None = None

    def __post_init__(self) -> None:
        name, rights = self.name, self.rights
        if type(name) is not str or not name.isprintable() or not 0 < len(name.encode()) <= _NAME_BYTES:
            raise InvalidError(f"`name` is {name!r}; give 1 to {_NAME_BYTES} bytes of printable text")
        if "/" in name:
            raise InvalidError(f"`name` is {name!r}; a slash separates the key from who it acts for")
        given = cast("object", rights)
        names = set(cast("Collection[str]", given)) if isinstance(given, Collection) else set[str]()
        if isinstance(given, str) or not names or not names <= set(RIGHTS):
            raise InvalidError(f"`rights` is {given!r}; give a set with some of {', '.join(RIGHTS)}")
        object.__setattr__(self, "rights", frozenset(rights))
        check_tenant("tenant", self.tenant)
        if self.under:
            check_space_name("under", self.under, self.tenant)
        if self.expires_at is not None:
            require_instance("expires_at", self.expires_at, datetime)
            if self.expires_at.tzinfo is None:
                raise InvalidError(f"`expires_at` is {self.expires_at!r}; give a time with its zone")
        if self.rate is not None and not (type(self.rate) in (int, float) and 0 < self.rate < 1e6):
            raise InvalidError(f"`rate` is {self.rate!r}; give requests a second")
        if "store" in rights and self.under:
            raise InvalidError("a key with the right `store` reaches its whole tenant; give no `under`")

    def allows(self, right: Right) -> bool:
        """Return whether the key has a right, or one that includes it."""
        return right in self.rights or any(right in IMPLIED.get(own, ()) for own in self.rights)

    def reaches(self, space: str) -> bool:
        """Return whether the key reaches a space of its tenant."""
        under = self.under
        return not under or space == under or space.startswith(under if under.endswith("/") else under + "/")


@dataclass(eq=False, slots=True)
class Grant:
    """A key that a request has shown.

    Attributes:
        key: The key.
        ended: Set when the key is revoked or changed.
        streams: The number of its open streams in this process.
        bucket: The rate of its requests; None before the first one of a key with a rate.
        spaces: The last spaces that it has used, by the server's handle, the author and the name.
    """

    key: Key
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    streams: int = 0
    bucket: Bucket | None = None
    spaces: dict[tuple[int, str, str], Space] = field(default_factory=dict[tuple[int, str, str], Space])

    def left_s(self, clock: Clock) -> float | None:
        """Return the seconds until the key expires; None if it never does, 0 or less if it has."""
        if self.key.expires_at is None:
            return None
        return self.key.expires_at.timestamp() - clock.now_ms() / 1000


class Keys:
    """The keys of the servers of one store.

    Args:
        ks: A handle without a tenant.

    Raises:
        InvalidError: The handle belongs to a tenant.
    """

    def __init__(self, ks: Keepstate) -> None:
        require_instance("ks", ks, Keepstate)
        if ks.tenant_id is not None:
            raise InvalidError(f"{ks!r} belongs to a tenant; keys need a handle without a tenant")
        self._ks = ks
        self._space = Space(ks, KEYS_SPACE, author=ks.author)
        self._grants: dict[bytes, Grant] = {}
        self._digests: dict[str, bytes] = {}
        self.is_current = False
        """True while the keys in memory follow those of the store."""

    def __repr__(self) -> str:
        return f"<Keys of {self._ks!r}>"

    @property
    def clock(self) -> Clock:
        """The clock that decides when a key expires."""
        return self._ks.clock

    # ---- keeping

    async def add(self, key: Key) -> str:
        """Store a key, and return its secret, which is not stored and cannot be shown again.

        Raises:
            AlreadyExistsError: A key has this name.
        """
        require_instance("key", key, Key)
        secret = make_secret(self.clock)

        async def work(tx: Transaction) -> None:
            if await tx.documents.entry(_place(key.name)) is not None:
                raise AlreadyExistsError(
                    f"a key has the name {key.name!r}; revoke it first, or give another name"
                )
            await tx.documents.put(_place(key.name), _stored(key, digest_of(secret)))
            await self._note(tx, "key_added", key=key.name, rights=sorted(key.rights), tenant=key.tenant)

        await self._space.transact(work)
        return secret

    async def revoke(self, name: str) -> None:
        """Delete a key. Requests with it are refused, and its streams end, within a second.

        Raises:
            NotFoundError: No key has this name.
        """

        async def work(tx: Transaction) -> None:
            if not await tx.documents.delete(_place(name)):
                raise NotFoundError(f"no key has the name {name!r}; `keepstate keys list` lists them")
            await self._note(tx, "key_revoked", key=name)

        await self._space.transact(work)

    async def audited(self, *, after: str | None = None, limit: int = 100) -> list[dict[str, Any]]:
        """Return events of the audit stream in order: what happened, when, and the position of each."""
        events = await self._space.events.read(stream=AUDIT, after=after, limit=limit)
        return [{**event.data, "at": event.recorded_at, "position": event.position} for event in events]

    async def list(self, *, after: str | None = None, limit: int = 100) -> Page[Key]:
        """Return one page of the keys by name, expired ones too."""
        page = await self._space.documents.page(prefix=_KEY, after=after, limit=limit)
        return Page([_read(entry)[0] for entry in page], next=page.next, previous=page.previous)

    async def has_valid(self) -> bool:
        """Return whether a key is stored that has not expired."""
        after: str | None = None
        while True:
            page = await self.list(after=after)
            for key in page:
                left_s = Grant(key).left_s(self.clock)
                if left_s is None or left_s > 0:
                    return True
            if (after := page.next) is None:
                return False

    async def audit(self, what: str, **facts: Any) -> None:
        """Append an event to the audit stream."""
        async with self._space.transaction() as tx:
            await self._note(tx, what, **facts)

    async def _note(self, tx: Transaction, what: str, **facts: Any) -> None:
        await tx.events.append({"what": what, **facts}, stream=AUDIT)

    # ---- looking up

    def find(self, secret: str) -> Grant | None:
        """Return the grant of a secret; None if it is not one, was revoked, or has expired."""
        grant = self._grants.get(digest_of(secret))
        if grant is None:
            return None
        left_s = grant.left_s(self.clock)
        return grant if left_s is None or left_s > 0 else None

    @asynccontextmanager
    async def watched(self) -> AsyncGenerator[None]:
        """Follow the stored keys while the block runs. Before it begins, all of them are read."""
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        following = asyncio.create_task(self._follow(ready))
        try:
            await ready
            yield
        finally:
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following
            self._replace({})
            self.is_current = False

    async def _follow(self, ready: asyncio.Future[None]) -> None:
        while True:
            try:
                async with self._space.documents.watch(_KEY + "*") as watch:
                    self._replace(await self._all())
                    self.is_current = True
                    if not ready.done():
                        ready.set_result(None)
                    async for change in watch:
                        self._take(change.key, change.new)
            except KeepstateError as error:
                if not ready.done():
                    ready.set_exception(error)
                    return
                self.is_current = False
                _log.warning("keys are not followed, and read again: %s", error)
                await asyncio.sleep(_RETRY_S)

    async def _all(self) -> dict[str, tuple[Key, bytes]]:
        found: dict[str, tuple[Key, bytes]] = {}
        after: str | None = None
        while True:
            page = await self._space.documents.page(prefix=_KEY, after=after, limit=1_000)
            found.update((entry.key, _read(entry)) for entry in page)
            if (after := page.next) is None:
                return found

    def _replace(self, found: dict[str, tuple[Key, bytes]]) -> None:
        for place in self._digests.keys() - found.keys():
            self._end(place)
        for place, (key, digest) in found.items():
            self._keep(place, key, digest)

    def _take(self, place: str, stored: object) -> None:
        if stored is None:
            self._end(place)
        else:
            self._keep(place, *_parse(place, stored))

    def _keep(self, place: str, key: Key, digest: bytes) -> None:
        known = self._grants.get(digest)
        if known is not None and known.key == key:
            return
        self._end(place)
        self._digests[place], self._grants[digest] = digest, Grant(key)

    def _end(self, place: str) -> None:
        if (digest := self._digests.pop(place, None)) is not None:
            self._grants.pop(digest).ended.set()


def make_secret(clock: Clock) -> str:
    """Return a new secret: a prefix that scanners of leaked secrets can look for, and 256 random bits."""
    number = int.from_bytes(clock.random_bytes(_SECRET_BYTES))
    digits: list[str] = []
    for _ in range(_SECRET_DIGITS):
        number, digit = divmod(number, len(_DIGITS))
        digits.append(_DIGITS[digit])
    return _PREFIX + "".join(digits)


def digest_of(secret: str) -> bytes:
    """Return the hash by which a secret is stored. Secrets are random, so it needs no salt."""
    return sha256(secret.encode("utf-8", "surrogatepass")).digest()


def rights_of(names: Collection[str]) -> frozenset[Right]:
    """Return rights that were given as texts.

    Raises:
        InvalidError: One of them is not a right.
    """
    wrong = sorted(set(names) - set(RIGHTS))
    if wrong:
        raise InvalidError(f"{', '.join(wrong)} is not a right; give some of {', '.join(RIGHTS)}")
    return frozenset(right for right in RIGHTS if right in names)


def _place(name: str) -> str:
    if type(name) is not str or not name:
        raise InvalidError(f"`name` is {name!r}; give the name of a key")
    return _KEY + escape(name)


def _stored(key: Key, digest: bytes) -> dict[str, Any]:
    return {
        "name": key.name,
        "digest": digest,
        "rights": sorted(key.rights),
        "tenant": key.tenant,
        "under": key.under,
        "expires_at": None if key.expires_at is None else key.expires_at.astimezone(UTC),
        "rate": key.rate,
    }


def _read(entry: DocumentEntry[Any]) -> tuple[Key, bytes]:
    return _parse(entry.key, entry.value)


def _parse(place: str, stored: Any) -> tuple[Key, bytes]:
    try:
        digest, rights = stored["digest"], rights_of(stored["rights"])
        key = Key(
            stored["name"], rights, stored["tenant"], stored["under"], stored["expires_at"], stored["rate"]
        )
    except (KeyError, TypeError, InvalidError) as error:
        raise CorruptError(f"the stored key {place!r} cannot be read: {error}", place=place) from error
    if type(digest) is not bytes or len(digest) != len(digest_of("")):
        raise CorruptError(f"the stored key {place!r} has no digest", place=place)
    return key, digest
