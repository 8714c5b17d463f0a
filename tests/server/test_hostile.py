"""Hostile requests: the right status, nothing written, nothing told, and no process held."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

import keepstate
from keepstate.errors import InvalidError, KeepstateError, StorageError, StoreUnavailableError
from keepstate.server import Key, Limits, store_endpoint
from keepstate.server.app import OPERATIONS
from keepstate.server.dispatch import require_valid
from keepstate.server.keys import Grant
from keepstate.server.problems import RefusedError
from keepstate.server.table import Operation
from keepstate.stores.http import wire
from keepstate.stores.protocol import Batch as StoreBatch
from keepstate.stores.protocol import Put
from keepstate.testing.clocks import ManualClock
from tests.server.conftest import Served, served
from tests.server.test_rights import BODIES, GIVEN, Request

IDS = [row.name for row in OPERATIONS]
WITH_BODY = [row for row in OPERATIONS if row.body is not None]
ANY_JSON = {"putDocument", "patchDocument"}
JSON = {"Content-Type": "application/json"}


def query_of(row: Operation) -> dict[str, str]:
    required = {each.encode_name for each in msgspec.structs.fields(row.query) if each.required}
    return {name: value for name, value in GIVEN.items() if name in required}


async def send(client: httpx.AsyncClient, row: Operation, content: bytes, **headers: str) -> httpx.Response:
    return await client.request(
        row.method,
        row.path,
        params=query_of(row),
        content=content,
        headers={"Content-Type": row.media, **headers},
    )


async def nothing_is_written(door: Served) -> bool:
    return [name async for name in door.ks.spaces()] == []


@pytest.mark.parametrize("row", OPERATIONS, ids=IDS)
async def test_a_request_that_names_another_host_or_comes_from_another_site_is_refused(
    row: Operation,
) -> None:
    async with served() as door:
        client = await door.caller()
        refused = [
            (421, {"Host": "evil.example"}),
            (421, {"Host": "localhost.evil.example:8484"}),
            (421, {"Host": "127.0.0.1@evil.example"}),
            (421, {"Host": ""}),
            (403, {"Origin": "http://evil.example"}),
            (403, {"Origin": "null"}),
            (403, {"Origin": "http://localhost.evil.example"}),
            (403, {"Origin": "http://localhost:1"}),
            (403, {"Sec-Fetch-Site": "cross-site"}),
            (403, {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"}),
        ]

        answers = [(await Request(row).send(client, **headers)).status_code for _, headers in refused]

        assert answers == [status for status, _ in refused]
        assert await nothing_is_written(door)


async def test_a_header_that_is_sent_twice_is_judged_as_a_whole() -> None:
    async with served() as door:
        secret, client = await door.secret(), door.client()
        key = ("Authorization", f"Bearer {secret}")
        twice = [
            (421, [key, ("Host", "localhost"), ("Host", "evil.example")]),
            (401, [key, ("Authorization", "Bearer ks_none")]),
            (401, [("Authorization", "Bearer ks_none"), key]),
            (403, [key, ("Origin", "http://localhost"), ("Origin", "http://evil.example")]),
        ]

        answers = [(await client.get("/v1/self", headers=headers)).status_code for _, headers in twice]
        where = {"space": "run/1", "key": "k"}
        tag = (await client.put("/v1/document", params=where, json=1, headers=[key])).headers["etag"]
        either = [key, ("If-None-Match", '"other"'), ("If-None-Match", tag)]

        assert answers == [status for status, _ in twice]
        assert (await client.get("/v1/document", params=where, headers=either)).status_code == 304


async def test_a_page_of_the_server_itself_and_its_other_names_are_admitted() -> None:
    async with served() as door:
        client = await door.caller()
        given = [
            {"Origin": "http://localhost"},
            {"Origin": "https://localhost", "Sec-Fetch-Site": "same-origin"},
            {"Host": "127.0.0.1:8484", "Origin": "http://127.0.0.1:8484"},
            {"Host": "[::1]:8484"},
            {"Host": "LOCALHOST:1"},
        ]

        assert [(await client.get("/v1/self", headers=each)).status_code for each in given] == [200] * 5


@pytest.mark.parametrize("row", OPERATIONS, ids=IDS)
async def test_unknown_repeated_and_missing_parameters_are_refused(row: Operation) -> None:
    async with served() as door:
        client, given = await door.caller(), query_of(row)
        body: dict[str, Any] = (
            {}
            if row.body is None
            else {"content": json.dumps(BODIES[row.name]), "headers": {"Content-Type": row.media}}
        )
        queries: list[list[tuple[str, str]]] = [[*given.items(), ("nonsense", "1")]]
        queries += [[*given.items(), (name, value)] for name, value in given.items()]
        queries += [[(other, value) for other, value in given.items() if other != name] for name in given]
        queries += [
            [*((other, value) for other, value in given.items() if other != name), (name, "x" * 9_000)]
            for name in given
        ]

        answers = [await client.request(row.method, row.path, params=each, **body) for each in queries]

        assert {(one.status_code, one.json()["code"]) for one in answers} == {(422, "invalid")}
        assert await nothing_is_written(door)


@pytest.mark.parametrize("row", WITH_BODY, ids=[row.name for row in WITH_BODY])
async def test_bodies_that_are_wrong_are_refused_before_anything_is_written(row: Operation) -> None:
    async with served(limits=Limits(body_bytes=20_000)) as door:
        client = await door.caller()
        good = msgspec.json.encode(BODIES[row.name])
        deep = b"[" * 9_000 + b"]" * 9_000
        inner = b'{"@type": "tuple", "items": [' * 400 + b"]}" * 400
        wrong: list[tuple[int, bytes, dict[str, str]]] = [
            (400, b"", {}),
            (400, b"{", {}),
            (400, b"\xff\xfe", {}),
            (400, good + b"x", {}),
            (413, b" " * 20_001, {}),
            (422, deep, {}),
            (415, good, {"Content-Type": "text/plain"}),
            (415, good, {"Content-Type": "application/x-www-form-urlencoded"}),
            (415, good, {"Content-Encoding": "gzip"}),
            (415, gzip.compress(b" " * 1_000_000), {"Content-Encoding": "gzip"}),
        ]
        if row.name not in ANY_JSON:
            unknown = json.dumps({**BODIES[row.name], "nonsense": 1}).encode()
            wrong += [
                (422, b"[]", {}),
                (422, b"null", {}),
                (422, unknown, {}),
                (422, inner, {}),
            ]
            if any(each.required for each in msgspec.structs.fields(row.body)):
                wrong.append((422, b"{}", {}))
        else:
            wrong += [(422, b'{"@type": "none"}', {}), (422, b'{"@type": 1}', {}), (422, inner, {})]
        if row.name == "putDocument":
            pickle = {"@type": "pickle", "class": "os.system", "data": {"@type": "bytes", "base64": ""}}
            wrong.append((422, json.dumps(pickle).encode(), {}))

        answers = [await send(client, row, content, **headers) for _, content, headers in wrong]

        assert [one.status_code for one in answers] == [status for status, _, _ in wrong]
        assert all(one.headers["content-type"] == "application/problem+json" for one in answers)
        assert await nothing_is_written(door)


async def test_the_text_null_is_a_name_and_never_means_that_a_parameter_is_left_out() -> None:
    async with served() as door:
        client = await door.caller()
        await door.ks.space("run/1").queue.put(1)
        await door.ks.deliver()

        owners = await client.get("/v1/find", params={"owner": "null"})
        since = await client.get("/v1/find", params={"changed_since": "null"})
        under = await client.get("/v1/spaces", params={"under": "null"})

        assert owners.json().get("items", []) == [] and under.json().get("items", []) == []
        assert (since.status_code, since.json()["code"]) == (422, "invalid")


@pytest.mark.parametrize("said", ["0.5", "5", "-1e3", "null", "2026-11-28", "2026-11-28T12:00:00"])
async def test_a_time_that_is_a_number_or_has_no_zone_is_refused(said: str) -> None:
    async with served() as door:
        client = await door.caller()

        answer = await client.get("/v1/find", params={"changed_since": said})

        assert (answer.status_code, answer.json()["code"]) == (422, "invalid")
        assert "changed_since" in answer.json()["detail"]


@pytest.mark.parametrize("path", [[{}], ["plan", []], ["plan", {"@type": "tuple", "items": [[]]}]])
async def test_a_step_of_a_path_that_is_a_list_or_dict_is_refused(path: list[object]) -> None:
    async with served() as door:
        client = await door.caller()
        await door.ks.space("run/1").history.commit({"plan": {"price": 1}}, message="begin")
        merge = {"source": "main", "rules": [{"path": path, "rule": "theirs"}]}

        answers = [
            await client.get("/v1/history/blame", params={"space": "run/1", "path": json.dumps(path)}),
            await client.get(
                "/v1/history/merge",
                params={"space": "run/1", "source": "main", "rules": json.dumps(merge["rules"])},
            ),
            await client.post("/v1/history/merge", params={"space": "run/1"}, json=merge),
        ]

        assert [one.status_code for one in answers] == [422, 422, 422]


async def test_a_body_where_none_belongs_is_refused() -> None:
    async with served() as door:
        client = await door.caller()

        answer = await client.request("GET", "/v1/self", content=b"x")

        assert (answer.status_code, answer.json()["code"]) == (422, "invalid")


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "NONE"])
async def test_a_method_that_a_path_does_not_have_is_refused(method: str) -> None:
    async with served() as door:
        client = await door.caller()

        answer = await client.request(method, "/v1/self")

        assert (answer.status_code, answer.json()["code"]) == (405, "method_not_allowed")
        assert answer.headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize(
    "path",
    [
        "/v1",
        "/v1/",
        "/v1/none",
        "/v1/self/",
        "//v1/self",
        "/approvalsx",
        "/static",
    ],
)
async def test_a_path_that_does_not_exist_needs_a_key_to_learn_that(path: str) -> None:
    async with served() as door:
        answers = [await client.get(path) for client in (door.client(), await door.caller())]

        assert [one.status_code for one in answers] == [401, 404]


async def test_each_answer_forbids_guessing_framing_and_leaking() -> None:
    async with served() as door:
        client = await door.caller()
        paths = (
            "/v1/self",
            "/healthz",
            "/metrics",
            "/openapi.json",
            "/open",
            "/open.js",
            "/approvals",
            "/none",
        )

        for path in paths:
            headers = (await client.get(path)).headers
            assert (
                headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"
            )
            assert "default-src 'none'" in headers["content-security-policy"], path
            assert "frame-ancestors 'none'" in headers["content-security-policy"], path
            assert headers["cross-origin-opener-policy"] == "same-origin", path
            assert "access-control-allow-origin" not in headers and "server" not in headers
            assert headers["cache-control"] != "" and "public" not in headers["cache-control"], path


@pytest.mark.parametrize(
    "error",
    [
        StoreUnavailableError("/srv/secret/keepstate.db is locked", url="sqlite:////srv/secret/keepstate.db"),
        StorageError("postgresql://ann@secret/db refused a statement", url="postgresql://ann@secret/db"),
        InvalidError("postgresql://ann@secret/db rejects this user or database: no. Correct them."),
        InvalidError("redis://secret rejects user and password at WRONGPASS. Correct them in the URL."),
    ],
)
async def test_a_store_that_fails_is_told_without_its_place(
    error: KeepstateError, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with served() as door:
        client = await door.caller()
        store = await door.ks.opened()

        async def fail(*_: Any, **__: Any) -> Any:
            raise error

        monkeypatch.setattr(store, "read", fail)
        answer = await client.get("/v1/document", params={"space": "run", "key": "k"})

        expected = (500, "storage", False) if type(error) is StorageError else (503, "unavailable", True)
        problem = answer.json()
        assert (answer.status_code, problem["code"], problem.get("retryable", False)) == expected
        assert "secret" not in answer.text and "secret" in caplog.text
        assert (answer.headers.get("retry-after") == "1") == (expected[0] == 503)


async def test_an_error_that_names_a_handle_is_told_without_the_place_of_its_store(tmp_path: Path) -> None:
    async with served(f"sqlite:///{tmp_path}/kept.db", mcp="read") as door:
        client = await door.caller()
        fork = {"session": "ann", "fork": "none"}
        answer = await client.get("/v1/conversation", params=fork)
        call = {"name": "conversation", "arguments": fork}
        told = await client.post(
            "/mcp",
            json={"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call},
            headers={"Accept": "application/json, text/event-stream"},
        )

    for text in (answer.text, told.text):
        assert "'none' does not exist" in text and "session/ann" in text
        assert str(tmp_path) not in text and "kept.db" not in text


async def test_strangers_who_ask_at_once_whether_it_is_ready_ask_the_store_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with served() as door:
        store, asked = await door.ks.opened(), 0
        spaces: Any = store.spaces

        async def slow(*given: Any, **options: Any) -> Any:
            nonlocal asked
            asked += 1
            await asyncio.sleep(0.05)
            return await spaces(*given, **options)

        monkeypatch.setattr(store, "spaces", slow)
        answers = await asyncio.gather(*(door.client().get("/readyz") for _ in range(20)))

        assert {answer.status_code for answer in answers} == {200} and asked == 1


async def test_a_body_with_two_lengths_is_refused() -> None:
    async with served() as door:
        client = await door.caller()
        answer = await client.put(
            "/v1/document",
            params={"space": "run", "key": "k"},
            content=b"1",
            headers={**JSON, "Content-Length": "1", "Transfer-Encoding": "chunked"},
        )

        assert (answer.status_code, answer.headers["connection"]) == (400, "close")
        assert await nothing_is_written(door)


@pytest.mark.parametrize("path", ["/v1/document?space=run&key=k", "/mcp", "/store/apply"])
async def test_a_key_that_is_revoked_while_its_body_comes_writes_nothing(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_endpoint, "_LOOK_S", 0.0)
    put_task = {"name": "put_task", "arguments": {"space": "run", "id": "t", "payload": 1}}
    batch = StoreBatch("run", writes=[Put(b"k", b"\x01")], token=b"t" * 16)
    body, kind = {
        "/mcp": (
            msgspec.json.encode({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": put_task}),
            "application/json",
        ),
        "/store/apply": (wire.encode(wire.ApplyCall(batches=[batch], seen={})), wire.MEDIA_TYPE),
    }.get(path, (b"1", "application/json"))
    async with served(mcp="write") as door:
        secret = await door.secret("ann", ["read", "write", "store"])

        async def late() -> AsyncIterator[bytes]:
            yield body[:-1]
            await door.keys.revoke("ann")
            while door.keys.find(secret) is not None:
                await asyncio.sleep(0.01)
            yield body[-1:]

        async with asyncio.timeout(60):
            answer = await door.client(secret).request(
                "PUT" if path.startswith("/v1") else "POST",
                path,
                content=late(),
                headers={
                    "Content-Type": kind,
                    "Accept": "application/json, text/event-stream",
                    wire.VERSION_HEADER: str(wire.VERSION),
                },
            )

        assert answer.status_code == 401, answer.content
        assert await nothing_is_written(door)


def test_a_key_that_expires_while_its_body_comes_is_refused() -> None:
    clock = ManualClock()
    end = datetime.fromtimestamp(clock.now_ms() / 1000 + 10, UTC)
    grant = Grant(Key("ann", frozenset(["write"]), expires_at=end))
    require_valid(grant, clock)
    clock.advance(10_000)

    with pytest.raises(RefusedError, match="has expired"):
        require_valid(grant, clock)


async def test_a_person_whose_name_is_not_utf_8_is_refused() -> None:
    async with served() as door:
        client = await door.caller()
        answers = [
            await client.get("/v1/self", headers={"On-Behalf-Of": person})
            for person in ("%FF", "%FE", "%E2%80%AE", "Zo%C3%AB")
        ]

    assert [answer.status_code for answer in answers] == [422, 422, 422, 200]
    assert answers[-1].json()["author"] == "ann/Zoë"


async def test_a_request_acts_for_no_person_that_is_empty_or_one_of_two() -> None:
    async with served() as door:
        client = await door.caller("web")
        answers = [
            await client.get("/v1/self", headers=[("On-Behalf-Of", person) for person in persons])
            for persons in ([""], ["%20ann"], ["ann", "bob"], ["ann", "ann"], ["ann", ""], ["ann"], [])
        ]

    assert [answer.status_code for answer in answers] == [422, 422, 422, 422, 422, 200, 200]
    assert [answer.json()["author"] for answer in answers[-2:]] == ["web/ann", "web"]


async def test_an_idempotency_key_of_one_person_is_not_that_of_another() -> None:
    async with served() as door:
        client, sent = await door.caller("web"), {"params": {"space": "run/1"}, "json": {"payload": 1}}
        put = [
            (await client.post("/v1/tasks", headers={"Idempotency-Key": "k", "On-Behalf-Of": person}, **sent))
            for person in ("ann", "bob", "ann")
        ]

    ids = [each.json()["id"] for each in put]
    assert ids[0] != ids[1] and ids[0] == ids[2]


async def test_an_error_of_the_server_itself_is_logged_and_not_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with served() as door:
        client = await door.caller()
        store = await door.ks.opened()

        async def fail(*_: Any, **__: Any) -> Any:
            raise ZeroDivisionError("the secret")

        monkeypatch.setattr(store, "read", fail)
        with caplog.at_level(logging.ERROR, logger="keepstate.server"):
            answer = await client.get("/v1/document", params={"space": "run", "key": "k"})

        assert (answer.status_code, answer.json()["code"]) == (500, "internal")
        assert "secret" not in answer.text and "the secret" in caplog.text


async def test_a_request_is_cancelled_at_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(limits=Limits(request_s=0.3)) as door:
        client, cancelled = await door.caller(), asyncio.Event()
        store = await door.ks.opened()

        async def hang(*_: Any, **__: Any) -> Any:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.set()
                raise

        monkeypatch.setattr(store, "read", hang)
        answer = await client.get("/v1/document", params={"space": "run", "key": "k"})

        assert (answer.status_code, answer.json()["code"]) == (504, "deadline")
        assert cancelled.is_set()


async def test_a_link_of_open_lets_one_browser_in_once() -> None:
    async with served() as door:
        stranger, again, other = door.client(), door.client(), door.client()
        path, _, secret = door.app.make_link(keepstate.server.Key("browser", frozenset(["read"]))).partition(
            "#"
        )

        page = await stranger.get(path)
        by_form = await other.post(path, data={"secret": secret})
        foreign = await other.post(path, json={"secret": secret}, headers={"Origin": "http://evil.example"})
        opened = await stranger.post(path, json={"secret": secret})
        reused = await again.post(path, json={"secret": secret})
        read = await stranger.get("/v1/self")
        written = await stranger.put("/v1/document", params={"space": "run", "key": "k"}, json=1)
        cross = await stranger.get("/v1/self", headers={"Sec-Fetch-Site": "cross-site"})
        cookie = opened.headers["set-cookie"]

        assert secret not in page.text and page.headers["cache-control"] == "no-store"
        assert (by_form.status_code, foreign.status_code, opened.status_code, reused.status_code) == (
            415,
            403,
            204,
            403,
        )
        assert "HttpOnly" in cookie and "SameSite=strict" in cookie and secret not in cookie
        assert (read.json()["key"], written.status_code, cross.status_code) == ("browser", 403, 403)
        assert (await other.get("/v1/self")).status_code == 401


async def test_links_to_approvals_answer_without_a_key_and_others_do_not() -> None:
    async with served() as door:
        stranger = door.client()

        page = await stranger.get("/approvals")
        wrong = await stranger.post("/approvals", json={"token": "x", "do": "read"})

        assert (page.status_code, page.headers["content-type"].partition(";")[0]) == (200, "text/html")
        assert wrong.status_code == 403
