"""Every operation on a store that fails: the right status, what to do, and nothing told or half-written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from keepstate.errors import (
    ClockError,
    CorruptError,
    HistoryLostError,
    KeepstateError,
    OutcomeUnknownError,
    StoreFullError,
    StoreUnavailableError,
    UnsupportedError,
)
from keepstate.server import Limits
from keepstate.server.app import OPERATIONS
from keepstate.server.keys import KEYS_SPACE
from keepstate.server.table import Operation
from keepstate.stores.base import StoreBase
from tests.server.conftest import ALL, Served, served
from tests.server.test_rights import GIVEN, Request, code_of, fill

SECRET = "/srv/secret/keepstate.db"
READING = ("read", "scan", "sizes", "changes", "spaces")
WRITING = ("apply",)
NEVER = {"getSelf", "getHealth", "listKeys"}
"""Operations that ask the store nothing, or only of its keys and settings."""
FAULTS: dict[str, tuple[tuple[str, ...], KeepstateError, int]] = {
    "down": (READING + WRITING, StoreUnavailableError(f"{SECRET} is locked", url=SECRET), 503),
    "without a clock": (READING + WRITING, ClockError(f"{SECRET} has a clock that leaps"), 503),
    "damaged": (READING + WRITING, CorruptError(f"{SECRET} is damaged", place=SECRET), 500),
    "that lost history": (READING + WRITING, HistoryLostError("the store lost writes"), 410),
    "full": (WRITING, StoreFullError(f"{SECRET} is full"), 507),
    "read-only": (WRITING, UnsupportedError("the store is read-only"), 501),
    "whose reply is lost": (WRITING, OutcomeUnknownError("unknown", token="t1"), 504),
}
IDS = [row.name for row in OPERATIONS]


@asynccontextmanager
async def broken(
    door: Served, methods: tuple[str, ...], error: KeepstateError, patch: pytest.MonkeyPatch
) -> AsyncGenerator[list[str]]:
    """Let the methods of the store fail for all spaces but that of the keys. Yield the calls that failed."""
    store, failed = await door.ks.opened(), list[str]()
    with patch.context() as patched:
        for name in methods:
            working = getattr(store, name)

            async def fail(*given: Any, name: str = name, working: Any = working, **options: Any) -> Any:
                space = (
                    given[0]
                    if given and isinstance(given[0], str)
                    else getattr(given[0], "space", "")
                    if given
                    else ""
                )
                if space == KEYS_SPACE:
                    return await working(*given, **options)
                failed.append(name)
                raise error

            patched.setattr(store, name, fail)
        yield failed


async def snapshot(store: StoreBase) -> dict[str, int]:
    """Return the revision of each space but that of the keys, whose audit stream grows."""
    names = [name for name in await store.spaces() if name != KEYS_SPACE]
    return {name: (await store.read(name, [])).revision for name in names}


@pytest.fixture(
    params=["memory", *(pytest.param(kind, marks=pytest.mark.deep) for kind in ("sqlite", "postgres"))]
)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store of each kind."""
    if request.param == "postgres":
        found: str = request.getfixturevalue("postgres_url")
        return found
    return {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/faults.db"}[request.param]


@pytest.mark.parametrize("fault", FAULTS)
async def test_each_operation_on_a_store_that_fails_says_so_and_writes_nothing(
    fault: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    methods, error, status = FAULTS[fault]
    async with served(url) as door:
        await fill(door)
        client = await door.caller("ann", ALL, tenant="acme")
        store: Any = await door.ks.opened()
        before = await snapshot(store)

        wrong: list[tuple[str, int, str]] = []
        async with broken(door, methods, error, monkeypatch) as failed:
            for row in OPERATIONS:
                if row.is_stream or row.name in NEVER:
                    continue
                failed.clear()
                answer = await Request(row).send(client)
                # An operation that reads only, or finds nothing to write, meets no fault of writing.
                is_right = answer.status_code == status if failed else answer.status_code < 500
                if not is_right or SECRET in answer.text:
                    wrong.append((row.name, answer.status_code, answer.text))
                if failed and answer.status_code == 503 and "retry-after" not in answer.headers:
                    wrong.append((row.name, 503, "no Retry-After"))
                if failed and len(answer.json()["detail"]) < 10:
                    wrong.append((row.name, status, "no words"))

        assert wrong == []
        assert await snapshot(store) == before


@pytest.mark.parametrize("row", [row for row in OPERATIONS if row.is_stream], ids=lambda row: row.name)
async def test_each_stream_of_a_store_that_is_down_ends_with_the_reason(
    row: Operation, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(url) as door:
        await fill(door)
        client = await door.caller("ann", ALL, tenant="acme")
        methods, error, _ = FAULTS["down"]

        async with broken(door, methods, error, monkeypatch):
            answer = await Request(row).send(client)

        assert answer.status_code == 200 and "event: problem" in answer.text
        assert '"code":"unavailable"' in answer.text and SECRET not in answer.text


async def test_no_operation_is_held_beyond_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(limits=Limits(request_s=0.05)) as door:
        await fill(door)
        client = await door.caller("ann", ALL, tenant="acme")
        store = await door.ks.opened()

        async def hang(*given: Any, **_: Any) -> Any:
            await asyncio.sleep(3_600)

        rows = [row for row in OPERATIONS if not (row.is_stream or row.is_audited or row.name in NEVER)]
        with monkeypatch.context() as patched:
            for name in (*READING, *WRITING):
                patched.setattr(store, name, hang)
            async with asyncio.timeout(60):
                answers = await asyncio.gather(*(Request(row).send(client) for row in rows))

        found = {
            row.name: (answer.status_code, code_of(answer)) for row, answer in zip(rows, answers, strict=True)
        }
        assert found == dict.fromkeys(found, (504, "deadline"))


@pytest.mark.parametrize("row", [row for row in OPERATIONS if row.is_stream], ids=lambda row: row.name)
async def test_each_stream_ends_when_its_key_is_revoked_or_expires(row: Operation) -> None:
    async with served(is_live=True) as door:
        await fill(door)
        soon = datetime.now(UTC) + timedelta(seconds=1.5)
        revoked = await door.caller("ann", ["read"], tenant="acme")
        expiring = await door.caller("bob", ["read"], tenant="acme", expires_at=soon)
        needed = {each for each in GIVEN if each in {field.name for field in _required(row)}}
        query = {name: GIVEN[name] for name in needed}

        async def last_of(client: Any, *, is_revoked: bool) -> str:
            async with client.stream("GET", row.path, params=query) as response:
                lines = response.aiter_lines()
                first = await anext(lines)
                if is_revoked:
                    await door.keys.revoke("ann")
                return "\n".join([first, *[line async for line in lines]])

        async with asyncio.timeout(60):
            ends = [await last_of(revoked, is_revoked=True), await last_of(expiring, is_revoked=False)]

        assert all('"code":"unauthenticated"' in end for end in ends)


def _required(row: Operation) -> list[Any]:
    return [each for each in msgspec.structs.fields(row.query) if each.required]


@pytest.mark.parametrize("server", ["postgres", "redis"])
async def test_on_a_server_each_group_of_operations_answers_alike(
    server: str, request: pytest.FixtureRequest
) -> None:
    """A slice: what a key may and may not do, on stores that other processes share."""
    url = request.getfixturevalue(f"{server}_url")
    async with served(url) as door:
        await fill(door)
        client = await door.caller("ann", ALL, tenant="acme")
        stranger = await door.caller("zoe", ALL, tenant="zeta")

        answers = {}
        for row in OPERATIONS:
            if not row.is_stream and row.method == "GET" and not row.is_audited:
                mine, theirs = await Request(row).send(client), await Request(row).send(stranger)
                answers[row.name] = mine.status_code
                assert mine.status_code < 500 and theirs.status_code < 500
                assert "only-for-acme" not in theirs.text
        assert answers["getDocument"] == answers["listEvents"] == answers["getState"] == 200
