"""The commands `events` and `replay`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from keepstate import sync
from tests.cli.conftest import Keepstate, Started

REDUCER = """
def total(state, event):
    state["n"] = state.get("n", 0) + event.data["n"]
    return state
"""


@pytest.fixture
def stream(url: str, tmp_path: Path) -> Iterator[sync.EventStream]:
    (tmp_path / "reducing.py").write_text(REDUCER)
    with sync.open(url) as ks:
        stream = ks.space("run").events.stream("sums")
        stream.append({"n": 1}, {"n": 2}, id=["a", "b"], type="added")
        stream.append({"n": 3})
        yield stream


def test_events_are_printed_in_order(keepstate: Keepstate, stream: sync.EventStream) -> None:
    whole = keepstate("events", "run", "sums", "--json")
    first, second, third = whole.lines()
    rest = keepstate("events", "run", "sums", "--json", "--after", first["position"], "--limit", "1")

    assert [event["data"]["n"] for event in (first, second, third)] == [1, 2, 3]
    assert (first["id"], first["type"], third["id"]) == ("a", "added@1", None)
    assert rest.lines() == [second]
    assert "#a" in keepstate("events", "run", "sums").out
    assert keepstate("events", "run", "--streams").out.split() == ["sums"]
    assert keepstate("events", "run", "sums", "--follow", "--limit", "1").code == 2


def test_a_limit_of_nothing_is_refused(keepstate: Keepstate, stream: sync.EventStream) -> None:
    ended = keepstate("events", "run", "sums", "--limit", "0")

    assert (ended.code, ended.out) == (2, "")
    assert "`limit` is 0" in ended.err


@pytest.mark.parametrize("option", [("--limit", "1"), ("--after", "1"), ("--follow",)])
def test_a_list_of_streams_takes_no_option_of_events(
    keepstate: Keepstate, stream: sync.EventStream, option: tuple[str, ...]
) -> None:
    ended = keepstate("events", "run", "--streams", *option)

    assert ended.code == 2
    assert "give it alone" in ended.err


def test_following_prints_what_comes(started: Started, stream: sync.EventStream) -> None:
    process = started("events", "run", "sums", "--follow", "--json")
    assert process.stdout is not None
    before = [process.stdout.readline() for _ in range(3)]
    stream.append({"n": 4})

    assert '"n":4' in process.stdout.readline()
    assert '"n":3' in before[-1]


def test_a_replay_tells_the_state_at_any_moment(keepstate: Keepstate, stream: sync.EventStream) -> None:
    first, second, _ = (event.number for event in stream.read())

    def told(*words: str) -> list[object]:
        ended = keepstate("replay", "run", "reducing:total", "--stream", "sums", "--json", *words)
        assert ended.code == 0, ended.err
        return [line["state"] for line in ended.lines()]

    assert told() == [{"n": 6}]
    assert told("--at", str(second)) == [{"n": 3}]
    assert told("--at", "2001-01-01T00:00Z") == [{}]
    assert told("--each", "--initial", '{"n": 10}') == [{"n": 11}, {"n": 13}, {"n": 16}]
    assert str(first) in keepstate("replay", "run", "reducing:total", "--stream", "sums", "--each").out


def test_a_reducer_that_fails_is_told_with_the_event(keepstate: Keepstate, stream: sync.EventStream) -> None:
    stream.append({"m": 1}, type="odd")
    last = stream.last()

    ended = keepstate("replay", "run", "reducing:total", "--stream", "sums", "--each", "--json")

    assert [line["state"] for line in ended.lines()] == [{"n": 1}, {"n": 3}, {"n": 6}]
    assert ended.code == 2
    assert f"reducing:total failed at event {last} (odd@1): KeyError: 'n' (reducing.py, line 3)" in (
        ended.err
    )
    assert "Traceback" not in ended.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("events", "nospace"), "space 'nospace' has no streams"),
        (("events", "nospace", "--streams"), "space 'nospace' has no streams"),
        (("events", "run"), "space 'run' has no stream 'main'; it has 'sums'"),
        (("replay", "run", "reducing:total"), "space 'run' has no stream 'main'; it has 'sums'"),
    ],
)
def test_a_stream_that_is_not_there_is_told(
    words: tuple[str], told: str, keepstate: Keepstate, stream: sync.EventStream
) -> None:
    ended = keepstate(*words)

    assert (ended.code, ended.out) == (1, "")
    assert told in ended.err


@pytest.mark.parametrize(
    "words", [("reducing",), ("nowhere:total",), ("reducing:nothing",), ("reducing:__name__",)]
)
def test_what_is_no_reducer_is_refused(
    words: tuple[str], keepstate: Keepstate, stream: sync.EventStream
) -> None:
    assert keepstate("replay", "run", *words).code == 2


def test_what_is_no_moment_is_refused(keepstate: Keepstate, stream: sync.EventStream) -> None:
    for moment in ("noon", "9" * 40):
        ended = keepstate("replay", "run", "reducing:total", "--stream", "sums", "--at", moment)
        assert ended.code == 2
        assert moment in ended.err


def test_an_error_of_a_module_that_makes_its_names_itself_is_told(
    keepstate: Keepstate, stream: sync.EventStream, tmp_path: Path
) -> None:
    (tmp_path / "making.py").write_text(
        "def __getattr__(name):\n    raise ImportError('an extra is missing')\n"
    )

    ended = keepstate("replay", "run", "making:total", "--stream", "sums")

    assert (ended.code, "making:total cannot be imported: ImportError" in ended.err) == (2, True)
