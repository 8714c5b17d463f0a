"""The endpoint against what a client may send: the right status, nothing written, and the server goes on."""

from __future__ import annotations

import asyncio
import select
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psycopg
import pytest
from keepstate_testing.servers import Postgres

import keepstate.sync
from keepstate._finish import finish
from keepstate._runner import TaskRunner, ThreadRunner
from keepstate.errors import InvalidError, OutcomeUnknownError, StoreUnavailableError, UnsupportedError
from keepstate.names import ALL
from keepstate.server import StoreScope, store_app
from keepstate.stores.http import wire
from keepstate.stores.http.store import HttpStore
from keepstate.stores.memory import MemoryStore
from keepstate.stores.protocol import Batch, Check, Put
from keepstate.stores.urls import StoreUrl
from keepstate.testing.store_contract.stage import applied, outcome_of, value_of
from keepstate.values import limits
from tests.stores.http.serving import StoreServer, sqlite_url

A = b"\x01a"
GOOD = {
    "authorization": "Bearer whole",
    "content-type": wire.MEDIA_TYPE,
    wire.VERSION_HEADER: str(wire.VERSION),
}
PUT = wire.ApplyCall(batches=[Batch("hostile", [Put(A, b"1")])])


def put(key: bytes, value: bytes) -> dict[str, Any]:
    return {"type": "Put", "key": key, "value": value}


def encoded(**fields: Any) -> bytes:
    return msgspec.msgpack.encode(fields)


def batches(*given: Any) -> bytes:
    return encoded(batches=[{"space": "hostile", "writes": [put(A, b"1")]}, *given])


BODIES: dict[str, tuple[str, bytes, int]] = {
    "nothing": ("apply", b"", 400),
    "not MessagePack": ("apply", b"\xc1", 400),
    "JSON": ("apply", b'{"batches": []}', 400),
    "half of a call": ("apply", wire.encode(PUT)[:-3], 400),
    "more than a call": ("apply", wire.encode(PUT) + b"\x00", 400),
    "an array": ("apply", msgspec.msgpack.encode([1, 2]), 400),
    "depth": ("apply", b"\x81\xa7batches" + b"\x91" * 100_000 + b"\xc0", 400),
    "depth in a field that no batch has": (
        "apply", b"\x81\xa7batches\x91\x82\xa5space\xa1a\xa1x" + b"\x91" * 100_000 + b"\xc0", 400,
    ),
    "a length that is not there": ("apply", b"\x81\xa7batches\xdd\xff\xff\xff\xff", 400),
    "bytes that are not there": ("read", b"\x82\xa5space\xa1a\xa4keys\x91\xc6\xff\xff\xff\xff", 400),
    "a field too many": ("read", encoded(space="a", keys=[A], more=1), 400),
    "a key of text": ("read", encoded(space="a", keys=["a"]), 400),
    "a name that is not UTF-8": ("read", b"\x82\xa5space\xa1\xff\xa4keys\x90", 400),
    "no keys": ("read", encoded(space="a"), 400),
    "a name of no space": ("read", encoded(space="", keys=[]), 422),
    "1,001 keys": ("read", encoded(space="a", keys=[A] * 1001), 422),
    "a negative time": ("read", encoded(space="a", keys=[A], at_ms=-1), 422),
    "a mark of text": ("read", encoded(space="a", keys=[], seen="mark"), 400),
    "a negative mark": ("read", encoded(space="a", keys=[], seen=[-1, b"", b""]), 422),
    "a mark beyond counting": ("read", encoded(space="a", keys=[], seen=[2**63, b"", b""]), 422),
    "a malformed batch after a good one": ("apply", batches({"space": "x", "writes": [], "at": -1}), 422),
    "a write in no section": (
        "apply", batches({"space": "x", "writes": [put(b"\x07", b"")]}), 422,
    ),
    "a write of no kind": ("apply", batches({"space": "hostile", "writes": [{"type": "Drop"}]}), 400),
    "129 batches": ("apply", batches(*[{"space": "hostile", "writes": []}] * 128), 422),
    "a value too long": (
        "apply",
        batches({"space": "x", "writes": [put(A, bytes(limits.VALUE_BYTES + 200))]}),
        422,
    ),
    "a mark of a space without a batch": (
        "apply",
        encoded(batches=[{"space": "hostile", "writes": []}], seen={"b": [1, b"", b""]}),
        422,
    ),
    "a limit of 0": ("spaces", encoded(limit=0), 422),
    "a limit beyond all": ("scan", encoded(space="a", prefix=A, limit=2**64 - 1), 422),
    "a prefix in no section": ("scan", encoded(space="a", prefix=b"\x09", limit=1), 422),
    "1,001 names": ("changed", encoded(spaces=["a"] * 1001), 422),
    "16,385 names in a stream": ("hints", encoded(spaces=["a"] * 16_385), 422),
    "a drop at revision 0": ("drop", encoded(space="hostile", at=0), 422),
}  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    with StoreServer(sqlite_url(tmp_path_factory.mktemp("endpoint"))) as server:
        yield server


def ask(
    server: StoreServer, name: str, body: bytes, *, method: str = "POST", **headers: str
) -> tuple[httpx.Response, wire.Problem]:
    """Return the response to a request that must be refused, and its problem."""
    sent = {**GOOD, **{key.replace("_", "-"): text for key, text in headers.items()}}
    response = httpx.request(
        method, f"http://127.0.0.1:{server.port}/store/{name}", content=body, headers=sent, timeout=20
    )
    assert response.headers["content-type"] == wire.PROBLEM_TYPE, response.content
    problem = msgspec.msgpack.decode(response.content, type=wire.Problem)
    assert problem.status == response.status_code
    return response, problem


def written(server: StoreServer) -> int:
    """Return the revision of the space that hostile calls name."""
    store = finish(HttpStore(StoreUrl.parse(server.url()), runner=ThreadRunner()).open())
    with closing_store(store):
        return finish(store.read("hostile", [])).revision


def closing_store(store: HttpStore) -> Any:
    return closing(type("Closing", (), {"close": lambda self: finish(store.close())})())


@pytest.mark.parametrize("wrong", BODIES)
def test_a_hostile_body_is_refused_and_nothing_is_written(server: StoreServer, wrong: str) -> None:
    name, body, status = BODIES[wrong]

    _, problem = ask(server, name, body)

    assert problem.status == status, problem
    assert problem.code == "invalid"
    assert written(server) == 0


@pytest.mark.parametrize(
    ("headers", "method", "name", "status"),
    [
        ({"authorization": ""}, "POST", "apply", 401),
        ({"authorization": ""}, "POST", "no-such-call", 401),
        ({"authorization": ""}, "GET", "apply", 401),
        ({"authorization": "Bearer stolen"}, "POST", "apply", 403),
        ({}, "POST", "no-such-call", 404),
        ({}, "POST", "", 404),
        ({}, "POST", "apply/", 404),
        ({}, "POST", "../store/apply2", 404),
        ({}, "GET", "apply", 405),
        ({}, "PUT", "apply", 405),
        ({"content_type": "application/json"}, "POST", "apply", 415),
        ({"content_type": "text/plain"}, "POST", "apply", 415),
        ({"content_encoding": "gzip"}, "POST", "apply", 415),
        ({"content_encoding": "identity"}, "POST", "apply", 415),
        ({wire.VERSION_HEADER: ""}, "POST", "apply", 501),
        ({wire.VERSION_HEADER: "0"}, "POST", "apply", 501),
        ({wire.VERSION_HEADER: "2"}, "POST", "apply", 501),
        ({wire.VERSION_HEADER: "one"}, "POST", "apply", 501),
    ],
)
def test_a_request_of_a_wrong_form_is_refused(
    server: StoreServer, headers: dict[str, str], method: str, name: str, status: int
) -> None:
    response, problem = ask(server, name, wire.encode(PUT), method=method, **headers)

    assert problem.status == status
    assert response.headers["cache-control"] == "no-store"
    if status == 401:
        assert response.headers["www-authenticate"] == "Bearer"
    if status == 405:
        assert response.headers["allow"] == "POST"
    assert written(server) == 0


def connected(server: StoreServer, length: str, *more: str) -> socket.socket:
    """Return a connection that has sent the head of a call."""
    link = socket.create_connection(("127.0.0.1", server.port), 60)
    head = ["POST /store/apply HTTP/1.1", "host: a", *(f"{name}: {text}" for name, text in GOOD.items())]
    link.sendall("\r\n".join([*head, length, *more, "", ""]).encode())
    return link


def status_of(link: socket.socket) -> int:
    with closing(link):
        return int(link.recv(4096).split()[1])


def test_a_body_over_the_limit_is_refused_before_it_is_read(server: StoreServer) -> None:
    assert status_of(connected(server, f"content-length: {wire.BODY_BYTES + 1}")) == 413
    assert status_of(connected(server, f"content-length: {10**19}")) == 413


def test_a_body_that_grows_over_the_limit_is_cut_off(tmp_path: Path) -> None:
    with StoreServer(sqlite_url(tmp_path)) as server:
        link = connected(server, "transfer-encoding: chunked")
        part = bytes(1 << 20)
        for _ in range(10):
            link.sendall(b"%x\r\n" % len(part) + part + b"\r\n")

        assert status_of(link) == 413
        assert written(server) == 0


def test_bodies_that_are_held_at_once_have_a_bound(tmp_path: Path) -> None:
    with StoreServer(sqlite_url(tmp_path), "held=300000") as server:
        hold_bodies(server)


def hold_bodies(server: StoreServer) -> None:
    links = [connected(server, "content-length: 200000") for _ in range(2)]
    for link in links:
        link.sendall(bytes(190_000))

    [refused], _, _ = select.select(links, [], [], 60)
    assert status_of(refused) == 503
    [held] = set(links) - {refused}
    held.close()
    status = 503
    while status == 503:  # until the server has noticed
        again = connected(server, "content-length: 200000")
        again.sendall(bytes(200_000))
        status = status_of(again)
    assert status == 400, "what a client left is not held any more"


def test_a_body_that_does_not_come_ends_at_the_deadline(server: StoreServer) -> None:
    link = connected(server, "content-length: 100", f"{wire.DEADLINE_HEADER}: 200")
    link.sendall(b"\x81")

    assert status_of(link) == 408


def test_a_call_that_is_cut_off_writes_nothing(server: StoreServer) -> None:
    body = wire.encode(PUT)
    with closing(connected(server, f"content-length: {len(body)}")) as link:
        link.sendall(body[:-1])
    time.sleep(0.2)

    assert written(server) == 0


# ---- versions


def open_handle(server: StoreServer) -> keepstate.sync.Keepstate:
    return keepstate.sync.open(server.url())


@pytest.mark.parametrize(("ours", "theirs"), [(1, 1), (1, 2), (2, 1), (2, 2), (3, 2), (2, 3)])
def test_neighbouring_versions_work_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ours: int, theirs: int
) -> None:
    monkeypatch.setattr(wire, "VERSION", ours)
    with StoreServer(sqlite_url(tmp_path), f"version={theirs}") as server, open_handle(server) as ks:
        ks.space("run").documents.put("plan", 1)
        assert ks.space("run").documents.get("plan") == 1


@pytest.mark.parametrize(("ours", "theirs"), [(1, 3), (3, 1)])
def test_versions_further_apart_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ours: int, theirs: int
) -> None:
    monkeypatch.setattr(wire, "VERSION", ours)
    with (
        StoreServer(sqlite_url(tmp_path), f"version={theirs}") as server,
        pytest.raises(UnsupportedError, match="Upgrade"),
    ):
        open_handle(server)


# ---- the store behind


def test_a_store_that_is_down_is_unavailable_and_its_place_is_not_told(postgres_server: Postgres) -> None:
    behind = postgres_server.create_database()
    with StoreServer(behind) as server:
        store = finish(HttpStore(StoreUrl.parse(server.url(retry_for_s=0)), runner=ThreadRunner()).open())
        finish(applied(store, "run", Put(A, b"1")))
        with psycopg.connect(behind) as rows:
            rows.execute("LOCK TABLE keepstate.space IN ACCESS EXCLUSIVE MODE")
            sent = {**GOOD, wire.DEADLINE_HEADER: "300"}
            told = [
                ask_with(server, "read", wire.ReadCall(space="run", keys=[A]), sent),
                ask_with(server, "apply", wire.ApplyCall(batches=[Batch("run", [Put(A, b"2")])]), sent),
            ]
        finish(store.close())
    postgres_server.drop_database(behind)

    assert [(problem.status, problem.code) for problem in told] == [
        (503, "unavailable"),
        (504, "outcome_unknown"),
    ]
    place = behind.rpartition("/")[2]
    for problem in told:
        text = repr(problem)
        assert place not in text and "postgres" not in text and str(postgres_server.port) not in text


def ask_with(server: StoreServer, name: str, call: wire.Call, headers: dict[str, str]) -> wire.Problem:
    address = f"http://127.0.0.1:{server.port}/store/{name}"
    response = httpx.post(address, content=wire.encode(call), headers=headers, timeout=20)
    return msgspec.msgpack.decode(response.content, type=wire.Problem)


def test_a_store_that_is_not_open_and_async_is_not_served() -> None:
    store = finish(MemoryStore(runner=ThreadRunner()).open())
    for given in (store, MemoryStore(runner=TaskRunner())):
        with pytest.raises(InvalidError, match="async"):
            store_app(given, authorise=lambda request: StoreScope(tenant=ALL))
    finish(store.close())


# ---- streams of hints


def stream(server: StoreServer, key: str = "whole") -> Any:
    return httpx.stream(
        "POST",
        f"http://127.0.0.1:{server.port}/store/hints",
        content=wire.encode(wire.HintsCall(spaces=["run", "other"])),
        headers={**GOOD, "authorization": f"Bearer {key}"},
        timeout=20,
    )


def frames(response: httpx.Response) -> Iterator[list[str]]:
    received = b""
    for part in response.iter_raw():
        received += part
        while len(received) >= 4 and len(received) >= (end := 4 + int.from_bytes(received[:4])):
            yield msgspec.msgpack.decode(received[4:end])
            received = received[end:]


def test_a_stream_names_the_spaces_that_changed(server: StoreServer) -> None:
    store = finish(HttpStore(StoreUrl.parse(server.url()), runner=ThreadRunner()).open())
    with stream(server) as response:
        names = frames(response)
        assert next(names) == []
        finish(applied(store, "elsewhere", Put(A, b"1")))
        finish(applied(store, "run", Put(A, b"1")))

        heard = set(next(names))  # the store may name each space once when a listener begins
        while "run" not in heard:
            heard |= set(next(names))
        assert heard <= {"run", "other"}
    finish(store.close())


def test_a_key_that_is_forgotten_ends_its_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with StoreServer(sqlite_url(tmp_path)) as server, stream(server, "forgotten") as response:
        names = frames(response)
        assert next(names) == []
        (tmp_path / "forget").touch()

        assert all({*changed} <= {"run", "other"} for changed in names)


def test_a_server_that_is_told_to_end_ends_its_streams_in_order(tmp_path: Path) -> None:
    with StoreServer(sqlite_url(tmp_path)) as server, stream(server) as response:
        names = frames(response)
        assert next(names) == []

        server.stop()

        assert all({*changed} <= {"run", "other"} for changed in names)


# ---- the client and what is not a server of keepstate


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://?key=a", "does not name one server"),
        ("http://a:1,b:2", "does not name one server"),
        ("http://me:secret@localhost:1", "option key"),
        ("http://localhost:1?keys=a", "does not have an option"),
        ("http://localhost:1?timeout_s=0", "timeout_s"),
        ("http://localhost:1?key=%C3%A9", "character that no key has"),
        ("https://localhost:1?tls_ca=/nowhere.pem", "tls_ca"),
    ],
)
def test_a_url_that_names_no_server_says_what_is_wrong(url: str, said: str) -> None:
    with pytest.raises(InvalidError, match=said) as caught:
        keepstate.sync.open(url)

    assert "secret" not in str(caught.value)


def test_a_key_is_never_shown(server: StoreServer) -> None:
    store = HttpStore(StoreUrl.parse(server.url("stolen")), runner=ThreadRunner())

    with pytest.raises(keepstate.KeepstateError) as caught:
        finish(store.open())

    assert "stolen" not in f"{store!r} {store.url} {caught.value}"


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 3\r\n\r\nbad", OutcomeUnknownError),
        (b"HTTP/1.1 429 Too Many\r\ncontent-length: 0\r\n\r\n", StoreUnavailableError),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n", OutcomeUnknownError),
        (b"not HTTP at all\r\n\r\n", OutcomeUnknownError),
    ],
)  # fmt: skip
def test_what_stands_between_is_judged_by_its_answer(
    server: StoreServer, answer: bytes, kind: type[Exception]
) -> None:
    """A small proxy that passes on what opens the store, and gives the answer to the batches itself."""
    asyncio.run(_judged(server, answer, kind))


async def _judged(server: StoreServer, answer: bytes, kind: type[Exception]) -> None:
    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        size = next(
            int(line.split(b":")[1])
            for line in head.lower().split(b"\r\n")
            if line.startswith(b"content-length")
        )
        body = await reader.readexactly(size)
        if b"/store/apply" in head:
            writer.write(answer)
        else:
            up, down = await asyncio.open_connection("127.0.0.1", server.port)
            down.write(head.replace(b"\r\n", b"\r\nconnection: close\r\n", 1) + body)
            writer.write(await up.read())
            down.close()
        await writer.drain()
        writer.close()

    proxy = await asyncio.start_server(carry, "127.0.0.1", 0)
    port = proxy.sockets[0].getsockname()[1]
    url = StoreUrl.parse(f"http://127.0.0.1:{port}?key=whole&retry_for_s=0")
    store = await HttpStore(url, runner=TaskRunner()).open()

    outcome = await outcome_of(store, "between", Put(A, b"1"), checks=[Check(A, version=0)])

    assert type(outcome) is kind, outcome
    assert await value_of(store, "between", A) is None
    await store.close()
    proxy.close()
