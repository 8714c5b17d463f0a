"""A stage with a server behind a proxy, and the account of what commits were told against the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pytest
from keepstate_testing.faults import Proxy, having
from keepstate_testing.servers import Postgres, Redis

from keepstate._runner import Mode, Runner
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space
from keepstate.errors import KeepstateError
from keepstate.opening import PassedStore
from keepstate.stores.base import StoreBase
from keepstate.stores.postgres import PostgresStore
from keepstate.stores.postgres.options import read_options
from keepstate.stores.protocol import Applied, Batch, Change, Check, Conflict, Put
from keepstate.stores.redis import RedisStore
from keepstate.stores.urls import StoreUrl
from keepstate.testing.store_contract.stage import Stage, changed, entry_of

SERVERS = {"Redis": "redis_server", "Valkey": "valkey_server", "PostgreSQL": "postgres_server"}
WRITES = having(b"EVAL", b"_apply\0", b"_put\0")
"""The requests that carry batches."""

LOG, HOT = b"\x02log/", b"\x02hot"

Answer = Applied | Conflict | KeepstateError | None
"""What a commit was told; None if it was cancelled before it was told anything."""


def space_in(store: StoreBase, name: str) -> Space:
    """Return a space of an opened store, in the store's colour."""
    return Keepstate(PassedStore(store, store.mode)).space(name)


class LossyStage(Stage):
    """Opens handles on a real server, through the proxy and past it."""

    @pytest.fixture(params=list(SERVERS), autouse=True)
    def server(self, request: pytest.FixtureRequest, mode: Mode) -> Iterator[Redis | Postgres]:
        self.kind = str(request.param)
        self.direct: Redis | Postgres = request.getfixturevalue(SERVERS[self.kind])
        self.direct.flush()
        self._opened: list[StoreBase] = []
        with Proxy(self.direct.port) as self.proxy:
            yield self.direct
            self.proxy.plan = None
            for store in self._opened:
                self.drive(store.close())

    async def behind(self, *, timeout_s: float = 5.0, retry_for_s: float = 30.0) -> StoreBase:
        """Return an open handle whose calls pass the proxy."""
        url = self.proxy.url(self.direct.url)
        return await self._open(made(url, self.runner(), timeout_s=timeout_s, retry_for_s=retry_for_s))

    async def behind_by_default(self) -> StoreBase:
        """Return an open handle whose calls pass the proxy, with no option set."""
        place = StoreUrl.parse(self.proxy.url(self.direct.url))
        kind = PostgresStore if self.kind == "PostgreSQL" else RedisStore
        return await self._open(kind.from_url(place, runner=self.runner()))

    async def beside(self) -> StoreBase:
        """Return an open handle that asks the server itself."""
        return await self._open(self.another(self.runner()))

    async def _open(self, store: StoreBase) -> StoreBase:
        self._opened.append(await store.open())
        return store

    def another(self, runner: Runner) -> StoreBase:
        """Return a handle in another colour or loop that asks the server itself, not yet opened."""
        return made(self.direct.url, runner)


def made(url: str, runner: Runner, *, timeout_s: float = 5.0, retry_for_s: float = 30.0) -> StoreBase:
    """Return a handle that is not yet opened."""
    if url.startswith("postgresql"):
        place = StoreUrl.parse(f"{url}?timeout_s={timeout_s}&connect_timeout=2")
        return PostgresStore(place, read_options(place), runner=runner, retry_for_s=retry_for_s)
    place = StoreUrl.parse(f"{url}?timeout_s={timeout_s}&retry_for_s={retry_for_s}")
    return RedisStore(place, runner=runner)


class Account(NamedTuple):
    """What differs between what commits were told and what the log holds; all counts should be 0."""

    lost: int
    """Told to have applied, and not in the log."""
    applied_twice: int
    ghosts: int
    """In the log, and told to have been refused, or made by nobody."""
    misreported: int
    """Applied at another revision than told, refused without a reason, or left without an answer."""


class HistorySession:
    """What each commit was told. Each writes its name where the log keeps it."""

    def __init__(self) -> None:
        self.told: dict[bytes, Answer] = {}

    async def commit(self, store: StoreBase, space: str, name: bytes, *, races: bool) -> None:
        """Commit under a name; one that `races` only if a key that all of them write has not changed."""
        self.told[name] = None
        writes, checks = [Put(LOG, name, stamp=True)], list[Check]()
        if races:
            entry = await entry_of(store, space, HOT)
            checks = [Check(HOT, version=entry.version if entry else 0)]
            writes.append(Put(HOT, name))
        try:
            (self.told[name],) = await store.apply([Batch(space, writes, checks)])
        except KeepstateError as error:
            self.told[name] = error

    @property
    def answered(self) -> int:
        """How many were told what became of them."""
        return sum(answer is not None for answer in self.told.values())

    def account(self, log: Sequence[Change]) -> Account:
        """Compare with the whole log of the space."""
        entries = [change for change in log if change.key.startswith(LOG)]
        places = {change.new: change.revision for change in entries}
        times = Counter(change.new for change in entries)
        hot = {0, *(change.revision for change in log if change.key == HOT)}
        lost = ghosts = misreported = 0
        for name, answer in self.told.items():
            place = places.pop(name, None)
            match answer:
                case Applied(revision):
                    lost += place is None
                    misreported += place is not None and place != revision
                case Conflict(_, actual):
                    ghosts += place is not None
                    misreported += actual not in hot
                case KeepstateError():
                    misreported += 1
                case None:
                    pass
        return Account(lost, sum(times.values()) - len(times), ghosts + len(places), misreported)

    async def settled(self, store: StoreBase, space: str) -> Account:
        """Compare with the log as this store tells it now."""
        log = await changed(store, space)
        revisions = sorted({change.revision for change in log})
        assert revisions == list(range(1, len(revisions) + 1)), "the log has gaps"
        return self.account(log)
