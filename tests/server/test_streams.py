"""Streams on a socket: resumed without a gap, ended with their key, and never held by a slow reader."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest

import keepstate
from keepstate.server import Key, Keys, Limits
from keepstate.sessions import ANY_USER, Session
from tests.server.conftest import Served, sent_events, served, some

RUN = {"space": "run/1"}


def stream(
    client: httpx.AsyncClient, path: str, last: str | None = None, **query: Any
) -> AbstractAsyncContextManager[httpx.Response]:
    headers = {} if last is None else {"Last-Event-ID": last}
    return client.stream("GET", path, params={**RUN, **query}, headers=headers)


async def test_a_listing_goes_on_after_the_last_event_wherever_it_began() -> None:
    """A browser that connects again sends the parameters of its first request, and the last event."""
    async with served(is_live=True) as door:
        client = await door.caller()

        def listing(last: str | None = None, **query: str) -> AbstractAsyncContextManager[httpx.Response]:
            headers = {} if last is None else {"Last-Event-ID": last}
            return client.stream("GET", "/v1/find/watch", params={"kind": "queue", **query}, headers=headers)

        async with listing() as response:
            coming = asyncio.create_task(some(sent_events(response), 1))
            while not coming.done():  # the listing begins some time after its response
                await door.ks.space("run/1").queue.put(1)
                await asyncio.sleep(0.01)
            (first,) = coming.result()
        await door.ks.space("run/2").queue.put(1)
        async with listing(after=first.id) as response:
            sent = sent_events(response)
            (second,) = await some(sent, 1)
            while second.data["found"]["space"] != "run/2":
                (second,) = await some(sent, 1)
        await door.ks.space("run/3").queue.put(1)

        async with listing(second.id, after=first.id) as response:
            (third,) = await some(sent_events(response), 1)

        assert third.data["found"]["space"] == "run/3"


async def test_a_watch_tells_each_change_and_resumes_after_the_last_one_that_was_seen() -> None:
    async with served(is_live=True) as door:
        client, documents = await door.caller(), door.ks.space("run/1").documents

        async with stream(client, "/v1/documents/watch", pattern="k*") as response:
            events = sent_events(response)
            (ready,) = await some(events, 1)
            await documents.put("k1", {"a": 1})
            await documents.put("other", 1)
            await documents.put("k1", (2,))
            first, second = await some(events, 2)
        await documents.put("k2", 3)
        await documents.delete("k1")
        async with stream(client, "/v1/documents/watch", first.id, pattern="k*") as response:
            resumed = await some(sent_events(response), 3)
        async with stream(client, "/v1/documents/watch", after=ready.id, pattern="k*") as response:
            whole = await some(sent_events(response), 5)

        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-store"
        assert (ready.name, first.name) == ("ready", None)
        assert (first.data["kind"], first.data["new"]) == ("created", {"a": 1})
        assert second.data["new"] == {"@type": "tuple", "items": [2]}
        told = [(event.data["key"], event.data["kind"]) for event in resumed if event.name is None]
        assert told == [("k1", "updated"), ("k2", "created")]
        assert [event.id for event in whole[1:3]] == [first.id, second.id]
        assert all(event.id for event in whole)


async def test_the_id_of_a_stream_wins_over_the_query_that_began_it() -> None:
    async with served(is_live=True) as door:
        client, events = await door.caller(), door.ks.space("run/1").events
        for number in range(4):
            await events.append(number)
        positions = [event.position for event in await events.read()]

        async with stream(client, "/v1/events/follow", positions[2], after=positions[0]) as response:
            (found,) = await some(sent_events(response), 1)

        assert (found.data["data"], found.id) == (3, positions[3])


async def test_an_event_reaches_its_followers_as_it_comes() -> None:
    async with served(is_live=True) as door:
        client, events = await door.caller(), door.ks.space("run/1").events

        async with stream(client, "/v1/events/follow") as response:
            coming = sent_events(response)
            for number in range(5):
                await events.append(number)
                (found,) = await some(coming, 1)
                assert (found.data["data"], found.data["author"]) == (number, None)


async def test_a_reply_is_followed_while_it_is_written_and_stopped_over_http() -> None:
    async with served(is_live=True) as door:
        client = await door.caller()
        typed = keepstate.open(await door.ks.opened())
        talk = Session("talk", user_id=ANY_USER, persistence=typed).conversation
        await talk.append({"role": "user", "content": "hello"})

        async def write() -> bool:
            async with talk.reply(flush_s=0.01) as reply:
                for word in ("one ", "two "):
                    await reply.write(word)
                async with asyncio.timeout(60):
                    while not reply.stopped:
                        await asyncio.sleep(0.02)
                return reply.stopped

        async with client.stream("GET", "/v1/conversation/follow", params={"session": "talk"}) as response:
            writing = asyncio.create_task(write())
            told, kinds = "", []
            async for event in sent_events(response):
                kinds.append(event.data["kind"])
                if kinds[-1] in ("started", "delta"):
                    told += event.data["text"]
                if told == "one two " and kinds[-1] != "stopped":
                    stopped = (await client.post("/v1/conversation/stop", params={"session": "talk"})).json()
                if kinds[-1] == "stopped":
                    break

        assert await writing and stopped == {"stopped": True}
        assert kinds[0] == "message" and event.data["entry"]["message"]["content"] == "one two "
        await typed.close()


async def test_a_stream_that_cannot_begin_or_go_on_says_why() -> None:
    async with served(is_live=True) as door:
        client, space = await door.caller(), door.ks.space("run/1")
        await space.events.append(1)
        (event,) = await space.events.read()

        found = []
        for path, after in (
            ("/v1/events/follow", "nonsense"),
            ("/v1/documents/watch", event.position),
            ("/v1/events/follow", "A" * 40),
        ):
            async with stream(client, path, after) as response:
                found += [
                    (each.name, each.data["status"], each.data["code"])
                    async for each in sent_events(response)
                ]

        assert found == [("problem", 422, "invalid")] * 3


async def test_an_event_that_is_too_large_comes_without_its_value() -> None:
    async with served(is_live=True, limits=Limits(event_bytes=1_000)) as door:
        client, space = await door.caller(), door.ks.space("run/1")
        await space.events.append("x" * 2_000)
        await space.events.append("small")

        async with stream(client, "/v1/events/follow") as response:
            large, small = await some(sent_events(response), 2)
        page = (await client.get("/v1/events", params={**RUN, "limit": 1})).json()["items"]

        assert (large.data["data"], large.data["is_cut"], small.data["data"]) == (None, True, "small")
        assert page[0]["position"] == large.id and len(page[0]["data"]) == 2_000


async def test_a_stream_sends_comments_while_nothing_comes() -> None:
    async with served(is_live=True, limits=Limits(comment_s=0.05)) as door:
        client = await door.caller()

        async with stream(client, "/v1/documents/watch") as response, asyncio.timeout(60):
            lines = []
            async for line in response.aiter_lines():
                lines.append(line)
                if lines.count(": no news") == 3:
                    break

        (retry,) = [line for line in lines if line.startswith("retry: ")]
        assert 1_000 <= int(retry.removeprefix("retry: ")) < 2_000


# ---- the end of a stream


@pytest.mark.parametrize("bound_s", [60, pytest.param(1, marks=pytest.mark.timed)])
async def test_revoking_a_key_ends_its_streams_on_every_server_within_a_second(
    tmp_path: Path, bound_s: float
) -> None:
    url = f"sqlite:///{tmp_path}/keepstate.db"
    async with served(url, is_live=True) as one, served(url, is_live=True) as two:
        secret, kept = await one.secret("gone"), await one.secret("kept")
        async with asyncio.timeout(60):
            while two.keys.find(secret) is None or two.keys.find(kept) is None:
                await asyncio.sleep(0.02)
        loop = asyncio.get_running_loop()

        async def end_of(door: Served, shown: str) -> tuple[float, str | None]:
            async with stream(door.client(shown), "/v1/documents/watch") as response:
                last = None
                async for event in sent_events(response):
                    last = event.data.get("code")
                    started.release()
            return loop.time(), last

        started = asyncio.Semaphore(0)
        ends = [asyncio.create_task(end_of(door, secret)) for door in (one, two)]
        others = [asyncio.create_task(end_of(door, kept)) for door in (one, two)]
        for _ in range(4):
            await started.acquire()
        async with keepstate.open(url, values="builtin") as elsewhere:
            await Keys(elsewhere).revoke("gone")
            began = loop.time()
        async with asyncio.timeout(60):
            ended = await asyncio.gather(*ends)

        assert [code for _, code in ended] == ["unauthenticated"] * 2
        assert all(at - began < bound_s for at, _ in ended), [at - began for at, _ in ended]
        assert [task.done() for task in others] == [False, False]
        assert [(await door.client(secret).get("/v1/self")).status_code for door in (one, two)] == [401, 401]
        for task in others:
            task.cancel()


async def test_a_stream_ends_when_its_key_expires() -> None:
    async with served(is_live=True) as door:
        until = datetime.now(UTC) + timedelta(seconds=1.5)
        client = await door.caller(expires_at=until)

        async with stream(client, "/v1/documents/watch") as response, asyncio.timeout(60):
            codes = [event.data.get("code") async for event in sent_events(response)]

        assert codes == [None, "unauthenticated"] and datetime.now(UTC) >= until - timedelta(seconds=0.1)


async def test_a_key_that_is_replaced_ends_the_streams_of_the_old_one() -> None:
    async with served(is_live=True) as door:
        client = await door.caller("ann")

        async with stream(client, "/v1/documents/watch") as response, asyncio.timeout(60):
            events = sent_events(response)
            await some(events, 1)
            await door.keys.revoke("ann")
            secret = await door.keys.add(Key("ann", frozenset(["read"])))
            (last,) = await some(events, 1)

        assert last.data["code"] == "unauthenticated"
        assert (await door.client(secret).get("/v1/self")).json()["rights"] == ["read"]


async def test_a_reader_that_reads_nothing_is_cut_off_and_holds_little() -> None:
    async with served(is_live=True, limits=Limits(stall_s=0.5)) as door:
        secret, space = await door.secret(), door.ks.space("run/1")
        host, port = door.base.removeprefix("http://").split(":")
        with socket.socket() as lazy:
            lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            lazy.connect((host, int(port)))
            lazy.sendall(head_of("GET", f"/v1/events/follow?{urlencode(RUN)}", secret))
            for _ in range(40):
                await space.events.append(*["x" * 200_000] * 4)
            quick = await door.caller("bob")
            assert (await quick.get("/v1/self")).status_code == 200
            async with asyncio.timeout(60):
                while 'keepstate_streams_ended_total{reason="slow_reader"} 1' not in door.app.metrics.text():
                    await asyncio.sleep(0.05)
            lazy.settimeout(10)
            read = await asyncio.to_thread(_read_to_the_end, lazy)

        assert read < 40 * 4 * 200_000 / 2 and door.app.metrics.streams == 0


def _read_to_the_end(lazy: socket.socket) -> int:
    read = 0
    try:
        while chunk := lazy.recv(65_536):
            read += len(chunk)
    except ConnectionResetError:
        pass
    return read


async def test_a_client_that_goes_frees_its_stream() -> None:
    async with served(is_live=True) as door:
        client = await door.caller()
        for _ in range(3):
            async with stream(client, "/v1/documents/watch") as response:
                await some(sent_events(response), 1)

        async with asyncio.timeout(60):
            while door.app.metrics.streams:
                await asyncio.sleep(0.02)
        assert 'keepstate_streams_ended_total{reason="gone"} 3' in door.app.metrics.text()


async def test_a_key_has_a_number_of_streams() -> None:
    async with served(is_live=True, limits=Limits(streams=1)) as door:
        client, other = await door.caller("ann"), await door.caller("bob")

        async with stream(client, "/v1/documents/watch") as first:
            await some(sent_events(first), 1)
            async with stream(client, "/v1/documents/watch") as second:
                refused = (second.status_code, (await second.aread()).decode())
            async with stream(other, "/v1/documents/watch") as third:
                assert third.status_code == 200

        assert refused[0] == 429 and "too_many_streams" in refused[1]


async def test_streams_that_begin_at_once_are_counted_before_their_readers_take_anything() -> None:
    async with served(limits=Limits(streams=1)) as door:
        secret, statuses = await door.secret(), list[int]()
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/v1/documents/watch",
            "query_string": b"space=run",
            "headers": [(b"host", b"localhost"), (b"authorization", f"Bearer {secret}".encode())],
        }

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])
                await asyncio.Event().wait()

        async def receive() -> Any:
            return await asyncio.Event().wait()

        begun = [asyncio.create_task(door.app(dict(scope), receive, send)) for _ in range(2)]
        async with asyncio.timeout(60):
            while len(statuses) < 2:
                await asyncio.sleep(0.01)
        for task in begun:
            task.cancel()
        await asyncio.gather(*begun, return_exceptions=True)

        assert statuses == [200, 429]
        again = await door.client(secret).get("/v1/self")
        assert again.status_code == 200 and door.app.metrics.streams == 0


# ---- connections


def head_of(method: str, path: str, secret: str, *more: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {secret}", *more]
    return "\r\n".join([*lines, "Content-Type: application/json", "", ""]).encode()


async def raw(door: Served, text: bytes) -> bytes:
    """Send bytes, and return all that comes back."""
    host, port = door.base.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(text)
    await writer.drain()
    try:
        async with asyncio.timeout(60):
            return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize(
    "path",
    [
        "/v1/../healthz",
        "/open/../v1/self",
        "/approvals/../v1/self",
        "/healthz/",
        "/v1/self%2f..",
        "/%2e%2e/v1/self",
        "/healthz%00",
    ],
)
async def test_a_path_is_taken_as_it_stands(path: str) -> None:
    async with served(is_live=True) as door:
        answer = await raw(
            door, f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
        )

        assert answer.startswith(b"HTTP/1.1 401 "), answer


async def test_a_body_that_does_not_come_or_is_cut_off_writes_nothing() -> None:
    async with served(is_live=True, limits=Limits(body_s=0.5)) as door:
        secret = await door.secret()
        path = "/v1/document?space=run&key=k"
        cut = head_of("PUT", path, secret, "Content-Length: 100") + b"12"
        piece = b"100000\r\n" + b" " * 0x100000 + b"\r\n"

        slow = await raw(door, cut)
        host, port = door.base.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(cut)
        await writer.drain()
        writer.transport.abort()
        large = await raw(door, head_of("PUT", path, secret, "Content-Length: 99999999") + b"1")
        chunked = await raw(door, head_of("PUT", path, secret, "Transfer-Encoding: chunked") + piece * 10)

        assert slow.startswith(b"HTTP/1.1 408 ") and b"slow_body" in slow
        assert large.startswith(b"HTTP/1.1 413 ") and (not chunked or chunked.startswith(b"HTTP/1.1 413 "))
        assert [name async for name in door.ks.spaces()] == []


async def test_a_claim_of_a_client_that_went_away_takes_no_task() -> None:
    async with served(is_live=True) as door:
        secret, queue = await door.secret(), door.ks.space("run/1").queue
        host, port = door.base.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        body = b'{"lease_s": 600, "wait_s": 15}'
        head = head_of("POST", f"/v1/tasks/claim?{urlencode(RUN)}", secret, f"Content-Length: {len(body)}")
        writer.write(head + body)
        await writer.drain()
        await asyncio.sleep(0.6)
        writer.transport.abort()
        async with asyncio.timeout(60):
            while 'operation="claimTasks",status="499"' not in door.app.metrics.text():
                await asyncio.sleep(0.05)

        await queue.put("kept")

        await asyncio.sleep(0.3)
        assert (await queue.counts())["ready"] == 1


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/tasks/claim", {"lease_s": 60, "wait_s": 20}),
        ("/v1/leases/acquire", {"name": "l", "ttl_s": 60, "wait_s": 20}),
        ("/v1/task/result", None),
    ],
)
@pytest.mark.parametrize("what", ["revoked", "stopping"])
async def test_a_long_poll_ends_with_its_key_and_with_the_server(
    path: str, body: dict[str, Any] | None, what: str
) -> None:
    async with served(is_live=True) as door:
        client, space = await door.caller(), door.ks.space("run/1")
        await space.queue.put(1, id="t", kind="other", delay_s=3_600)
        await space.leases.acquire("l", 600)
        query = {**RUN, **({"id": "t", "wait_s": "20"} if body is None else {})}
        method = "GET" if body is None else "POST"
        waiting = asyncio.create_task(client.request(method, path, params=query, json=body))
        await asyncio.sleep(0.5)
        assert not waiting.done()

        if what == "revoked":
            await door.keys.revoke("ann")
        else:
            door.app.stop()

        async with asyncio.timeout(60):
            answer = await waiting
        expected = (401, "unauthenticated") if what == "revoked" else (503, "stopping")
        assert (answer.status_code, answer.json()["code"]) == expected
