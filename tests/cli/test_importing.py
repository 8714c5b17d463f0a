"""Importing conversations: one commit a message, again and again, also after a kill."""

from __future__ import annotations

import json
import shlex
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

import keepstate.sync
from tests.cli.conftest import Ended, Keepstate, Started

TALK = [
    {"role": "system", "content": "Help."},
    {"role": "user", "content": "What is\nthe time?"},
    {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "now", "arguments": "{}"}}]},
    {"role": "tool", "name": "now", "content": "noon"},
]


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    return tmp_path / "chats.json"


def write(path: Path, *conversations: dict[str, Any]) -> Path:
    path.write_text(json.dumps(conversations))
    return path


def stored(url: str, space: str) -> list[Any]:
    with keepstate.sync.open(url) as ks:
        return ks.space(space).history.checkout()["messages"]


def test_each_message_is_a_commit_by_its_role(keepstate: Keepstate, chats: Path) -> None:
    write(chats, {"id": "a", "messages": TALK}, {"id": "b", "messages": TALK[:1], "reward": 1})

    ended = keepstate("import", chats.name)

    assert ended.code == 0, ended.err
    assert ended.out.startswith("2 conversations, 5 messages in ")
    assert "see: keepstate spaces chats; keepstate log chats/a" in ended.err
    commits = keepstate("log", "chats/a", "--json").lines()
    assert [(one["number"], one["author"], one["message"]) for one in commits] == [
        (4, "tool", "now ⇒ noon"),
        (3, "assistant", "→ now({})"),
        (2, "user", "What is the time?"),
        (1, "system", "Help."),
    ]
    assert keepstate("show", "chats/a", "main#3", "messages", "--json").json()["value"] == TALK[:3]
    assert keepstate("get", "chats/b", "conversation").json() == {"id": "b", "reward": 1}


def test_a_second_import_changes_nothing(keepstate: Keepstate, chats: Path, url: str) -> None:
    write(chats, {"id": "a", "messages": TALK}, {"id": "b", "messages": TALK})
    first = keepstate("import", chats.name, "--json").json()
    before = keepstate("log", "chats/a", "--json").out

    again = keepstate("import", chats.name, "--json").json()

    assert (first["added"], first["present"]) == (8, 0)
    assert (again["conversations"], again["messages"], again["added"], again["present"]) == (2, 8, 0, 8)
    assert keepstate("log", "chats/a", "--json").out == before


def test_a_file_that_has_grown_brings_what_is_new(keepstate: Keepstate, chats: Path, url: str) -> None:
    keepstate("import", str(write(chats, {"id": "a", "messages": TALK[:2], "reward": 0})))

    ended = keepstate("import", str(write(chats, {"id": "a", "messages": TALK, "reward": 1})), "--json")

    assert (ended.json()["added"], ended.json()["present"]) == (2, 2)
    assert stored(url, "chats/a") == TALK
    assert keepstate("get", "chats/a", "conversation").json() == {"id": "a", "reward": 1}


def test_what_was_said_since_is_left_alone(keepstate: Keepstate, chats: Path, url: str) -> None:
    keepstate("import", str(write(chats, {"id": "a", "messages": TALK[:2]})))
    with keepstate_open(url) as ks:
        ks.space("chats/a").history.append("messages", {"role": "user", "content": "and more"})

    ended = keepstate("import", chats.name, "--json")

    assert (ended.code, ended.json()["added"], ended.json()["present"]) == (0, 0, 2)
    assert len(stored(url, "chats/a")) == 3


keepstate_open = keepstate.sync.open


@pytest.mark.parametrize("size", [10, 3_000], ids=["small", "large"])
def test_another_conversation_in_the_same_place_is_an_error_that_names_it(
    keepstate: Keepstate, chats: Path, url: str, size: int
) -> None:
    long = {"role": "tool", "content": "x", "data": {f"k{n}": n for n in range(size)}}
    first = [TALK[0], long, TALK[1]]
    keepstate("import", str(write(chats, {"id": "a", "messages": first})))
    assert keepstate("import", chats.name).code == 0
    other = [TALK[0], long | {"data": {**long["data"], "k1": 7}}, TALK[1]]  # type: ignore[dict-item]

    write(chats, {"id": "0", "messages": TALK}, {"id": "a", "messages": other})
    ended = keepstate("import", str(chats))

    assert ended.code == 4
    assert f"{chats}, [1].messages[1] differs from the stored messages[1] of 'chats/a'" in ended.err
    assert "give another --space" in ended.err
    assert "1 conversation, 4 messages were imported before" in ended.err
    assert stored(url, "chats/a") == first


def test_a_message_of_other_types_is_another_one(keepstate: Keepstate, chats: Path) -> None:
    keepstate("import", str(write(chats, {"messages": [{"role": "user", "n": 1}]})))

    assert keepstate("import", str(write(chats, {"messages": [{"role": "user", "n": True}]}))).code == 4


def test_conversations_of_one_id_are_told_and_can_be_named_by_their_places(
    keepstate: Keepstate, chats: Path
) -> None:
    write(chats, {"id": "a", "messages": TALK}, {"id": "a", "messages": TALK[1:]})

    refused = keepstate("import", chats.name)
    ended = keepstate("import", chats.name, "--by-index", "--space", "other")

    assert refused.code == 4
    assert "--by-index if several conversations of the file have the same id" in refused.err
    assert ended.code == 0
    assert keepstate("spaces", "other").out.split() == ["other/0", "other/1"]


def test_lines_come_from_a_pipe_too(shell: Keepstate, url: str) -> None:
    text = "".join(json.dumps(message) + "\n" for message in TALK)

    ended = shell("import", "-", "--space", "talk", stdin=text)

    assert ended.code == 0, ended.err
    assert stored(url, "talk") == TALK


def test_what_to_see_next_can_be_pasted(keepstate: Keepstate, chats: Path, tmp_path: Path) -> None:
    write(chats, {"id": "a talk", "messages": TALK}, {"id": "b", "messages": TALK})
    other = f"file:///{tmp_path}/other.journal"

    ended = keepstate("import", chats.name, "--space", "chat/", "--url", other)

    spaces, log = [shlex.split(words) for words in ended.err.removeprefix("see: ").split("; ")]
    assert spaces == ["keepstate", "spaces", "chat", "--url", other]
    assert keepstate(*spaces[1:]).out.splitlines() == ["chat/a talk", "chat/b"]
    assert len(keepstate(*log[1:]).out.splitlines()) == len(TALK)


@pytest.mark.slow
@pytest.mark.parametrize("store", ["journal", "redis_url", "postgres_url"])
def test_each_store_takes_conversations_and_gives_them_back(
    keepstate: Keepstate, chats: Path, tmp_path: Path, store: str, request: pytest.FixtureRequest
) -> None:
    url = f"file:///{tmp_path}/chats.journal" if store == "journal" else request.getfixturevalue(store)
    write(chats, {"id": "a", "messages": TALK * 60}, {"id": "b", "messages": TALK})

    first = keepstate("import", chats.name, "--json", "--url", url)
    again = keepstate("import", chats.name, "--json", "--url", url)
    shown = keepstate("show", "chats/a", "main#201", "messages", "--json", "--url", url)

    assert first.json()["added"] == 244, first.err
    assert again.json()["present"] == 244, again.err
    assert shown.json()["value"] == (TALK * 60)[:201]


@pytest.mark.slow
def test_three_imports_of_one_file_at_once_bring_it_once(
    keepstate: Keepstate, started: Started, chats: Path, url: str
) -> None:
    write(chats, *({"id": f"{n}", "messages": TALK * 5} for n in range(40)))

    ends = [
        process.communicate(timeout=60)
        for process in [started("import", chats.name, "--json") for _ in "abc"]
    ]

    told = [json.loads(out) for out, _ in ends]
    assert [one["messages"] for one in told] == [800] * 3
    assert sum(one["added"] for one in told) == 800
    with keepstate_open(url) as ks:
        histories = [ks.space(f"chats/{n}").history for n in range(40)]
        assert all(history.checkout()["messages"] == TALK * 5 for history in histories)
        assert {history.find().number for history in histories} == {20}


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        (None, 2, "chats.json cannot be read (No such file or directory)"),
        ('[{"role": "user"},\n x]', 2, "chats.json, line 2, column 2: expected JSON"),
        ('{"messages": 7}', 2, "chats.json: expected a list of chat messages"),
    ],
)
def test_a_file_that_is_no_transcript_makes_no_store(
    keepstate: Keepstate, chats: Path, tmp_path: Path, text: str | None, code: int, says: str
) -> None:
    if text is not None:
        chats.write_text(text)

    ended = keepstate("import", chats.name)

    assert (ended.code, ended.out) == (code, "")
    assert says in ended.err
    assert not (tmp_path / "cli.db").exists()


def test_what_stands_before_a_broken_line_is_kept_and_gone_on_from(
    keepstate: Keepstate, tmp_path: Path
) -> None:
    path = tmp_path / "chats.jsonl"
    good = json.dumps({"messages": TALK})
    path.write_text(f"{good}\n{{broken\n")

    broken = keepstate("import", path.name)
    path.write_text(f"{good}\n{good}\n")
    mended = keepstate("import", path.name, "--json")

    assert broken.code == 2
    assert "chats.jsonl, line 2, column 2: expected JSON" in broken.err
    assert (mended.json()["added"], mended.json()["present"]) == (4, 4)


def test_a_message_that_cannot_be_kept_is_named_by_its_place(keepstate: Keepstate, chats: Path) -> None:
    write(chats, {"messages": [TALK[0], {"role": "\ud83d"}]})

    ended = keepstate("import", chats.name)

    assert ended.code == 2
    assert "chats.json, [0].messages[1]: " in ended.err


def test_an_id_that_names_no_space_is_told_by_its_place(keepstate: Keepstate, chats: Path) -> None:
    write(chats, {"id": "x" * 300, "messages": TALK})

    ended = keepstate("import", chats.name)

    assert ended.code == 2
    assert "chats.json, [0].messages[0]: " in ended.err
    assert keepstate("import", chats.name, "--by-index").code == 0


def test_half_a_character_in_a_text_is_kept(keepstate: Keepstate, chats: Path, url: str) -> None:
    talk = [{"role": "user", "content": "half \ud83d"}]

    ended = keepstate("import", str(write(chats, {"messages": talk})))

    assert ended.code == 0, ended.err
    assert stored(url, "chats/0") == talk


@pytest.mark.slow
def test_an_import_that_is_killed_goes_on_where_it_was(
    keepstate: Keepstate, started: Started, tmp_path: Path, url: str
) -> None:
    talks = [
        [
            {"role": "user", "content": f"{talk}/{n} " + "word " * 40}
            for n in range(700 if talk == 100 else talk % 40 + 1)
        ]
        for talk in range(400)
    ]
    path = tmp_path / "many.jsonl"
    path.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in talks))

    reached = [kill_when_there(started, url, f"many/{talk}") for talk in (30, 120, 250)]
    ended = keepstate("import", path.name, "--json").json()

    assert all(reached)
    assert ended["present"] > 0
    assert ended["added"] > 0
    assert ended["messages"] == sum(map(len, talks))
    with keepstate_open(url) as ks:
        for number, messages in enumerate(talks):
            history = ks.space(f"many/{number}").history
            assert history.checkout()["messages"] == messages
            assert history.find().number == len(messages)
    assert keepstate("verify").code == 0


def kill_when_there(started: Started, url: str, space: str) -> bool:
    """Kill an import as soon as a space has something, and return whether it was still running."""
    process = started("import", "many.jsonl")
    with keepstate_open(url) as ks:
        while not ks.space(space).revision() and process.poll() is None:
            time.sleep(0.005)
        was_running = process.poll() is None
        process.kill()
        process.wait()
    return was_running


@pytest.mark.slow
@pytest.mark.shared("data/tau_airline.json")
def test_200_conversations_are_imported_and_each_of_their_moments_comes_back(
    shared_data: Path, keepstate: Keepstate, tmp_path: Path, url: str
) -> None:
    conversations: list[dict[str, Any]] = json.loads(shared_data.read_bytes())
    plain_bytes = sum(len(msgspec.msgpack.encode(one)) for talk in conversations for one in talk["traj"])

    ended = keepstate("import", str(shared_data), "--space", "tau", "--json")

    told = ended.json()
    assert (told["conversations"], told["messages"], told["added"]) == (200, 5_308, 5_308)
    assert told["seconds"] < 30
    assert (tmp_path / "cli.db").stat().st_size <= 3 * plain_bytes
    moments = 0
    with keepstate_open(url) as ks:
        for talk in conversations:
            history = ks.space(f"tau/{talk['task_id']}/{talk['trial']}").history
            for number in range(1, len(talk["traj"]) + 1):
                assert history.checkout(f"main#{number}")["messages"] == talk["traj"][:number]
                moments += 1
    assert moments == 5_308
    assert imported_again(keepstate, shared_data).json()["present"] == 5_308


def imported_again(keepstate: Keepstate, path: Path) -> Ended:
    return keepstate("import", str(path), "--space", "tau", "--json")
