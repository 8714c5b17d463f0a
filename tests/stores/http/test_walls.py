"""The wall of a key: it reaches the stored names of its tenant, and nothing else."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

import keepstate
import keepstate.sync
from keepstate.errors import InvalidError, NotAllowedError
from keepstate.names import stored_name
from keepstate.stores.http.store import HttpStore
from keepstate.stores.protocol import ENCRYPTION_SPACE, Batch, Check, Mark, Put
from keepstate.stores.urls import StoreUrl
from keepstate.stores.wrappers.encrypted import KeyRing
from keepstate.testing.store_contract.stage import Stage, applied, value_of
from keepstate.values import limits
from tests.stores.http.serving import StoreServer, sqlite_url

A = b"\x01a"
OTHERS = {
    "a space of another tenant": stored_name("other", "run"),
    "a space without a tenant": "run",
    "a tenant whose id begins alike": stored_name("acme2", "run"),
    "a name of its tenant's beginning only": stored_name("acme", "")[:-1] or "?",
    "an escaped name": stored_name(None, "\U0010ffffacme\x01run"),
}
Call = Callable[[HttpStore, str], Awaitable[object]]
CALLS: dict[str, Call] = {
    "apply": lambda store, name: store.apply([Batch(name, [Put(A, b"1")])]),
    "apply under a token": lambda store, name: store.apply([Batch(name, (), at=1, token=b"t", retry_of=0)]),
    "apply with its own": lambda store, name: store.apply(
        [Batch(stored_name("acme", "own"), [Put(A, b"half")]), Batch(name, (), [Check(A, version=0)])]
    ),
    "read": lambda store, name: store.read(name, [A]),
    "revision": lambda store, name: store.read(name, []),
    "scan": lambda store, name: store.scan(name, A),
    "sizes": lambda store, name: store.sizes(name),
    "changes": lambda store, name: store.changes(name, 0),
    "changes under a mark": lambda store, name: store.changes_under(name, Mark(1, b"12345678"), 0),
    "leap": lambda store, name: store.last_leap(name),
    "changed": lambda store, name: store.changed_ms([stored_name("acme", "own"), name]),
    "drop": lambda store, name: store.drop(name),
    "trim": lambda store, name: store.trim(name),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    with StoreServer(sqlite_url(tmp_path_factory.mktemp("walls")), "withheld=keepstate:keys") as server:
        yield server


class TestWalls(Stage):
    async def open(self, server: StoreServer, key: str) -> HttpStore:
        return await HttpStore(StoreUrl.parse(server.url(key)), runner=self.runner()).open()

    @pytest.mark.parametrize("other", OTHERS)
    async def test_no_call_reaches_a_space_outside(self, server: StoreServer, other: str) -> None:
        whole, store = await self.open(server, "whole"), await self.open(server, "of-acme")
        name = OTHERS[other]
        await whole.drop(stored_name("acme", "own"))
        await applied(whole, name, Put(A, b"theirs"))
        before = await whole.read(name, [A])

        for call in CALLS.values():
            with pytest.raises(NotAllowedError) as caught:
                await call(store, name)
            assert "theirs" not in str(caught.value)

        assert (await whole.read(name, [A])).entries == before.entries
        assert (await whole.read(stored_name("acme", "own"), [A])).entries == [None], "a half was applied"
        await whole.drop(name)
        await store.close()
        await whole.close()

    async def test_a_key_without_a_tenant_reaches_no_tenant(self, server: StoreServer) -> None:
        store, name = await self.open(server, "plain"), stored_name("acme", "run")
        for call in CALLS.values():
            with pytest.raises(NotAllowedError):
                await call(store, name)

        await applied(store, "plain/run", Put(A, b"1"))
        await applied(store, stored_name(None, "\U0010ffffodd"), Put(A, b"1"))

        await store.drop("plain/run")
        await store.drop(stored_name(None, "\U0010ffffodd"))
        await store.close()

    async def test_a_key_for_a_part_reaches_that_part(self, server: StoreServer) -> None:
        store = await self.open(server, "of-acme/team/")

        done = await applied(store, stored_name("acme", "team/a"), Put(A, b"1"))

        assert done.revision
        for name in ("team", "teams/a", "run"):
            with pytest.raises(NotAllowedError):
                await store.read(stored_name("acme", name), [A])
        await store.drop(stored_name("acme", "team/a"))
        await store.close()

    async def test_a_listing_and_a_sweep_stay_inside(self, tmp_path: Path) -> None:
        with StoreServer(sqlite_url(tmp_path)) as server:  # of its own, because it lists everything
            await self.check_listings(server)

    async def check_listings(self, server: StoreServer) -> None:
        whole = await self.open(server, "whole")
        names = {
            "plain": ["a", "b/1", "b/2"],
            "of-acme": [stored_name("acme", "a"), stored_name("acme", "b")],
            "of-acme2": [stored_name("acme2", "a")],
        }
        first = {
            space: (await applied(whole, space, Put(A, b"1", ttl_ms=30))).revision
            for space in (name for each in names.values() for name in each)
        }
        await self.pass_time(30)
        everything = [name for each in names.values() for name in each]

        for key, own in names.items():
            store = await self.open(server, key)
            assert await store.spaces() == own
            assert await store.spaces(limit=1) == own[:1]
            assert await store.spaces(after=own[0]) == own[1:]
            assert await store.spaces(own[0]) == own[:1]
            assert [name for other in everything for name in await store.spaces(other)] == own
            assert await store.sweep() == len(own)
            assert await store.sweep() == 0
            await store.close()

        assert await whole.spaces() == everything
        for space in everything:
            assert (await whole.read(space, [])).revision == first[space] + 1
            await whole.drop(space)
        await whole.close()

    async def test_what_is_withheld_is_reached_by_no_key(self, server: StoreServer) -> None:
        for key in ("whole", "plain"):
            store = await self.open(server, key)
            for call in CALLS.values():
                with pytest.raises(NotAllowedError):
                    await call(store, "keepstate:keys")
            assert await store.spaces("keepstate:keys") == []
            await store.close()

    async def test_only_a_key_for_everything_makes_the_store_an_encrypted_one(
        self, server: StoreServer
    ) -> None:
        for key in ("plain", "of-acme"):
            store = await self.open(server, key)
            assert await value_of(store, ENCRYPTION_SPACE, b"\x01store") is None
            with pytest.raises(NotAllowedError):
                await applied(store, ENCRYPTION_SPACE, Put(b"\x01store", b"mine"))
            with pytest.raises(NotAllowedError):
                await store.drop(ENCRYPTION_SPACE)
            await store.close()

    async def test_a_tenant_does_not_scrub_or_inspect_what_all_share(self, server: StoreServer) -> None:
        store = await self.open(server, "of-acme")

        assert "administrator" in (await store.scrub())[0]
        assert await store.settings() == []

        await store.close()


async def both_modes_work(url: str, value: object, **options: object) -> None:
    async with keepstate.open(url, **options) as ks:  # type: ignore[arg-type]
        await ks.space("run").documents.put("plan", value)
        assert await ks.space("run").documents.get("plan") == value
    with keepstate.sync.open(url, **options) as ks:  # type: ignore[arg-type]
        assert ks.space("run").documents.get("plan") == value


def drive(work: Awaitable[object]) -> None:
    import asyncio

    asyncio.run(work)  # type: ignore[arg-type]


def test_a_tenant_s_handle_works_with_the_tenant_s_key_and_no_other(server: StoreServer) -> None:
    url = server.url("of-acme")

    drive(both_modes_work(url, {"steps": [1]}, tenant="acme"))

    for options in ({}, {"tenant": "other"}):
        with keepstate.sync.open(url, **options) as ks, pytest.raises(NotAllowedError):
            ks.space("run").documents.put("plan", 1)


def test_a_client_encrypts_for_itself_and_the_server_has_no_key(tmp_path: Path) -> None:
    ring, secret = KeyRing(KeyRing.new_key()), secrets.token_hex(20)
    with StoreServer(sqlite_url(tmp_path)) as server:
        drive(both_modes_work(server.url(), secret, encryption=ring))
        with keepstate.sync.open(server.url(), encryption=ring) as ks:
            ks.space("run").documents.put("largest", "x" * (3 * limits.VALUE_BYTES))
        server.restart()  # it finds the record of encryption, and still serves what is stored
        with keepstate.sync.open(server.url(), encryption=ring) as ks:
            ks.space("run").documents.put("plan", secret)
        with keepstate.sync.open(server.url()) as ks, pytest.raises(InvalidError, match="encrypted"):
            ks.space("run").documents.put("plan", 1)
        server.stop()

    assert not any(secret.encode() in file.read_bytes() for file in tmp_path.glob("behind.db*"))


def test_a_server_encrypts_for_clients_that_have_no_key(tmp_path: Path) -> None:
    secret = secrets.token_hex(20)
    with StoreServer(sqlite_url(tmp_path), f"key={KeyRing.new_key().hex()}") as server:
        drive(both_modes_work(server.url(), secret))
        with keepstate.sync.open(server.url()) as ks:
            ks.space("run").documents.put("plan", secret)
            assert [space.name for space in ks.list_spaces()] == ["run"]
        server.stop()

    assert not any(secret.encode() in file.read_bytes() for file in tmp_path.glob("behind.db*"))
