"""Transcripts in each of their forms are the same conversations; anything else is refused at its place."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from keepstate.cli.transcripts import Piece, Transcript
from keepstate.errors import InvalidError

USER = {"role": "user", "content": "hi"}
CALL = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}
TALK = [USER, CALL]


def pieces(text: str | bytes, name: str = "chat.json", **options: Any) -> list[Piece]:
    data = text if isinstance(text, bytes) else text.encode()
    return list(Transcript(name, io.BytesIO(data), **options).pieces())


def told(text: str | bytes, name: str = "chat.json", **options: Any) -> list[tuple[Any, ...]]:
    found = pieces(text, name, **options)
    return [(piece.id, piece.start, list(piece.messages), piece.fields) for piece in found]


def lines(*values: Any) -> str:
    return "".join(json.dumps(value) + "\n" for value in values)


@pytest.mark.parametrize(
    "value",
    [
        TALK,
        {"messages": TALK},
        {"traj": TALK},
        {"whatever": TALK},
        {"traj": {"messages": TALK}},
        {"tools": [{"name": "f"}], "messages": TALK},
    ],
)
@pytest.mark.parametrize("indent", [None, 2])
def test_one_conversation_has_no_name(value: Any, indent: int | None) -> None:
    ((id, start, messages, _),) = told(json.dumps(value, indent=indent))

    assert (id, start, messages) == (None, 0, TALK)


@pytest.mark.parametrize("wrapped", [lambda many: many, lambda many: {"version": 1, "data": many}])
def test_many_conversations_have_their_ids_or_their_places(wrapped: Any) -> None:
    many = [{"messages": TALK}, {"id": "a", "traj": TALK}, {"task_id": 7, "trial": 2, "chat": TALK}, TALK]

    found = told(json.dumps(wrapped(many)))

    assert [(id, messages) for id, _, messages, _ in found] == [
        ("0", TALK), ("a", TALK), ("7/2", TALK), ("3", TALK),
    ]  # fmt: skip


def test_ids_can_be_left_aside() -> None:
    text = json.dumps([{"id": "a", "messages": TALK}, {"id": "a", "messages": TALK}])

    assert [id for id, *_ in told(text, by_index=True)] == ["0", "1"]


def test_json_lines_hold_a_conversation_each() -> None:
    text = "\n" + lines({"messages": TALK}, {"id": "b", "messages": [USER]}) + "\n"

    assert told(text) == [("0", 0, TALK, {}), ("b", 0, [USER], {"id": "b"})]
    assert told(text, "chat.jsonl") == told(text)


def test_one_line_of_json_lines_is_a_conversation_among_many_that_may_follow() -> None:
    assert told(lines({"messages": TALK}), "chat.jsonl")[0][0] == "0"
    assert told(lines({"messages": TALK}), "chat.json")[0][0] is None


def test_json_lines_hold_a_message_each_for_one_conversation_or_several_at_once() -> None:
    a, b = ({"conversation_id": id, **USER} for id in "ab")

    assert told(lines(*TALK)) == [(None, 0, TALK, {})]
    assert told(lines(USER)) == told(json.dumps([USER])) == [(None, 0, [USER], {})]
    assert told(lines(a)) == [("a", 0, [a], {})]
    assert told(lines(a, a, b, a)) == [("a", 0, [a, a], {}), ("b", 0, [b], {}), ("a", 2, [a], {})]


def test_a_long_conversation_comes_in_pieces() -> None:
    found = pieces(lines(*[USER] * 450))

    assert [(piece.start, len(piece.messages)) for piece in found] == [(0, 200), (200, 200), (400, 50)]
    assert found[1].place(1) == "chat.json, line 202"


def test_what_else_the_file_says_of_a_conversation_is_kept() -> None:
    text = json.dumps({"reward": 1.0, "traj": {"messages": TALK, "model": "m"}})

    assert told(text) == [(None, 0, TALK, {"reward": 1.0, "traj": {"model": "m"}})]


def test_a_conversation_without_messages_is_one() -> None:
    assert told(json.dumps([{"id": "a", "messages": []}, {"id": "b", "messages": TALK}])) == [
        ("a", 0, [], {"id": "a"}), ("b", 0, TALK, {"id": "b"}),
    ]  # fmt: skip


def test_the_key_of_the_messages_can_be_told() -> None:
    text = json.dumps({"messages": [USER], "edited": TALK})

    assert told(text)[0][2] == [USER]
    assert told(text, key="edited")[0][2] == TALK


def test_what_other_json_writers_write_is_read() -> None:
    cut = json.dumps([{"role": "user", "content": "half \ud83d", "n": float("inf"), "big": 10**40}])

    ((_, _, (message,), _),) = told(b"\xef\xbb\xbf" + cut.encode())

    assert message == {"role": "user", "content": "half \ud83d", "n": float("inf"), "big": 10**40}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "chat.json: expected chat messages, as JSON or JSON lines; it is empty"),
        ("\n \n", "chat.json: expected chat messages"),
        ("hello", "chat.json, line 1, column 1: expected JSON"),
        ('\n[{"role": "user"},\n\n {"role" "user"}]', "chat.json, line 4, column 10: expected JSON"),
        ('[{"role": "user"},', "chat.json, line 1, column 19: expected JSON"),
        ('{"role": "user"}\n{"role": user}\n', "chat.json, line 2, column 10: expected JSON"),
        (
            '{"role": "user"}\n{"content": 7}\n',
            "chat.json, line 2: expected a chat message, such as an object with",
        ),
        ('{"messages": [{"role": "user"}]}\n7', "chat.json, line 2: expected a list of chat messages"),
        ('{"messages": [{"role": "user"}, {"role": 1}]}', "messages[1]: expected a chat message"),
        ('[{"traj": [{"role": "user"}, 7]}]', "chat.json, [0].traj[1]: expected a chat message"),
        ('{"data": [[{"role": "user"}], {"x": 1}]}', "chat.json, data[1]: expected a list of chat messages"),
        ('{"conversations": [{"from": "human"}]}', 'found {"conversations": [{"from": "human"}]}'),
        ("7", "chat.json: expected a list of chat messages, or an object that has one"),
        (b'{"a": "\xff"}', "chat.json: expected JSON in UTF-8"),
        ("[" * 100_000, "expected JSON that nests less deep"),
    ],
)
def test_what_is_no_transcript_is_refused_at_its_place(text: str | bytes, says: str) -> None:
    with pytest.raises(InvalidError) as refused:
        pieces(text)

    assert says in str(refused.value)


def test_a_key_without_messages_is_named() -> None:
    with pytest.raises(InvalidError, match="an object with chat messages under 'edited'"):
        pieces(json.dumps([{"messages": TALK}]), key="edited")


def test_broken_json_lines_are_told_by_their_line_also_in_the_first() -> None:
    with pytest.raises(InvalidError, match=r"chat\.jsonl, line 1, column 2: expected JSON"):
        pieces("{\n" + lines(USER), "chat.jsonl")
