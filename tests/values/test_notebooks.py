"""What notebooks show: tables that are escaped, bounded, without script, and made without the store."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import pytest

import keepstate
from keepstate import Commit, sync
from keepstate.values.notebooks import table

HOSTILE = '<script>alert(1)</script><img src=x onerror="alert(2)">\u202e\x00'


class Reader(HTMLParser):
    """Reads HTML; every element is closed, and only elements of tables occur."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags = set[str]()
        self.attributes = set[str]()
        self.text = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def read(shown: Any) -> Reader:
    html = shown._repr_html_()
    reader = Reader(html)
    assert reader.tags <= {"style", "div", "table", "tr", "th", "td", "b", "span", "details", "summary"}
    assert reader.attributes <= {"class"}
    assert len(html) < 30_000
    return reader


@pytest.fixture
def space() -> Iterator[sync.Space]:
    with sync.open("memory://", author=HOSTILE.replace("\x00", "")) as ks:
        yield ks.space("run/1")


def test_everything_of_a_stranger_is_shown_as_text(space: sync.Space) -> None:
    clean = HOSTILE.replace("\x00", "")
    first = space.history.commit({"goal": HOSTILE, HOSTILE: {HOSTILE: [HOSTILE]}}, message=HOSTILE)
    second = space.history.commit({"goal": "a"}, message=clean, meta={"model": clean})
    space.documents.put(clean, HOSTILE)
    space.events.append({HOSTILE: HOSTILE}, stream=clean)
    space.queue.put({"to": HOSTILE}, id=clean)

    shown: list[Any] = [
        first,
        second,
        space.history.blame("goal"),
        space.history.diff(first.id, second.id),
        space.history.diff(first.id, second.id)[0],
        space.history.checkout(first.id),
        space.documents.entry(clean),
        *space.events.read(stream=clean),
        *space.queue.list("ready"),
        space.documents.page("*"),
        table(space.history.log()),
        table([{HOSTILE: HOSTILE}]),
    ]
    for each in shown:
        text = read(each).text
        assert "<script>alert(1)</script>" in text or each is second
        assert "\u202e" not in text
        assert "\\u{202e}" in text


def test_a_large_state_is_bounded_and_tells_how_much_more_there_is(space: sync.Space) -> None:
    state = {
        "messages": [{"text": "x" * 5_000}] * 45_000,
        "many": {str(n): n for n in range(500)},
        "deep": nested(50),
    }
    checkout = space.history.checkout(space.history.commit(state).id)

    text = read(checkout).text

    assert "list of 45,000" in text
    assert "4,700 more characters" in text
    assert "more items" in text
    assert "rows" in read(table([{"n": n} for n in range(1_000)])).text


def nested(depth: int) -> Any:
    value: Any = "end"
    for _ in range(depth):
        value = [value]
    return value


async def first_commit() -> Commit:
    async with keepstate.open("memory://") as ks:
        history = ks.space("run/1").history
        await history.commit({"plan": {"step": 1}})
        commit = await history.commit({"plan": {"step": 2}}, message="go on")
        part = await history.checkout(commit.id, load=False)
        assert "plan" not in read(part).text  # nothing is loaded, and nothing is read for a repr
        differences = await history.diff("main#1", "main#2")
        assert differences.to_json_patch() == [{"op": "replace", "path": "/plan/step", "value": 2}]
        return commit


def test_a_notebook_needs_no_event_loop() -> None:
    import asyncio

    text = read(asyncio.run(first_commit())).text

    assert "go on" in text
    assert "created_at" in text
