"""Transcripts of each tool are read as conversations: from its own files, lines and databases."""

from __future__ import annotations

import io
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from langchain_core.load import dumps
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage, messages_to_dict
from pydantic_ai.messages import (
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    UserPromptPart,
)

from keepstate.cli.databases import pieces_in
from keepstate.cli.transcripts import Piece, Transcript
from keepstate.errors import InvalidError
from keepstate.sessions.forms.conversion import convert
from tests.cli.conftest import Keepstate

CHAIN = [
    HumanMessage("Is there a train?"),
    AIMessage("", tool_calls=[{"name": "timetable", "args": {"to": "Bergen"}, "id": "c1"}]),
    ToolMessage("12:03", tool_call_id="c1"),
    AIMessage("Yes, at 12:03."),
]
REQUEST = ModelRequest(parts=[SystemPromptPart("Be short."), UserPromptPart("Is there a train?")])
RUN = [REQUEST, ModelResponse(parts=[TextPart("Yes, at 12:03.")])]
ITEMS = [
    {"role": "user", "content": [{"type": "input_text", "text": "Is there a train?"}]},
    {"type": "reasoning", "id": "rs_1", "summary": []},
    {"type": "function_call", "call_id": "c1", "name": "timetable", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "12:03"},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yes."}]},
]


def read(text: str | bytes, name: str = "chat.json", **options: Any) -> list[Piece]:
    data = text if isinstance(text, bytes) else text.encode()
    stream = io.BufferedReader(io.BytesIO(data))  # type: ignore[arg-type]
    return list(Transcript(name, stream, **options).pieces())


def lines(*values: Any) -> str:
    return "".join(json.dumps(value) + "\n" for value in values)


def only(pieces: list[Piece]) -> list[dict[str, Any]]:
    (piece,) = pieces
    return list(piece.messages)


# ---- messages


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(messages_to_dict(CHAIN)),
        dumps(CHAIN),
        json.dumps([message.model_dump() for message in CHAIN]),
        json.dumps({"messages": [message.model_dump() for message in CHAIN]}),
    ],
    ids=["messages_to_dict", "dumps", "model_dump", "state"],
)
def test_messages_of_langchain_come_back_as_messages_of_langchain(text: str) -> None:
    messages = only(read(text))

    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant"]
    back = convert(messages, "langchain")
    assert [(type(one), one.content) for one in back] == [(type(one), one.content) for one in CHAIN]
    assert back[1].tool_calls[0]["args"] == {"to": "Bergen"}


def test_messages_of_pydantic_ai_come_back_equal() -> None:
    messages = only(read(ModelMessagesTypeAdapter.dump_json(RUN)))

    assert [message["role"] for message in messages] == ["system", "assistant"]
    assert convert(messages, "pydantic_ai") == RUN


@pytest.mark.parametrize("value", [ITEMS, {"object": "response", "output": ITEMS[1:]}, {"input": ITEMS}])
def test_items_of_responses_have_the_role_of_their_side(value: Any) -> None:
    messages = only(read(json.dumps(value)))

    roles = [message["role"] for message in messages]
    assert roles == ["user", "assistant", "assistant", "user", "assistant"][-len(roles) :]


def test_sharegpt_says_human_and_gpt() -> None:
    talk = [
        {"from": "system", "value": "S"},
        {"from": "human", "value": "Q"},
        {"from": "gpt", "value": "A", "w": 1},
    ]

    (piece,) = read(json.dumps([{"id": "x", "conversations": talk}]))

    assert piece.id == "x"
    assert list(piece.messages) == [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "Q"},
        {"role": "assistant", "content": "A", "w": 1},
    ]


def test_gemini_s_contents_are_shown_by_their_parts(keepstate: Keepstate, tmp_path: Path) -> None:
    contents = [{"parts": [{"text": "Is there a train?"}]}, {"role": "model", "parts": [{"text": "Yes."}]}]
    (tmp_path / "gemini.json").write_text(json.dumps({"contents": contents}))

    keepstate("import", str(tmp_path / "gemini.json"))

    shown = keepstate("show", "gemini").out
    assert "Is there a train?" in shown
    assert "Yes." in shown


def test_messages_of_autogen_name_their_agents() -> None:
    call = {"id": "c1", "name": "timetable", "arguments": "{}"}
    result = {"content": "12:03", "name": "timetable", "call_id": "c1", "is_error": False}
    team = {
        "type": "TeamState",
        "agent_states": {
            "planner": {
                "agent_state": {
                    "llm_context": {
                        "messages": [
                            {"type": "UserMessage", "source": "user", "content": "Q"},
                            {"type": "AssistantMessage", "source": "planner", "content": [call]},
                            {"type": "FunctionExecutionResultMessage", "content": [result]},
                        ]
                    }
                }
            },
            "quiet": {"agent_state": {}},
        },
    }

    (piece,) = read(json.dumps(team))

    asked, called, found = piece.messages
    assert piece.id == "planner"
    assert (asked["role"], asked["name"], asked["content"]) == ("user", "user", "Q")
    assert called["tool_calls"] == [
        {"id": "c1", "type": "function", "function": {"name": "timetable", "arguments": "{}"}}
    ]
    assert (found["role"], found["tool_call_id"], found["content"]) == ("tool", "c1", "12:03")
    said = only(read(lines({"type": "TextMessage", "source": "writer", "content": "A"})))
    assert said[0]["role"] == "assistant"


# ---- lines


def test_a_session_of_claude_code_has_its_messages_and_its_subagents_apart() -> None:
    def line(kind: str, content: Any, **fields: Any) -> dict[str, Any]:
        return {
            "type": kind,
            "sessionId": "s1",
            "uuid": "u",
            "message": {"role": kind, "content": content},
            **fields,
        }

    text = lines(
        {"type": "summary", "summary": "Trains", "leafUuid": "u9"},
        line("user", "Is there a train?"),
        line("user", "Look it up.", isSidechain=True, agentId="a7"),
        {"type": "system", "sessionId": "s1", "content": "compacted"},
        line("assistant", [{"type": "text", "text": "Yes."}], parentUuid="u"),
    )
    stream = io.BufferedReader(io.BytesIO(text.encode()))  # type: ignore[arg-type]
    transcript = Transcript("s1.jsonl", stream)

    found = list(transcript.pieces())

    assert [(piece.id, piece.start, len(piece.messages)) for piece in found] == [
        ("s1", 0, 1),
        ("s1/a7", 0, 1),
        ("s1", 1, 1),
    ]
    assert found[2].messages[0]["content"] == [{"type": "text", "text": "Yes."}]
    assert found[2].messages[0]["line"]["parentUuid"] == "u"
    assert transcript.left_out == 2


@pytest.mark.parametrize("is_old", [True, False])
def test_a_rollout_of_codex_has_its_items(is_old: bool) -> None:
    if is_old:
        text = lines({"id": "r1", "timestamp": "t", "instructions": None}, {"record_type": "state"}, *ITEMS)
    else:
        text = lines(
            {"timestamp": "t", "type": "session_meta", "payload": {"id": "r1", "cwd": "/"}},
            {"timestamp": "t", "type": "event_msg", "payload": {"type": "user_message", "message": "Q"}},
            *({"timestamp": "t", "type": "response_item", "payload": item} for item in ITEMS),
        )

    (piece,) = read(text, "rollout.jsonl")

    assert piece.id == "r1"
    assert [message["role"] for message in piece.messages] == [
        "user", "assistant", "assistant", "user", "assistant",
    ]  # fmt: skip
    assert piece.messages[0]["content"] == ITEMS[0]["content"]


def test_a_line_of_another_tool_is_told_by_its_place() -> None:
    text = lines({"type": "summary", "leafUuid": "u"}, ["no line of it"])

    with pytest.raises(InvalidError, match=r"s\.jsonl, line 2: expected a line of the same tool"):
        read(text, "s.jsonl")
    with pytest.raises(InvalidError, match="lines with messages; all were left out"):
        read(lines({"type": "summary", "leafUuid": "u"}), "s.jsonl")


# ---- documents


def test_a_trajectory_of_swe_agent_is_its_history() -> None:
    steps = [{"action": "ls", "observation": "a.py", "thought": "I look."}]
    history = [{"role": "system", "content": "S", "agent": "main"}, {"role": "user", "content": "Q"}]

    (piece,) = read(
        json.dumps({"environment": "swe", "trajectory": steps, "history": history, "info": {}}), "x.traj"
    )

    assert list(piece.messages) == history
    assert piece.fields["trajectory"] == steps


def test_chatgpt_s_export_is_read_along_the_branch_that_was_shown() -> None:
    def node(parent: str | None, role: str, parts: list[Any], *children: str) -> dict[str, Any]:
        content = {"content_type": "text", "parts": parts}
        return {
            "parent": parent,
            "children": list(children),
            "message": {"author": {"role": role}, "content": content, "create_time": 1.5},
        }

    image = {"content_type": "image_asset_pointer", "asset_pointer": "file://1"}
    talk = {
        "title": "Trains",
        "conversation_id": "t1",
        "current_node": "d",
        "mapping": {
            "root": {"parent": None, "children": ["a"], "message": None},
            "a": node("root", "system", [""], "b", "x"),
            "b": node("a", "user", ["Is there", "a train?"], "d"),
            "x": node("a", "user", ["An older question"]),
            "d": node("b", "assistant", ["See:", image]),
        },
    }

    (piece,) = read(json.dumps([talk]))

    assert (piece.id, piece.fields["title"]) == ("t1", "Trains")
    assert [(one["role"], one["content"]) for one in piece.messages] == [
        ("user", "Is there\na train?"),
        ("assistant", [{"type": "text", "text": "See:"}, image]),
    ]
    talk["mapping"]["b"]["parent"] = "d"  # type: ignore[index]  # a circle, which no export has
    assert len(only(read(json.dumps([talk])))) == 2


def test_an_epoch_of_inspect_is_a_trial() -> None:
    samples = [{"id": 1, "epoch": n, "messages": [{"role": "user", "content": "Q"}]} for n in (1, 2)]

    found = read(json.dumps({"version": 2, "eval": {"task": "trains"}, "samples": samples}))

    assert [piece.id for piece in found] == ["1/1", "1/2"]


@pytest.mark.parametrize(
    ("begin", "told"),
    [
        (b"PK\x03\x04rest", "ZIP archive. Of a log of Inspect"),
        (b"\x1f\x8b\x08\x00", "compressed by gzip"),
        (b"PAR1\x00\x01", "Parquet"),
    ],
)
def test_a_file_of_another_kind_is_named_with_what_to_do(begin: bytes, told: str) -> None:
    with pytest.raises(InvalidError, match=told):
        read(begin, "log.eval")


# ---- databases


def database(path: Path, script: str, *rows: tuple[str, tuple[Any, ...]]) -> str:
    with closing(sqlite3.connect(path)) as made:
        made.executescript(script)
        for statement, values in rows:
            made.execute(statement, values)
        made.commit()
    return str(path)


OPENAI = """
create table agent_sessions (session_id text primary key);
create table agent_messages (id integer primary key, session_id text, message_data text, created_at text);
"""
PUT_ROW = "insert into agent_messages values (1, 's', '{}', '');"
ADK = """
create table app_states (app_name text); create table sessions (id text);
create table events (id text, app_name text, user_id text, session_id text, author text, actions blob,
    timestamp real, content text);
"""


def test_a_database_of_the_openai_agents_sdk_is_imported(keepstate: Keepstate, tmp_path: Path) -> None:
    put = "insert into agent_messages (session_id, message_data) values (?, ?)"
    rows = [(put, (session, json.dumps(item))) for item in ITEMS for session in ("b", "a/1")]
    path = database(tmp_path / "agents.db", OPENAI, *rows)

    told = keepstate("import", path)

    assert "2 conversations, 10 messages" in told.out
    assert keepstate("spaces", "agents/").out.split() == ["agents/a/1", "agents/b"]
    assert "10 already there" in keepstate("import", path).out


def test_events_of_adk_are_imported_and_nothing_is_unpickled(tmp_path: Path) -> None:
    put = "insert into events values (?, 'app', 'ann', 's1', ?, ?, ?, ?)"
    said = json.dumps({"role": "user", "parts": [{"text": "Q"}]})
    answered = json.dumps({"role": "model", "parts": [{"text": "A"}]})
    path = database(
        tmp_path / "adk.db",
        ADK,
        (put, ("e2", "bot", b"\x80\x04not a pickle", 2.0, answered)),
        (put, ("e1", "user", b"", 1.0, said)),
        (put, ("e3", "bot", b"", 3.0, None)),
    )
    (piece,) = pieces_in(path)

    assert piece.id == "app/ann/s1"
    assert [(one["role"], one["parts"][0]["text"]) for one in piece.messages] == [
        ("user", "Q"),
        ("model", "A"),
    ]
    assert piece.place(1) == f"{path}, row e2 of events"


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("create table checkpoints (a); create table writes (a);", "keepstate langgraph import --from"),
        ("create table guests (a);", r"of another kind, with these tables: guests"),
        ("", "with these tables: none"),
        (
            OPENAI + "insert into agent_messages values (1, 's', '{bad', '');",
            r"row 1 of agent_messages: expected JSON",
        ),
        (
            OPENAI + "insert into agent_messages values (1, 's', '{\"n\": 1}', '');",
            "row 1 of agent_messages: expected an",
        ),
    ],
)
def test_another_database_is_refused_with_what_was_recognized(tmp_path: Path, script: str, told: str) -> None:
    path = database(tmp_path / "x.db", f"create table if not exists t (a); drop table t; {script}")

    with pytest.raises(InvalidError, match=told):
        list(pieces_in(path))


def test_a_keepstate_store_and_a_cut_database_are_told(keepstate: Keepstate, tmp_path: Path) -> None:
    store = tmp_path / "own.db"
    keepstate("demo", "--workers", "1", "--kill", "0", "--most", "1", "--url", f"sqlite:///{store}")
    with pytest.raises(InvalidError, match="is a keepstate store; open it as --url"):
        pieces_in(str(store))
    cut = tmp_path / "cut.db"
    cut.write_bytes(b"SQLite format 3\x00" + b"\xff" * 100)
    with pytest.raises(InvalidError, match="cannot be read"):
        list(pieces_in(str(cut)))


# ---- files of one name


def test_two_files_of_one_name_do_not_mix(keepstate: Keepstate, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "run.json").write_text(json.dumps([{"role": "user", "content": folder}]))
    for _ in range(2):
        for folder in ("a", "b"):
            keepstate("import", str(tmp_path / folder / "run.json"))

    assert keepstate("spaces").out.split() == ["run", "run-2"]
    assert "b" in keepstate("show", "run-2").out
    (tmp_path / "a" / "run.json").write_text(json.dumps([{"role": "user", "content": "changed"}]))
    refused = keepstate("import", str(tmp_path / "a" / "run.json"))
    assert (refused.code, "give another --space" in refused.err) == (4, True)
