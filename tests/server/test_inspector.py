"""The inspector as the server serves it: files without a key under a strict policy, and browsers let in."""

from __future__ import annotations

import asyncio
import gzip
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Route

import keepstate
from keepstate.server import Key, Keys, Limits, browser_sessions, create_app
from keepstate.server.browser_sessions import BrowserSessions, cookie_name
from keepstate.testing.clocks import ManualClock
from tests.server.conftest import Served, served

ASSET = re.compile(r'(?:src|href)="\./(assets/[^"]+)"')


@asynccontextmanager
async def browser(secret: str, door: Served) -> AsyncGenerator[httpx.AsyncClient]:
    """Yield a client that has exchanged a secret for a cookie."""
    client = door.client()
    answer = await client.post("/open", json={"secret": secret})
    assert (answer.status_code, answer.content) == (204, b"")
    yield client


async def test_the_page_and_its_files_need_no_key_and_come_under_a_strict_policy() -> None:
    async with served() as door:
        client = door.client()
        page = await client.get("/")
        files = [await client.get(f"/{path}") for path in ASSET.findall(page.text)]

    assert (page.status_code, page.headers["cache-control"]) == (200, "no-cache")
    assert sorted(file.headers["content-type"] for file in files) == [
        "text/css; charset=utf-8",
        "text/javascript; charset=utf-8",
    ]
    for file in files:
        assert (file.status_code, "immutable" in file.headers["cache-control"]) == (200, True)
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
    assert "unsafe" not in policy and "require-trusted-types-for 'script'" in policy
    # The policy would stop them in the browser, and the page would be blank.
    assert not re.search(r"<script(?![^>]* src=)|<style| style=| on\w+=", page.text)


async def test_files_are_compressed_and_not_sent_again() -> None:
    async with served() as door:
        client = door.client()
        page = await client.get("/")
        path = f"/{ASSET.findall(page.text)[0]}"
        async with client.stream("GET", path, headers={"Accept-Encoding": "gzip"}) as packed:
            raw = b"".join([chunk async for chunk in packed.aiter_raw()])
        plain = await client.get(path, headers={"Accept-Encoding": "identity"})
        again = await client.get("/", headers={"If-None-Match": page.headers["etag"]})

    assert packed.headers["content-encoding"] == "gzip" and len(raw) < len(plain.content)
    assert gzip.decompress(raw) == plain.content and "content-encoding" not in plain.headers
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize(
    "path", ["/assets/", "/assets/%2e%2e/__init__.py", "/assets%2fx.js", "/index.html", "/__init__.py"]
)
async def test_no_other_file_is_served(path: str) -> None:
    async with served() as door:
        assert (await door.client().get(path)).status_code == 401


async def test_a_server_without_the_inspector_says_so() -> None:
    async with keepstate.open("memory://", values="builtin") as ks:
        app = create_app(ks, keys=Keys(ks), inspector=False)
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app=app), base_url="http://localhost"
        ) as client:
            page = await client.get("/")

    assert page.status_code == 200 and "without the inspector" in page.text and "assets" not in page.text


async def test_a_link_lets_one_browser_in_and_no_second_one() -> None:
    async with served() as door:
        secret = door.app.make_link(Key("ann", frozenset(["read"]))).partition("#")[2]
        async with browser(secret, door) as client:
            present = await client.get("/v1/self")
        second = await door.client().post("/open", json={"secret": secret})

    assert present.json()["author"] == "ann"
    assert (second.status_code, second.json()["code"]) == (403, "not_valid")


async def test_a_browser_let_in_by_a_key_is_out_once_the_key_is_revoked() -> None:
    async with served() as door:
        secret = await door.secret("bob", ["read"])
        async with browser(secret, door) as client:
            before = await client.get("/v1/self")
            await door.keys.revoke("bob")
            async with asyncio.timeout(60):
                while (after := await client.get("/v1/self")).status_code == 200:
                    await asyncio.sleep(0.01)
        again = await door.client().post("/open", json={"secret": secret})

    assert before.json()["key"] == "bob"
    assert (after.status_code, again.status_code) == (401, 403)


async def test_a_browser_is_out_once_its_session_or_its_key_has_expired() -> None:
    clock = ManualClock()
    async with keepstate.open("memory://", values="builtin") as ks:
        keys, limits = Keys(ks), Limits()
        sessions = BrowserSessions(keys, clock, limits)
        soon = Key(
            "ann", frozenset(["read"]), expires_at=datetime.fromtimestamp(clock.now_ms() / 1000 + 60, UTC)
        )
        app = Starlette(routes=[Route("/open", sessions.exchange, methods=["POST"])])
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app=app), base_url="http://localhost"
        ) as client:
            late = sessions.make_link(soon).partition("#")[2]
            secrets = [
                sessions.make_link(key).partition("#")[2] for key in (soon, Key("bob", frozenset(["read"])))
            ]
            cookies = [
                _sent(await client.post("/open", json={"secret": secret})).partition("=")[2]
                for secret in secrets
            ]
            let_in = [sessions.find(cookie) is not None for cookie in cookies]
            clock.advance(61_000)
            after_a_minute = [sessions.find(cookie) is not None for cookie in cookies]
            clock.advance(12 * 3_600_000)
            after_a_day = [sessions.find(cookie) is not None for cookie in cookies]
            refused = await client.post("/open", json={"secret": late})

    assert (let_in, after_a_minute, after_a_day) == ([True, True], [False, True], [False, False])
    assert refused.status_code == 403


async def test_the_cookie_is_hidden_from_scripts_and_other_sites_and_ports() -> None:
    async with served() as door:
        secret = await door.secret()
        answer = await door.client().post(
            "/open", json={"secret": secret}, headers={"Host": "localhost:8484"}
        )
        other = await door.client().get(
            "/v1/self", headers={"Host": "localhost:8485", "Cookie": _sent(answer)}
        )
        own = await door.client().get("/v1/self", headers={"Host": "localhost:8484", "Cookie": _sent(answer)})

    cookie = answer.headers["set-cookie"]
    assert cookie.startswith("keepstate_session_8484=")
    assert "HttpOnly" in cookie and "samesite=strict" in cookie.lower() and secret not in cookie
    assert (other.status_code, own.status_code) == (401, 200)
    assert cookie_name("[::1]:80") == "keepstate_session_80" and cookie_name("[::1]") == "keepstate_session"


async def test_a_page_under_tls_gets_a_cookie_that_is_sent_under_tls_only() -> None:
    async with served() as door:
        secret = await door.secret()
        cookies = [
            (await door.client().post("/open", json={"secret": secret}, headers={"Origin": origin})).headers[
                "set-cookie"
            ]
            for origin in ("https://localhost", "http://localhost")
        ]

    assert ["secure" in cookie.lower() for cookie in cookies] == [True, False]


async def test_a_key_has_a_number_of_sessions_of_browsers_and_a_further_one_ends_the_oldest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(browser_sessions, "_MOST", 3)
    async with served() as door:
        often, other = await door.secret("often", ["read"]), await door.secret("other", ["read"])
        client = door.client()
        cookies = [_sent(await client.post("/open", json={"secret": other}))]
        for _ in range(5):
            client.cookies.clear()
            cookies.append(_sent(await client.post("/open", json={"secret": often})))
        client.cookies.clear()
        answers = [await client.get("/v1/self", headers={"Cookie": cookie}) for cookie in cookies]

    assert [answer.status_code for answer in answers] == [200, 401, 401, 200, 200, 200]


def _sent(answer: httpx.Response) -> str:
    return str(answer.headers["set-cookie"]).partition(";")[0]


async def test_an_administrator_revokes_keys_and_measures_tenants() -> None:
    async with served() as door:
        await door.ks.tenant("acme").space("run/1").documents.put("plan", "x" * 100)
        admin, of_tenant = (
            await door.caller("root", ["admin"]),
            await door.caller("tom", ["admin"], tenant="acme"),
        )
        size = (await admin.get("/v1/tenants/size", params={"tenant": "acme"})).json()
        none = (await admin.get("/v1/tenants/size", params={"tenant": "zeta"})).json()
        refused = [
            await of_tenant.get("/v1/tenants/size", params={"tenant": "zeta"}),
            await of_tenant.delete("/v1/key", params={"name": "root"}),
        ]
        revoked = await admin.delete("/v1/key", params={"name": "tom"})
        unknown = await admin.delete("/v1/key", params={"name": "nobody"})
        names = [key.name for key in await door.keys.list()]
        audited = [event["what"] for event in await door.keys.audited()]

    assert size["size_bytes"] > 100 and size["entries"] >= 1
    assert none == {"entries": 0, "size_bytes": 0}
    assert [answer.status_code for answer in refused] == [403, 403]
    assert (revoked.json(), unknown.status_code, names) == ({"existed": True}, 404, ["root"])
    assert "key_revoked" in audited and "called" in audited
