"""The example chat, used as by browsers: tabs that follow, reload and stop, on servers that are killed."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

import keepstate
from keepstate import Session

pytestmark = pytest.mark.server
TEN = "0 1 2 3 4 5 6 7 8 9 "


@contextmanager
def serving(url: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    command = [sys.executable, "-m", "tests.processes.serve_chat", url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield f"http://127.0.0.1:{server.stdout.readline().strip()}", server
        finally:
            server.kill()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/chat.db"


class Tab:
    """A tab of a browser: it shows what it hears, and continues after the last event that it has heard."""

    def __init__(self, base: str, chat: str = "c", user: str = "ann") -> None:
        self.base, self.chat, self.user, self.last_id = base, chat, user, ""
        self.texts: dict[str, str] = {}
        self.kinds: list[str] = []

    def _client(self) -> httpx.AsyncClient:
        base = f"{self.base}/chats/{self.chat}"
        return httpx.AsyncClient(base_url=base, cookies={"user": self.user}, timeout=60, verify=False)

    async def ask(self, id: str, text: str) -> httpx.Response:
        async with self._client() as client:
            return await client.post("/questions", json={"id": id, "text": text})

    async def stop(self) -> httpx.Response:
        async with self._client() as client:
            return await client.post("/stop")

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        headers = {"Last-Event-ID": self.last_id} if self.last_id else {}
        async with self._client() as client, client.stream("GET", "/live", headers=headers) as answer:
            answer.raise_for_status()
            yield self._changes(answer)

    async def _changes(self, answer: httpx.Response) -> AsyncIterator[dict[str, Any]]:
        id = ""
        async for line in answer.aiter_lines():
            if line.startswith("id: "):
                id = line[4:]
            elif line.startswith("data: "):
                change = json.loads(line[6:])
                self.last_id = id
                self.kinds.append(change["kind"])
                before = self.texts.get(change["id"], "") if change["kind"] == "delta" else ""
                self.texts[change["id"]] = before + change["text"]
                yield change

    async def show_until(self, *kinds: str, id: str) -> None:
        """Listen until a change of one of the kinds comes for a message."""
        async with self.listening() as changes:
            async for change in changes:
                if change["id"] == id and change["kind"] in kinds:
                    return


async def test_two_tabs_and_one_that_is_reloaded_show_the_same_reply(url: str) -> None:
    with serving(url) as (base, _):
        first, second, reloaded = Tab(base), Tab(base), Tab(base)
        shown = asyncio.gather(*(tab.show_until("message", id="q/1") for tab in (first, second)))

        assert (await first.ask("q", "Count")).json() == {"number": 0}
        assert (await first.ask("q", "Count")).json() == {"number": 0}  # sent again
        await reloaded.show_until("delta", id="q/1")
        await reloaded.show_until("message", id="q/1")
        await shown

        assert first.texts == second.texts == reloaded.texts == {"q": "Count", "q/1": TEN}
        assert reloaded.kinds.count("started") == 1


async def test_any_tab_stops_a_reply(url: str) -> None:
    with serving(url) as (base, _):
        asking, other = Tab(base), Tab(base)
        await asking.ask("q", "Count for ever")
        await other.show_until("delta", id="q/1")

        assert (await other.stop()).json() == {"stopped": True}

        await asking.show_until("stopped", id="q/1")
        assert asking.texts["q/1"].startswith("0 1 ")
        assert (await other.stop()).json() == {"stopped": False}


async def test_a_killed_server_loses_no_question_and_no_word_that_was_shown(url: str) -> None:
    tab = Tab("")
    with serving(url) as (base, server):
        tab.base = base
        await tab.ask("q", "Count for ever")
        await tab.show_until("delta", id="q/1")
        server.kill()
        server.wait()
    seen = tab.texts["q/1"]

    with serving(url) as (base, _):
        tab.base = base
        await tab.show_until("failed", id="q/1")
        await tab.show_until("delta", id="q/2")
        await tab.stop()
        await tab.show_until("stopped", id="q/2")

    assert tab.texts["q/1"].startswith(seen)
    assert tab.texts["q/2"].startswith("0 1 ")


async def test_a_server_killed_after_its_reply_answers_no_second_time(url: str) -> None:
    async with keepstate.open(url) as ks:
        talk, queue = Session("c", user_id="ann", persistence=ks).conversation, ks.space("session/c").queue
        await talk.append({"role": "user", "content": "Count"}, id="q")
        async with talk.reply(id="q/1", author="model") as reply:
            await reply.write("0 1 2")
        await queue.put({"chat": "c", "user": "ann"}, id="q", kind="reply", key="c")
        with serving(url):
            await queue.wait_empty(timeout_s=60)

        assert [told.id for told in await talk.page()] == ["q", "q/1"]


async def test_another_user_reads_asks_and_stops_nothing(url: str) -> None:
    with serving(url) as (base, _):
        await Tab(base).ask("q", "Count")
        stranger, nobody = Tab(base, user="bob"), Tab(base, user="")

        assert (await stranger.ask("x", "Count")).status_code == (await stranger.stop()).status_code == 403
        assert (await nobody.ask("x", "Count")).status_code == 401
        with pytest.raises(httpx.HTTPStatusError, match="403"):
            await stranger.show_until("message", id="q")


async def test_a_hundred_chats_are_answered_at_once(url: str) -> None:
    with serving(url) as (base, _):
        tabs = [Tab(base, chat=f"chat-{n}") for n in range(100)]
        await asyncio.gather(*(tab.ask("q", "Count") for tab in tabs))
        await asyncio.gather(*(tab.show_until("message", id="q/1") for tab in tabs))

        assert {tab.texts["q/1"] for tab in tabs} == {TEN}
