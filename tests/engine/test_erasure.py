"""Erasing a tenant on every backend: everything of it goes, nothing of others, and no write slips through."""

from __future__ import annotations

import asyncio
import random
import subprocess
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import keepstate
from keepstate import names
from keepstate._runner import TaskRunner
from keepstate.engine.kernel import grants
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space
from keepstate.errors import ConflictError, InvalidError, NotAllowedError
from keepstate.stores.memory import MemoryHeap, MemoryStore
from keepstate.stores.protocol import Batch, Capabilities, Check, Durability, Outcome, Page, Reading, Sizes
from keepstate.stores.wrappers.wrapper import StoreWrapper
from tests.engine.dumps import found_in
from tests.processes import PROCESSES, Program

WRITER = PROCESSES / "write_into_tenant.py"
NOT_REACHED = [
    "backups, bundles and exports that were made before",
    "the names of erased spaces: the store keeps each with a counter",
]
"""What every erasure says that it could not reach."""


async def filled(ks: Keepstate) -> None:
    for tenant in ("a", "b"):
        handle = ks.tenant(tenant)
        for number in range(3):
            space = handle.space(f"run/{number}")
            await space.documents.put("plan", "x" * 10)
            await space.events.append("begun", {"by": tenant})
            await space.queue.put({"n": number})
    await ks.space("run/0").documents.put("plan", "none")


async def names_of(ks: Keepstate) -> list[str]:
    return [name async for name in ks.spaces()]


async def test_erasing_a_tenant_takes_its_spaces_and_nothing_else(ks: Keepstate) -> None:
    await filled(ks)
    size = await ks.tenant("a").size()
    other = await ks.tenant("b").size()

    erased = await ks.tenant("a").erase(confirm="a")

    assert (erased.spaces, erased.entries, erased.size_bytes) == (3, size.entries, size.size_bytes)
    assert [tenant.id for tenant in await ks.tenants()] == ["b"]
    assert await ks.tenant("b").size() == other
    assert await ks.space("run/0").documents.get("plan") == "none"


async def test_an_erased_tenant_begins_anew(ks: Keepstate) -> None:
    await filled(ks)
    tenant = ks.tenant("a")
    await tenant.erase(confirm="a")

    await tenant.space("run/0").documents.put("plan", "new")

    assert await names_of(tenant) == ["run/0"]
    assert (await tenant.erase(confirm="a")).spaces == 1
    assert (await tenant.erase(confirm="a")).spaces == 0


async def archived(ks: Keepstate, name: str, file: Path, who: str) -> Space:
    """Return a recorded space whose old commits, which name somebody, are in a file."""
    space = ks.space(name, record=True)
    for number in range(3):
        await space.documents.put(f"session/{who}/plan", f"{who} {number}")
    assert (await space.history.archive(file, keep_last=1)).commits > 0
    assert found_in(file.parent, who.encode())
    return space


async def test_an_erasure_names_the_archives_and_what_it_did_not_reach(ks: Keepstate, tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.archive" for number in range(3)]
    for tenant, name, file in zip("aab", ("one", "two", "one"), files, strict=True):
        await archived(ks.tenant(tenant), name, file, f"PERSON-{tenant}")

    erased = await ks.tenant("a").erase(confirm="a")

    assert erased.archives == files[:2]
    assert erased.not_reached[:2] == NOT_REACHED
    assert all(found_in(file, b"PERSON-") for file in files)
    assert (await ks.tenant("a").erase(confirm="a")).archives == []


async def test_erasing_needs_the_tenant_s_id_once_more(ks: Keepstate) -> None:
    await filled(ks)

    with pytest.raises(InvalidError, match="has no tenant; call"):
        await ks.erase(confirm="a")
    with pytest.raises(InvalidError, match="`confirm` is 'b'; give the id of the tenant to erase, 'a'"):
        await ks.tenant("a").erase(confirm="b")


async def test_a_transaction_that_began_before_an_erasure_is_rejected(ks: Keepstate) -> None:
    await filled(ks)
    tenant = ks.tenant("a")

    with pytest.raises(NotAllowedError, match="tenant 'a' was erased while this write") as caught:
        async with tenant.space("run/9").transaction() as tx:
            await tx.documents.put("late", 1)
            await tenant.erase(confirm="a")

    assert caught.value.tenant == "a"
    assert await names_of(tenant) == []


async def test_a_space_that_was_dropped_is_written_again_at_once(ks: Keepstate) -> None:
    await filled(ks)
    tenant, same = ks.tenant("a"), ks.tenant("a")
    await same.drop("run/0")

    async with tenant.space("run/0").transaction() as tx:
        assert await tx.documents.get("plan") is None
        await tx.documents.put("plan", 2)

    assert await tenant.space("run/0").documents.get("plan") == 2


async def test_a_transaction_that_lists_can_be_the_first_of_a_tenant_s_space(ks: Keepstate) -> None:
    async with ks.tenant("a").space("new").transaction() as tx:
        assert (await tx.documents.page()).next is None
        await tx.documents.put("plan", 1)

    assert await ks.tenant("a").space("new").documents.get("plan") == 1


# ---- every order of the calls of a writer and an erasure


class Turns:
    """Lets the calls of several actors run one at a time, in an order that a seed decides."""

    def __init__(self, seed: int, first: str) -> None:
        self._random, self._first = random.Random(seed), first
        self._haste: dict[str, float] = {}  # so that one actor may do all between two calls of another
        self._paused, self._calls = first, self._random.randint(2, 8)  # it stops before this call
        self._waiting: dict[str, asyncio.Event] = {}
        self._left: set[str] = set()

    async def run(self, actors: dict[str, Callable[[], Awaitable[Any]]]) -> dict[str, Any]:
        self._left = set(actors)

        async def act(name: str) -> Any:
            try:
                return await actors[name]()
            except (NotAllowedError, ConflictError) as error:  # a plain transaction is not retried
                return error
            finally:
                self._left.discard(name)
                self._next()

        tasks = {name: asyncio.ensure_future(act(name)) for name in actors}
        return {name: await task for name, task in tasks.items()}

    async def turn(self, name: str) -> None:
        self._waiting[name] = asyncio.Event()
        event = self._waiting[name]
        if name == self._paused:
            self._calls -= 1
            self._haste[name] = 1e-6 if self._calls == 0 else 20 ** self._random.uniform(-1, 1)
        self._next()
        await event.wait()

    def _next(self) -> None:
        if self._left and set(self._waiting) >= self._left:
            chosen = self._first if self._first in self._waiting else ""
            self._first = ""
            names = sorted(self._waiting)
            weights = [self._haste.setdefault(name, 20 ** self._random.uniform(-1, 1)) for name in names]
            chosen = chosen or self._random.choices(names, weights)[0]
            self._waiting.pop(chosen).set()


class InTurn(StoreWrapper):
    """Waits for its turn before each call."""

    turns: Turns | None = None
    name = ""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(durability=Durability.NONE, shared=True)  # so that work supposes

    async def _turn(self) -> None:
        if self.turns is not None:
            await self.turns.turn(self.name)

    async def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        await self._turn()
        return await super().apply(batches)

    async def read(self, space: str, keys: Sequence[bytes], *, at_ms: int | None = None) -> Reading:
        await self._turn()
        return await super().read(space, keys, at_ms=at_ms)

    async def scan(self, space: str, prefix: bytes, **options: Any) -> Page:
        await self._turn()
        return await super().scan(space, prefix, **options)

    async def sizes(self, space: str) -> Sizes:
        await self._turn()
        return await super().sizes(space)

    async def spaces(self, prefix: str = "", *, after: str | None = None, limit: int = 256) -> list[str]:
        await self._turn()
        return await super().spaces(prefix, after=after, limit=limit)

    async def drop(self, space: str, *, at: int | None = None) -> bool:
        await self._turn()
        return await super().drop(space, at=at)


async def slipped(seed: int, kind: str, erasers: int = 1) -> list[str]:
    """Return the spaces that a write leaves that began before an erasure which is complete."""
    heap = MemoryHeap()
    stores = {name: InTurn(MemoryStore(runner=TaskRunner(), heap=heap)) for name in ("w", "e0", "e1")}
    handles = {name: keepstate.open(store) for name, store in stores.items()}
    for name, store in stores.items():
        await store.open()
        store.name = name
    tenant = handles["w"].tenant("a")
    for number in range(2):
        await handles["e0"].tenant("a").space(f"old/{number}").documents.put("plan", 1)
    if "known" in kind:
        await tenant.space("old/0").documents.put("plan", 2)
    turns = Turns(seed, "w")
    for store in stores.values():
        store.turns = turns
    space = tenant.space("old/0" if "old" in kind else "new")

    async def write() -> None:
        if "transaction" in kind:
            async with space.transaction() as tx:
                await tx.documents.page()
                await tx.documents.put("plan", "PERSON")
        elif "large" in kind:
            await space.documents.put("plan", random.Random(0).randbytes(9 << 20))
        else:
            await space.events.append("said", "PERSON")

    actors: dict[str, Callable[[], Awaitable[Any]]] = {"w": write}
    for number in range(erasers):
        handle = handles[f"e{number}"].tenant("a")
        actors[f"e{number}"] = lambda handle=handle: handle.erase(confirm="a")  # type: ignore[misc]
    await turns.run(actors)
    for store in stores.values():
        store.turns = None
    left = await names_of(tenant)
    for store in stores.values():
        await store.close()
    return left


KINDS = ("known old", "known new", "old", "new", "known transaction old", "transaction new")


@pytest.mark.parametrize("kind", KINDS)
def test_in_no_order_of_calls_does_a_write_slip_through_an_erasure(kind: str) -> None:
    for seed in range(60):
        assert asyncio.run(slipped(seed, kind)) == [], seed


@pytest.mark.parametrize("kind", ["known old", "new"])
def test_two_erasures_at_once_let_no_write_slip_through(kind: str) -> None:
    for seed in range(40):
        assert asyncio.run(slipped(seed, kind, erasers=2)) == [], seed


@pytest.mark.slow
def test_no_part_of_a_large_value_slips_through_an_erasure() -> None:
    for seed in range(12):
        assert asyncio.run(slipped(seed, "known old large")) == [], seed


def unconfirmed(store: Any, space: str, beginning: str) -> Awaitable[int]:
    async def life() -> int:
        return 0

    return life()


def unchecked(store: Any, space: str, began_in: int | None) -> Awaitable[grants.Grant]:
    async def granted() -> grants.Grant:
        return grants.Grant(Check(b"\x01none", version=0))

    return granted()


@pytest.mark.parametrize(
    "planted",
    [
        patch.object(grants, "grant_for", unchecked),
        patch.object(grants, "_read_life", unconfirmed),
    ],
    ids=["a batch that checks no grant", "a grant that is not confirmed"],
)
def test_a_writer_that_slips_through_is_found(planted: Any) -> None:
    with planted:
        left = [asyncio.run(slipped(seed, kind)) for kind in KINDS for seed in range(60)]

    assert any(left)


# ---- kills


class KilledError(BaseException):
    """The end of a process."""


class Dying(InTurn):
    """Ends its process before a call."""

    calls_left = -1

    async def _turn(self) -> None:
        self.calls_left -= 1
        if self.calls_left == -1:
            raise KilledError


def test_an_erasure_that_is_killed_before_any_call_keeps_writers_out_and_continues() -> None:
    async def killed_before(call: int) -> bool:
        heap = MemoryHeap()
        stores = [Dying(MemoryStore(runner=TaskRunner(), heap=heap)) for _ in range(3)]
        try:
            return await ended(call, stores)
        finally:
            for store in stores:
                await store.close()

    async def ended(call: int, stores: list[Dying]) -> bool:
        one, other, writer = [keepstate.open(await store.open()) for store in stores]
        await filled(one)
        size = await one.tenant("a").size()
        await writer.tenant("a").space("run/0").documents.put("plan", "y" * 10)
        stores[0].calls_left = call
        try:
            await one.tenant("a").erase(confirm="a")
            return False
        except KilledError:
            pass
        stores[0].calls_left = 1 << 30
        record = await grants.read_record(stores[1], names.beginning("a"))
        if record[0] is not None:
            with pytest.raises(NotAllowedError, match="tenant 'a' is being erased"):
                await writer.tenant("a").space("late").documents.put("plan", 1)
            erased = await other.tenant("a").erase(confirm="a")
            assert (erased.spaces, erased.entries, erased.size_bytes) == (3, size.entries, size.size_bytes)
        elif await names_of(other.tenant("a")):
            assert (await other.tenant("a").erase(confirm="a")).spaces == 3
        assert await names_of(other.tenant("a")) == []
        assert (await other.tenant("b").size()).entries == size.entries
        with pytest.raises(NotAllowedError, match="was erased while this write was under way"):
            await writer.tenant("a").space("late").documents.put("plan", 1)
        await writer.tenant("a").space("new").documents.put("plan", 1)
        return True

    call = 0
    while asyncio.run(killed_before(call)):
        call += 1
    assert call > 20


# ---- processes


@pytest.mark.slow
async def test_no_write_of_other_processes_slips_through_an_erasure(shared_url: str) -> None:
    async with keepstate.open(shared_url) as ks:
        await filled(ks)
        before = await ks.tenant("b").size()
        for _ in range(2):
            writers = [Program(WRITER, shared_url, "a", f"w{n}", stdout=subprocess.PIPE) for n in range(3)]
            for writer in writers:
                assert writer.stdout is not None
                assert writer.stdout.readline() == "writing\n"

            erased = await ks.tenant("a").erase(confirm="a")
            counts = [int(writer.communicate(timeout=60)[0]) for writer in writers]

            assert erased.spaces > 10
            assert min(counts) > 8
            assert await names_of(ks.tenant("a")) == []
        assert await ks.tenant("b").size() == before


async def entries_of_tenant(ks: Keepstate) -> list[object]:
    """Return all entries of a tenant's spaces."""
    store = await ks.opened()
    return [
        (name, entry)
        async for name in ks.stored_names()
        for section in (b"\x00", b"\x01", b"\x02")
        for entry in (await store.scan(name, section)).entries
    ]


@pytest.mark.slow
async def test_no_bytes_are_left_of_a_tenant_that_was_erased_while_processes_wrote_into_it(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path}/keepstate.db"
    async with keepstate.open(url) as ks, keepstate.open(url) as warm:
        for tenant in "ab":
            session = keepstate.Session("talk", user_id=f"PERSON-{tenant}", persistence=ks.tenant(tenant))
            await session.conversation.append({"role": "user", "content": f"PERSON-{tenant}"})
            assert len(await ks.tenant(tenant).find()) == 1
        before = await entries_of_tenant(ks.tenant("b"))
        writers = [Program(WRITER, url, "a", f"w{n}", stdout=subprocess.PIPE) for n in range(3)]
        for writer in writers:
            assert writer.stdout is not None and writer.stdout.readline() == "writing\n"
        first = warm.tenant("a").space("w0/0").documents
        assert await first.get("person") is not None or await warm.tenant("a").find()
        assert found_in(tmp_path, b"PERSON-a")

        await ks.tenant("a").erase(confirm="a")
        for writer in writers:
            assert int(writer.communicate(timeout=60)[0]) > 8

        assert found_in(tmp_path, b"PERSON-a") == []
        assert await entries_of_tenant(ks.tenant("b")) == before
        for handle in (warm, ks):
            assert [*await handle.tenant("a").find()] == []
            assert await handle.tenant("a").space("w0/0").documents.get("person") is None
            assert await handle.tenant("a").space("session/talk").documents.page() == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "file"])
async def test_no_bytes_of_an_erased_tenant_are_left_in_files(kind: str, tmp_path: Path) -> None:
    name = "keepstate.db" if kind == "sqlite" else "keepstate.journal"
    async with keepstate.open(f"{kind}:///{tmp_path}/{name}") as ks:
        for tenant in ("a", "b"):
            for number in range(20):
                space = ks.tenant(tenant).space(f"run/{number}", record=number % 2 == 0)
                for again in range(5):
                    await space.documents.put("plan", f"PERSON-{tenant} {again} " + "y" * 900 * again)
                    await space.events.append("said", f"PERSON-{tenant}")
                    await space.queue.put(f"PERSON-{tenant}")
                await space.documents.put("large", f"PERSON-{tenant}".encode() * 150_000)
                await space.documents.delete("plan")
        assert found_in(tmp_path, b"PERSON-a")

        erased = await ks.tenant("a").erase(confirm="a")

        assert found_in(tmp_path, b"PERSON-a") == []
        assert found_in(tmp_path, b"PERSON-b")
        assert len(erased.not_reached) == 2
        assert (await ks.tenant("b").space("run/1").documents.get("large")) == b"PERSON-b" * 150_000
