"""`doctor --verify` finds damage and names its place; `repair` saves the rest and touches nothing."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pytest
from keepstate_testing.servers import Redis

import keepstate as ks_package
from keepstate.stores.recovery.trees import TABLE_LEAF
from tests.cli.conftest import Keepstate
from tests.crashes import seeded_store_bugs

pytestmark = pytest.mark.slow

DAMAGED = 5
PAGE_BYTES = 4096


async def _fill(url: str) -> None:
    async with ks_package.open(url) as ks:
        run = ks.space("run")
        for number in range(40):
            await run.documents.put(f"plan {number}", {"step": number, "text": f"text of {number} " * 40})
            await run.events.append({"step": number})
            await run.queue.put(number, id=f"task {number}")
        await run.documents.put("large", Random(1).randbytes(1_500_000))
        await run.documents.put("timed", 1, ttl_s=3600)
        for task in await run.queue.claim("me", lease_s=60, count=3):
            await task.complete("done")
        await run.leases.acquire("lock", 60)
        await ks.space("gone").documents.put("x", 1)
        await ks.drop("gone")


async def _told(url: str) -> dict[str, Any]:
    """Return all that a reader sees of the space."""
    async with ks_package.open(url) as ks:
        run = ks.space("run")
        return {
            "documents": [(key, entry) async for key, entry in _entries(run.documents) if key != "timed"],
            "timed": await run.documents.get("timed"),
            "events": [(event.number, event.data) for event in await run.events.read(limit=1000)],
            "last": await run.events.last(),
            "ready": [(task.id, task.attempt) for task in await run.queue.list("ready")],
            "done": [(task.id, task.result) for task in await run.queue.list("done")],
            "dropped": await ks.space("gone").revision(),
        }


async def _entries(documents: Any) -> Any:
    async for key in documents.keys():
        yield key, await documents.entry(key)


def _filled(url: str) -> dict[str, Any]:
    asyncio.run(_fill(url))
    return asyncio.run(_told(url))


def _damage(path: Path, wanted: bytes) -> int:
    """Change a byte of a value that stands in the file, and return where."""
    data = path.read_bytes()
    at = data.index(wanted) + len(wanted) // 2
    path.write_bytes(data[:at] + b"#" + data[at + 1 :])
    return at


def _url(kind: str, tmp_path: Path, request: pytest.FixtureRequest, name: str = "store") -> str:
    if kind in ("sqlite", "file"):
        return f"{kind}:///{tmp_path}/{name}.{kind}"
    url: str = request.getfixturevalue(f"{kind}_url")
    return url


@pytest.mark.parametrize("kind", ["sqlite", "file", "redis", "postgres"])
def test_a_whole_store_is_told_to_be_whole(
    keepstate: Keepstate, tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    url = _url(kind, tmp_path, request)
    _filled(url)

    told = keepstate("doctor", "--verify", url)

    assert told.code == 0, told.out
    assert "no damage" in told.out
    assert told.err == ""
    assert keepstate("doctor", "--verify", "--url", url, "--json").json()["damages"] == []


@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_behind_a_tier_the_files_themselves_are_looked_at_and_saved(
    keepstate: Keepstate, tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    url = _url(kind, tmp_path, request)
    _filled(url)
    path = tmp_path / f"store.{kind}"
    _damage(path, b"text of 17 text of 17")
    before = path.read_bytes()
    new = f"tiered+{_url(kind, tmp_path, request, 'new')}"

    told = keepstate("doctor", "--verify", f"tiered+{url}", "--json")
    assert told.code == DAMAGED
    assert told.json()["damages"] == keepstate("doctor", "--verify", url, "--json").json()["damages"]
    assert keepstate("repair", f"tiered+{url}", new).code == DAMAGED
    assert "exists already" in keepstate("repair", url, new).err

    assert path.read_bytes() == before
    assert keepstate("get", "run", "plan 16", "--url", new).code == 0


@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_damage_to_a_file_is_named_with_its_place_and_the_file_is_not_touched(
    keepstate: Keepstate, tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    url = _url(kind, tmp_path, request)
    _filled(url)
    path = tmp_path / f"store.{kind}"
    at = _damage(path, b"text of 17 text of 17")
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}

    told = keepstate("doctor", "--verify", url)
    listed = keepstate("doctor", "--verify", url, "--json").json()

    assert told.code == DAMAGED
    assert "damaged" in told.out
    assert not listed["whole"]
    places = [damage["place"] for damage in listed["damages"] if " at byte " in damage.get("place", "")]
    assert any(int(place.rpartition(" ")[2]) // PAGE_BYTES == at // PAGE_BYTES for place in places)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_damage_on_a_server_is_named_by_space_and_key(keepstate: Keepstate, postgres_url: str) -> None:
    _filled(postgres_url)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        changed = connection.execute(
            r"UPDATE keepstate.entry SET value = '\x01c1'::bytea || substring(value FROM 3) "
            r"WHERE key = '\x0202646f6300'::bytea || 'plan 7'"
        )
        assert changed.rowcount == 1
        connection.execute(
            r"UPDATE keepstate.entry SET version = 1 WHERE key = '\x0202646f6300'::bytea || 'plan 9'"
        )

    told = keepstate("doctor", "--verify", postgres_url, "--json")

    assert told.code == DAMAGED
    damages = told.json()["damages"]
    assert {(damage["space"], damage["key"]) for damage in damages} == {
        ("run", "document 'plan 7'"), ("run", "document 'plan 9'"),
    }  # fmt: skip
    assert any("was logged at revision" in damage["what"] for damage in damages)
    assert any("the log wrote it last" in damage["what"] for damage in damages)


@pytest.mark.parametrize(
    ("kind", "target"),
    [("file", "sqlite"), ("sqlite", "file"), ("sqlite", "redis"), ("postgres", "sqlite")],
)
def test_a_repaired_store_has_all_that_was_whole_where_it_was(
    keepstate: Keepstate, tmp_path: Path, kind: str, target: str, request: pytest.FixtureRequest
) -> None:
    source, new = _url(kind, tmp_path, request), _url(target, tmp_path, request, "new")
    whole = _filled(source)
    if kind == "postgres":  # a server does not list what was dropped
        whole["dropped"] = 0

    ended = keepstate("repair", source, new, "--json")

    assert ended.code == 0, ended.out + ended.err
    assert ended.json()["whole"]
    assert asyncio.run(_told(new)) == whole
    assert keepstate("doctor", "--verify", new).code == 0


@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_what_is_damaged_is_listed_and_the_rest_is_saved(
    keepstate: Keepstate, tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    source, new = _url(kind, tmp_path, request), _url(kind, tmp_path, request, "new")
    whole = _filled(source)
    _damage(tmp_path / f"store.{kind}", b"text of 17 text of 17")
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}

    ended = keepstate("repair", source, new)
    saved = asyncio.run(_told(new))

    assert ended.code == DAMAGED
    assert "damaged place" in ended.out
    lost = [key for key, _ in whole["documents"] if key not in dict(saved["documents"])]
    assert lost in ([], ["plan 17"])  # SQLite has it in its log, too
    kept = dict(saved["documents"])
    assert all(kept[key] == entry for key, entry in whole["documents"] if key != "plan 17")
    assert {name: saved[name] for name in ("events", "last", "ready", "done")} == {
        name: whole[name] for name in ("events", "last", "ready", "done")
    }
    assert before.items() <= {file.name: file.read_bytes() for file in tmp_path.iterdir()}.items()
    assert keepstate("doctor", "--verify", new).code == 0


def test_what_a_crash_left_in_the_log_of_a_database_is_saved_too(
    keepstate: Keepstate, tmp_path: Path
) -> None:
    whole = f"sqlite:///{tmp_path}/whole.db"

    async def crash() -> None:
        async with ks_package.open(whole) as ks:
            await ks.space("run").documents.put("plan", "in the log")
            for end in ("", "-wal"):
                shutil.copyfile(tmp_path / f"whole.db{end}", tmp_path / f"crashed.db{end}")

    asyncio.run(crash())

    ended = keepstate("repair", f"sqlite:///{tmp_path}/crashed.db", f"file:///{tmp_path}/new.journal")

    assert ended.code == 0, ended.out
    assert keepstate("get", "run", "plan", "--url", f"file:///{tmp_path}/new.journal").json() == "in the log"


def test_a_log_that_somebody_removed_is_damage(keepstate: Keepstate, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/whole.db"
    crashed = f"sqlite:///{tmp_path}/crashed.db"
    keepstate("put", "run", "plan", '"in the file"', "--url", url)

    async def crash() -> None:
        async with ks_package.open(url) as ks:
            await ks.space("run").documents.put("plan", "in the log")
            for end in ("", ".lock"):
                shutil.copyfile(tmp_path / f"whole.db{end}", tmp_path / f"crashed.db{end}")

    asyncio.run(crash())

    told = keepstate("doctor", "--verify", crashed, "--json")
    ended = keepstate("repair", crashed, f"sqlite:///{tmp_path}/new.db")

    assert (told.code, ended.code) == (DAMAGED, DAMAGED)
    assert told.json()["damages"][0]["what"] == (
        "what was acknowledged up to revision 2 is lost from revision 2"
    )
    put = keepstate("put", "run", "plan", "1", "--url", f"sqlite:///{tmp_path}/new.db")
    assert put.out == "3\n"  # no revision stands for two things


@pytest.mark.parametrize("number", [2, 5, 7, None])
def test_zeroed_pages_are_damage_to_both_commands(
    keepstate: Keepstate, tmp_path: Path, number: int | None
) -> None:
    source = f"sqlite:///{tmp_path}/store.db"
    for key in ("one", "two"):
        keepstate("put", "run", key, "1", "--url", source)
    database = tmp_path / "store.db"
    data = database.read_bytes()
    start, end = (
        (PAGE_BYTES, len(data)) if number is None else ((number - 1) * PAGE_BYTES, number * PAGE_BYTES)
    )
    database.write_bytes(data[:start] + bytes(end - start) + data[end:])

    verified = keepstate("doctor", "--verify", source, "--json")
    repaired = keepstate("repair", source, f"file:///{tmp_path}/new.journal", "--json")

    assert (verified.code, repaired.code) == (DAMAGED, DAMAGED)
    for told in (verified, repaired):
        whats = {damage["place"]: damage["what"] for damage in told.json()["damages"]}
        assert f"page {number or 2}, in use for" in whats[f"{database} at byte {start}"]
    assert len(repaired.json()["damages"]) < 20


def test_each_record_that_is_lost_is_listed_once_and_much_else_that_is_alike_is_counted(
    keepstate: Keepstate, tmp_path: Path
) -> None:
    source = f"sqlite:///{tmp_path}/store.db"

    async def fill() -> None:
        async with ks_package.open(source) as ks:
            for number in range(150):
                await ks.space("run").documents.put(f"plan {number}", "x" * 1_000)

    asyncio.run(fill())
    data = bytearray((tmp_path / "store.db").read_bytes())
    leaves = [at for at in range(9 * PAGE_BYTES, len(data), PAGE_BYTES) if data[at] == TABLE_LEAF]
    for at in leaves:
        data[at : at + PAGE_BYTES] = b"\xa5" * PAGE_BYTES
    (tmp_path / "store.db").write_bytes(data)

    told = keepstate("doctor", "--verify", source).out

    assert len(leaves) > 50
    assert [told.count(f"document 'plan {number}'") for number in range(150)] == [1] * 150
    assert "more like this; --json lists them all" in told
    assert sum("page" in line for line in told.splitlines()) < 20


def test_a_repair_says_which_spaces_of_a_verification_it_leaves_out(
    keepstate: Keepstate, tmp_path: Path
) -> None:
    source, new = f"sqlite:///{tmp_path}/store.db", f"sqlite:///{tmp_path}/new.db"

    async def fill() -> None:
        async with ks_package.open(source) as ks:
            await ks.space("run").queue.put("work", id="task")
            await ks.find()

    asyncio.run(fill())

    assert " in 2 spaces of " in keepstate("doctor", "--verify", source).out
    repaired = keepstate("repair", source, new).out
    assert " in 1 space are now in " in repaired
    assert "1 more space is the index of find, which the next find makes again" in repaired


def test_an_encrypted_store_is_verified_and_repaired_without_its_key(
    keepstate: Keepstate, tmp_path: Path
) -> None:
    source, new = f"sqlite:///{tmp_path}/sealed.db", f"file:///{tmp_path}/new.journal"
    ring = ks_package.KeyRing(ks_package.KeyRing.new_key())

    async def fill() -> None:
        async with ks_package.open(source, encryption=ring) as ks:
            await ks.space("run").documents.put("plan", {"step": 1})
            await ks.space("run").documents.put("large", Random(1).randbytes(1_500_000))
            await ks.space("run").queue.put("work", id="task")
            await ks.space("run").events.append(1, 2)

    async def read() -> list[Any]:
        async with ks_package.open(new, encryption=ring) as ks:
            run = ks.space("run")
            (task,) = await run.queue.claim("me", lease_s=60)
            large = await run.documents.get("large")
            return [await run.documents.get("plan"), len(large), task.payload, len(await run.events.read())]

    asyncio.run(fill())

    verified = keepstate("doctor", "--verify", source)
    repaired = keepstate("repair", source, new)

    assert verified.code == 0, verified.out
    assert "values are encrypted" in verified.out
    assert repaired.code == 0, repaired.out
    assert asyncio.run(read()) == [{"step": 1}, 1_500_000, "work", 2]


def test_a_target_that_is_there_is_refused(keepstate: Keepstate, tmp_path: Path, redis_server: Redis) -> None:
    redis_server.flush()
    source = f"sqlite:///{tmp_path}/store.db"
    for url in (source, redis_server.url):
        keepstate("put", "run", "plan", "1", "--url", url)
    (tmp_path / "letter.db").write_text("dear reader")

    ended = [
        keepstate("repair", source, target)
        for target in (source, f"sqlite:///{tmp_path}/letter.db", redis_server.url)
    ]

    assert [one.code for one in ended] == [2, 2, 2]
    assert "exists already" in ended[0].err
    assert "holds data" in ended[2].err
    assert (tmp_path / "letter.db").read_text() == "dear reader"


@pytest.mark.parametrize("command", ["doctor", "repair"])
def test_a_source_that_is_not_there_is_told_and_nothing_is_made(
    keepstate: Keepstate, tmp_path: Path, command: str
) -> None:
    source = f"sqlite:///{tmp_path}/nowhere.db"
    words = ("doctor", "--verify", source) if command == "doctor" else ("repair", source, "file:///new")

    ended = keepstate(*words)

    assert ended.code == 1
    assert "there is no store at" in ended.err
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_store_is_damaged_or_refused(keepstate: Keepstate, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("a letter to nobody, and a long one\n" * 400)

    as_journal = keepstate("doctor", "--verify", f"file:///{tmp_path}/text")
    as_database = keepstate("doctor", "--verify", f"sqlite:///{tmp_path}/text")

    assert (as_journal.code, as_database.code) == (DAMAGED, DAMAGED)
    assert "does not start like a journal" in as_journal.err
    assert "0 records" in as_database.out


def test_verify_counts_the_parts_of_a_database_again(keepstate: Keepstate, url: str) -> None:
    keepstate("put", "run", "plan", "1")
    whole = keepstate("doctor", "--verify", url)
    with seeded_store_bugs.removed_row_counted(), ks_package.sync.open(url) as ks:
        ks.space("run").documents.put("draft", 2)
        ks.space("run").documents.delete("draft")

    told = keepstate("doctor", "--verify", url, "--json")

    assert (whole.code, told.code) == (0, 5)
    (damage,) = told.json()["damages"]
    assert damage["what"] == "its size is not that of its entries"
