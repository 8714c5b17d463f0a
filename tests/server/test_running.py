"""The server as a process: keys from the command line, SIGTERM under load, and what may not start."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

import keepstate
from keepstate.cli import serve
from keepstate.cli.session import PLAIN
from keepstate.errors import InvalidError, NotAllowedError
from keepstate.server import Key, Keys, create_app
from keepstate.server.running import bind, is_loopback, require_keys
from keepstate.server.static_files import StaticFiles
from tests.server.conftest import sent_events, served, some

COMMAND = (sys.executable, "-c", "from keepstate.cli.app import main; main()")
RUN = {"space": "run/1"}


@asynccontextmanager
async def process(
    url: str, *options: str
) -> AsyncGenerator[tuple[asyncio.subprocess.Process, dict[str, Any]]]:
    """Yield a server process, and what it printed first."""
    words = [*COMMAND, "serve", "--port", "0", "--json", "--url", url, *options]
    started = await asyncio.create_subprocess_exec(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert started.stdout is not None
        async with asyncio.timeout(60):
            line = await started.stdout.readline()
        if not line:
            assert started.stderr is not None
            raise AssertionError((await started.stderr.read()).decode())
        yield started, json.loads(line)
    finally:
        if started.returncode is None:
            started.kill()
        await started.wait()


async def secret_of(url: str, *rights: str) -> str:
    async with keepstate.open(url, values="builtin") as ks:
        return await Keys(ks).add(Key("ann", frozenset(rights or ("read", "write"))))  # type: ignore[arg-type]


async def test_sigterm_under_load_loses_nothing_acknowledged_and_streams_resume(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/keepstate.db"
    headers = {"Authorization": f"Bearer {await secret_of(url)}"}
    acknowledged: list[int] = []
    seen: list[int] = []
    last: str | None = None

    async def write(client: httpx.AsyncClient, worker: int) -> None:
        for number in range(worker, 100_000, 4):
            try:
                answer = await client.post("/v1/events", params=RUN, json={"events": [number]})
            except httpx.TransportError:
                return
            if answer.status_code != 200:
                return
            acknowledged.append(number)

    async with process(url, "--drain-s", "0.3") as (first, told):
        async with httpx.AsyncClient(base_url=told["url"], headers=headers, timeout=30) as client:
            assert (await client.get("/readyz")).status_code == 200
            writing = [asyncio.create_task(write(client, worker)) for worker in range(4)]
            async with client.stream("GET", "/v1/events/follow", params=RUN) as response:
                events = sent_events(response)
                async with asyncio.timeout(60):
                    async for event in events:
                        seen.append(event.data["data"])
                        last = event.id
                        if len(seen) == 20:
                            first.send_signal(signal.SIGTERM)
            await asyncio.gather(*writing)
        async with asyncio.timeout(60):
            code = await first.wait()
    resumed = {**headers, "Last-Event-ID": last or ""}
    async with (
        process(url) as (_, told),
        httpx.AsyncClient(base_url=told["url"], headers=resumed) as client,
        client.stream("GET", "/v1/events/follow", params=RUN) as response,
    ):
        left = max(len(acknowledged) - len(seen), 0)
        seen += [event.data["data"] for event in await some(sent_events(response), left)]

    async with keepstate.open(url) as ks:
        stored = [event.data for event in await ks.space("run/1").events.read(limit=100_000)]
    assert code == 0 and len(acknowledged) > 10
    assert set(acknowledged) <= set(stored) and len(stored) == len(set(stored))
    assert seen == stored[: len(seen)] and len(seen) >= len(acknowledged)


async def test_readiness_fails_before_streams_end(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/keepstate.db"
    headers = {"Authorization": f"Bearer {await secret_of(url)}"}
    async with (
        process(url, "--drain-s", "1.5") as (server, told),
        httpx.AsyncClient(base_url=told["url"], headers=headers, timeout=30) as client,
        client.stream("GET", "/v1/documents/watch", params=RUN) as response,
    ):
        events = sent_events(response)
        await some(events, 1)

        server.send_signal(signal.SIGTERM)
        async with asyncio.timeout(60):
            while (await client.get("/readyz")).status_code == 200:
                await asyncio.sleep(0.02)
        alive = await client.get("/healthz")
        await client.put("/v1/document", params={**RUN, "key": "k"}, json=1)
        (change,) = await some(events, 1)
        rest = [event async for event in events]
        async with asyncio.timeout(60):
            code = await server.wait()

        assert (alive.status_code, change.data["key"], rest, code) == (200, "k", [], 0)


async def test_a_second_signal_ends_the_server_at_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/keepstate.db"
    async with process(url, "--drain-s", "600") as (server, _):
        server.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.3)
        assert server.returncode is None
        server.send_signal(signal.SIGTERM)

        async with asyncio.timeout(60):
            assert await server.wait() == 0


async def test_a_key_added_and_revoked_by_the_command_is_known_at_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/keepstate.db"

    def run(*words: str) -> str:
        return subprocess.run(
            [*COMMAND, *words, "--url", url], capture_output=True, text=True, check=True
        ).stdout

    async with process(url, "--open") as (_, told), httpx.AsyncClient(base_url=told["url"]) as client:
        secret = (await asyncio.to_thread(run, "keys", "add", "ci", "read", "--tenant", "acme")).strip()
        headers = {"Authorization": f"Bearer {secret}"}
        async with asyncio.timeout(60):
            while (answer := await client.get("/v1/self", headers=headers)).status_code != 200:
                await asyncio.sleep(0.05)
        browser = await client.post("/open", json={"secret": told["open"].partition("#")[2]})
        listed = await asyncio.to_thread(run, "keys", "list", "--json")
        await asyncio.to_thread(run, "keys", "revoke", "ci")
        async with asyncio.timeout(60):
            while (await client.get("/v1/self", headers=headers)).status_code != 401:
                await asyncio.sleep(0.05)
        audited = (await asyncio.to_thread(run, "keys", "audit")).splitlines()

    assert answer.json()["tenant"] == "acme" and json.loads(listed)["name"] == "ci"
    assert browser.status_code == 204
    assert secret not in listed and [json.loads(line)["what"] for line in audited] == [
        "key_added",
        "key_revoked",
    ]


async def test_a_link_lets_a_person_into_the_spaces_of_a_tenant(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/keepstate.db"
    async with keepstate.open(url) as ks:
        await ks.tenant("acme").space("inside").documents.put("k", 1)
        await ks.space("outside").documents.put("k", 1)

    traces = "https://traces.example.org/{trace_id}?zone=eu"
    options = ("--open", "--open-as", "ann", "--tenant", "acme", "--trace-url", traces)
    async with process(url, *options) as (_, told), httpx.AsyncClient(base_url=told["url"]) as client:
        await client.post("/open", json={"secret": told["open"].partition("#")[2]})
        present = (await client.get("/v1/self")).json()
        spaces = (await client.get("/v1/spaces")).json()

    assert (present["author"], present["tenant"], present["trace_url"]) == ("ann", "acme", traces)
    assert [row["name"] for row in spaces["items"]] == ["inside"]
    words = [*COMMAND, "serve", "--tenant", "acme", "--url", url]
    refused = await asyncio.to_thread(subprocess.run, words, capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2 and "--tenant" in refused.stderr
    words = [*COMMAND, "serve", "--trace-url", "javascript:{trace_id}", "--url", url]
    refused = await asyncio.to_thread(subprocess.run, words, capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2 and "--trace-url" in refused.stderr
    words = [*COMMAND, "serve", "--port", "99999", "--url", f"sqlite:///{tmp_path}/none.db"]
    refused = await asyncio.to_thread(subprocess.run, words, capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2 and "give 0 to 65535" in refused.stderr
    assert not (tmp_path / "none.db").exists()


@pytest.mark.parametrize("has_page", [True, False])
def test_a_link_to_an_inspector_that_is_not_built_says_so(
    has_page: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    serve._tell(PLAIN, "http://localhost:1", "memory://", "http://localhost:1/open#x", has_page=has_page)

    assert ("not built" in capsys.readouterr().err) is not has_page
    assert StaticFiles(has_inspector=False).has_inspector is False


async def test_other_machines_are_not_served_without_a_key(tmp_path: Path) -> None:
    async with keepstate.open(tmp_path / "keepstate.db", values="builtin") as ks:
        app = create_app(ks, keys=Keys(ks))

        await require_keys(app, "127.0.0.1")
        with pytest.raises(NotAllowedError, match="keys add"):
            await require_keys(app, "0.0.0.0")
        await app.keys.add(Key("ann", frozenset(["read"])))
        await require_keys(app, "0.0.0.0")

    words = [*COMMAND, "serve", "--host", "0.0.0.0", "--port", "0", "--url", f"sqlite:///{tmp_path}/other.db"]
    refused = await asyncio.to_thread(subprocess.run, words, capture_output=True, text=True, timeout=60)
    assert refused.returncode == 1 and "keys add" in refused.stderr


@pytest.mark.parametrize(
    ("host", "answer"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("0.0.0.0", False),
     ("::", False), ("10.0.0.1", False), ("example.org", False), ("127.0.0.1.example.org", False),
     ("", False)],
)  # fmt: skip
def test_only_the_loopback_interface_is_taken_for_it(host: str, *, answer: bool) -> None:
    assert is_loopback(host) is answer


def test_an_address_that_cannot_be_bound_is_told() -> None:
    with bind("127.0.0.1", 0) as taken, pytest.raises(InvalidError, match="cannot be bound"):
        bind("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(InvalidError, match="not a host"):
        bind("nowhere.invalid", 0)
    with pytest.raises(InvalidError, match="0 to 65535"):
        bind("127.0.0.1", 70_000)


async def test_a_connection_whose_request_does_not_come_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keepstate.server.running._HEADER_S", 0.2)
    async with served(is_live=True) as door:
        host, port = door.base.removeprefix("http://").split(":")
        silent, slow = [socket.create_connection((host, int(port))) for _ in range(2)]
        slow.sendall(b"GET /healthz HTTP/1.1\r\nHost: ")
        for each in (silent, slow):
            each.settimeout(60)

        with silent, slow:
            ends = await asyncio.gather(*(asyncio.to_thread(_end_of, each) for each in (silent, slow)))

    assert ends == [b"", b""]


def _end_of(connection: socket.socket) -> bytes:
    try:
        return connection.recv(1_000)
    except ConnectionResetError:
        return b""
