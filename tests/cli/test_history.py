"""Looking back at the terminal: log, show, diff, blame."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from contextlib import suppress
from pathlib import Path

import pytest

import keepstate.sync
from keepstate.sync import open as open_store
from tests.cli.conftest import COMMAND, INSTANT, Keepstate

PLAN = {"goal": "report", "step": 1}
TALK = [
    {"role": "user", "content": "Hello,\nwho are you?"},
    {"role": "assistant", "content": "An agent. " + "Very long. " * 50},
    {"role": "tool", "name": "now", "content": [{"type": "text", "text": "noon"}], "meta": {"ms": 3}},
]


@pytest.fixture(autouse=True)
def _run(url: str) -> None:
    """Make a space with five commits on main, and a tag on the first."""
    with keepstate.sync.open(url, author="planner") as ks:
        history = ks.space("run").history
        history.commit({"plan": PLAN, "a.b": [1, 2]}, message="begin")
        history.tag("v1")
        for message in TALK:
            history.append("messages", message, author=message["role"])
        draft = history.begin()
        draft["plan"]["step"] = 2
        del draft["a.b"]
        draft.commit("go on", meta={"model": "large", "step": "2"})


def test_the_log_lists_the_last_commit_first_with_what_stands_on_it(keepstate: Keepstate) -> None:
    logged = keepstate("log", "run")

    lines = logged.out.splitlines()
    assert logged.code == 0
    assert [line.split()[0] for line in lines] == ["main#5", "main#4", "main#3", "main#2", "main#1"]
    assert lines[0].endswith("planner    (main) go on  model=large  step=2")
    assert lines[-1].endswith("planner    (tag v1) begin")
    assert lines[1].endswith("Z  tool")


def test_the_log_can_begin_anywhere_and_says_when_there_is_more(keepstate: Keepstate) -> None:
    logged = keepstate("log", "run", "main~1", "--limit", "2")

    assert [line.split()[0] for line in logged.out.splitlines()] == ["main#4", "main#3"]
    assert logged.err == "the last 2; --limit N shows more\n"
    assert keepstate("log", "run", "--limit", "5").err == ""


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        (["--reverse", "--limit", "2"], [1, 2]),
        (["--first", "3", "--limit", "2"], [3, 2]),
        (["--first", "3", "--limit", "2", "--reverse"], [3, 4]),
        (["--after", "main#3"], [2, 1]),
        (["--after", "main#3", "--reverse"], [4, 5]),
        (["--author", "tool"], [4]),
        (["--text", "GO ON"], [5]),
        (["--path", "plan.step"], [5, 1]),
        (["--path", "messages[1]"], [3]),
        (["--meta", "model=large", "--meta", "step=2"], [5]),
        (["--meta", "model=small"], []),
    ],
)
def test_the_log_is_searched_and_paged_both_ways(
    keepstate: Keepstate, options: list[str], numbers: list[int]
) -> None:
    logged = keepstate("log", "run", *options)

    assert (logged.code, [line.split()[0] for line in logged.out.splitlines()]) == (
        0,
        [f"main#{number}" for number in numbers],
    )


def test_a_note_to_search_for_has_a_key_and_a_value(keepstate: Keepstate) -> None:
    assert "write it as KEY=VALUE" in keepstate("log", "run", "--meta", "model").err


def test_the_log_as_json_has_all_of_a_commit(keepstate: Keepstate) -> None:
    first = keepstate("log", "run", "--json").lines()[-1]

    assert (first["number"], first["author"], first["message"], first["parents"]) == (
        1,
        "planner",
        "begin",
        [],
    )
    assert len(first["id"]) == 40
    assert first["meta"] == {}
    assert re.fullmatch(INSTANT, first["created_at"])


def test_a_state_is_shown_key_by_key_and_its_messages_to_be_read(keepstate: Keepstate) -> None:
    shown = keepstate("show", "run", "main#4")

    lines = shown.out.splitlines()
    assert lines[0].startswith("main#4  ")
    assert lines[1:4] == [
        'plan     {"goal":"report","step":1}',
        "['a.b']  [1,2]",
        "messages  3 messages",
    ]
    assert lines[4] == "0  user       Hello, who are you?"
    assert lines[5].startswith("1  assistant  An agent. Very long. ")
    assert lines[5].endswith("…")
    assert lines[6] == "2  tool       now ⇒ noon"


def test_nothing_is_cut_when_all_is_asked_for(keepstate: Keepstate) -> None:
    shown = keepstate("show", "run", "main", "--full").out

    assert "[0] user\nHello,\nwho are you?\n[1] assistant\n" in shown
    assert TALK[1]["content"].strip() in shown  # type: ignore[attr-defined]
    assert '[2] tool\nnoon\nname: "now"\nmeta: {"ms":3}\n' in shown
    assert "plan\n{\n" in shown


def test_of_a_long_conversation_the_end_is_shown_and_how_to_see_the_rest(
    keepstate: Keepstate, url: str
) -> None:
    with keepstate_open(url) as ks:
        ks.space("long").history.append(
            "messages", *({"role": "user", "content": f"n {n}"} for n in range(50))
        )

    short = keepstate("show", "long").out
    whole = keepstate("show", "long", "main", "messages").out

    assert "30 before these: keepstate show long main messages" in short
    assert "n 29" not in short
    assert "30  user  n 30" in short
    assert "29  user  n 29" in whole


keepstate_open = keepstate.sync.open


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("plan", PLAN),
        ("plan.step", 1),
        ("['a.b'][-1]", 2),
        ("messages[2].meta", {"ms": 3}),
        ("messages[2].meta.ms", 3),
    ],
)
def test_a_part_of_a_state_is_shown_by_its_path(keepstate: Keepstate, path: str, value: object) -> None:
    told = keepstate("show", "run", "main#4", path, "--json").json()

    assert (told["path"], told["value"], told["commit"]["number"]) == (path, value, 4)


def test_an_outline_shows_keys_and_how_large_each_value_is(keepstate: Keepstate, url: str) -> None:
    with keepstate_open(url) as ks:
        state = {
            "z": 1,
            "rows": [{"n": n} for n in range(2_000)],
            "text": "x" * 9_000,
            "a.b": {},
            "t": (1, 2),
        }
        ks.space("rows").history.commit(state)

    shown = keepstate("show", "rows", "main", "--outline")
    rows = keepstate("show", "rows", "main", "rows", "--outline", "--limit", "2", "--after", "1")

    assert [line.split("  ", 1)[0] for line in shown.out.splitlines()] == [
        "z",
        "rows",
        "text",
        "['a.b']",
        "t",
    ]
    assert [line.split("  ")[-1].strip() for line in shown.out.splitlines()] == [
        "1",
        "list of 2,000 items",
        "value of 9,003 bytes",
        "dict of 0 items",
        "tuple of 2 items",
    ]
    assert [line.split(maxsplit=1) for line in rows.out.splitlines()] == [
        ["[2]", "dict of 1 item"],
        ["[3]", "dict of 1 item"],
    ]
    assert rows.err == "2 of 2,000; --after 3 shows more\n"
    assert keepstate("show", "rows", "main", "rows", "--outline", "--after", "1998", "--json").json() == {
        "path": "rows",
        "kind": "list",
        "count": 2_000,
        "next": None,
        "children": [{"step": 1_999, "kind": "dict", "count": 1}],
    }


def test_some_items_of_a_list_are_shown(keepstate: Keepstate) -> None:
    assert keepstate("show", "run", "main", "messages", "--items=-1:", "--json").json()["value"] == TALK[-1:]
    assert (
        keepstate("show", "run", "main", "messages", "--items", "0:2", "--json").json()["value"] == TALK[:2]
    )
    assert "who are you?" in keepstate("show", "run", "main", "messages", "--items", ":1").out


def test_a_diff_can_be_of_one_part_and_limited(keepstate: Keepstate) -> None:
    part = keepstate("diff", "run", "main#3", "--path", "plan")
    first = keepstate("diff", "run", "main#3", "--limit", "2")

    assert (part.out, part.err) == ("~  plan.step  1 → 2\n", "1 difference from main#3 to main\n")
    assert len(first.out.splitlines()) == 2
    assert first.err == "the first 2 differences from main#3 to main\n"


def test_one_message_is_shown_whole(keepstate: Keepstate) -> None:
    shown = keepstate("show", "run", "main", "messages[0]")

    assert shown.out.splitlines()[1:] == ["user", "Hello,", "who are you?"]


def test_a_state_of_any_ref_can_be_shown(keepstate: Keepstate) -> None:
    commits = keepstate("log", "run", "--json").lines()
    first = commits[-1]
    newest_then = next(commit for commit in commits if commit["created_at"] == first["created_at"])

    for ref in ("v1", "main~4", first["id"][:8]):
        assert keepstate("show", "run", ref, "--json").json()["commit"]["id"] == first["id"]
    shown = keepstate("show", "run", f"main@{first['created_at']}", "--json").json()
    assert shown["commit"]["id"] == newest_then["id"]  # a fast machine makes several commits in a millisecond


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("show", "run", "main", "a.b"), 1, "there is no a; a key with dots is written ['a.b']"),
        (("show", "run", "main", "messages[9]"), 1, "there is no messages[9] (commit "),
        (("show", "run", "main", "a..b"), 2, "a.⟨here⟩.b is not a path"),
        (("show", "run", "main#9"), 1, "'main#9' is outside of its line of 5 commits"),
        (("log", "run", "nowhere"), 1, "there is no branch, tag or commit 'nowhere'"),
        (("log", "nobody"), 1, "there is no branch, tag or commit 'main' in 'nobody'"),
        (("log", "run", "--limit", "0"), 2, "`limit` is 0"),
        (("blame", "run", "nothing"), 1, "there is no nothing; the state has "),
        (("show", "run", "main", "nothing"), 1, "there is no nothing; the state has "),
        (("show", "nobody"), 1, "there is no space 'nobody'; `keepstate spaces` lists them"),
        (("blame", "nobody", "x"), 1, "there is no space 'nobody'"),
        (("diff", "run", "a~b~c"), 2, "is not a revision"),
        (("diff", "run", "main#3", "--path", "x.y"), 1, "there is no x"),
        (("diff", "run", "main#3", "--path", "a..b"), 2, "a.⟨here⟩.b is not a path"),
        (("show", "run", "main", "messages", "--items", "1-2"), 2, "write it as 10:20"),
        (("show", "run", "--items", "1:2"), 2, "give the path"),
        (("show", "run", "main", "plan", "--items", "1:2"), 2, "plan is a dict"),
        (("show", "run", "main", "plan.step", "--outline"), 2, "plan.step is not a list or dict"),
        (("show", "run", "main", "plan", "--after", "3"), 2, "give --outline too"),
    ],
)
def test_what_is_not_there_is_told_in_one_line(
    keepstate: Keepstate, words: tuple[str, ...], code: int, says: str
) -> None:
    ended = keepstate(*words)

    assert (ended.code, ended.out) == (code, "")
    assert says in ended.err
    assert len(ended.err.splitlines()) == 1


def test_differences_show_path_before_and_after(keepstate: Keepstate) -> None:
    told = keepstate("diff", "run", "main#3")

    assert told.out.splitlines() == [
        "-  ['a.b']      [1,2]",
        "~  plan.step    1 → 2",
        "+  messages[2]  tool: now ⇒ noon",
    ]
    assert told.err == "3 differences from main#3 to main\n"


def test_differences_of_long_texts_show_where_they_begin_to_differ(keepstate: Keepstate, url: str) -> None:
    with keepstate_open(url) as ks:
        for word in ("old", "new"):
            ks.space("text").history.commit({"text": "x" * 500 + word + "y" * 500})

    line = keepstate("diff", "text", "main~1").out

    assert "xxxoldyyy" in line
    assert "xxxnewyyy" in line
    assert len(line) < 130


def test_differences_as_json_have_values_and_steps(keepstate: Keepstate) -> None:
    told = keepstate("diff", "run", "main#3", "main#5", "--json").lines()

    assert [(one["kind"], one["path"], one["steps"]) for one in told] == [
        ("removed", "['a.b']", ["a.b"]),
        ("changed", "plan.step", ["plan", "step"]),
        ("added", "messages[2]", ["messages", 2]),
    ]
    assert [(one["old_path"], one["old_steps"]) for one in told] == [
        (one["path"], one["steps"]) for one in told
    ]
    assert told[1]["old"] == 1
    assert told[2]["new"] == TALK[2]


def test_no_difference_is_told(keepstate: Keepstate) -> None:
    told = keepstate("diff", "run", "main", "main")

    assert (told.code, told.out, told.err) == (0, "", "keepstate: nothing to list\n")


def test_blame_names_who_gave_a_part_its_value(keepstate: Keepstate) -> None:
    told = keepstate("blame", "run", "messages[1]", "--json").json()
    line = keepstate("blame", "run", "plan.goal").out

    assert (told["commit"]["number"], told["commit"]["author"], told["exact"]) == (3, "assistant", True)
    assert line.startswith("plan.goal  main#1  ")
    assert line.endswith('planner  "report"\n')


def test_blame_goes_through_all_keys_or_all_items(keepstate: Keepstate) -> None:
    keys = keepstate("blame", "run", "--json").lines()
    items = keepstate("blame", "run", "messages", "--each", "--at", "main#3").out

    assert {one["path"]: one["commit"]["number"] for one in keys} == {"plan": 5, "messages": 4}
    assert [line.split()[:2] for line in items.splitlines()] == [
        ["messages[0]", "main#2"], ["messages[1]", "main#3"],
    ]  # fmt: skip


def test_objects_are_shown_without_their_classes(keepstate: Keepstate, url: str, tmp_path: Path) -> None:
    write = (
        "import keepstate, keepstate.sync, dataclasses, os\n"
        "@keepstate.register('order', version=2)\n"
        "@dataclasses.dataclass\n"
        "class Order:\n    item: str\n"
        "with keepstate.sync.open(os.environ['KEEPSTATE_URL']) as ks:\n"
        "    for item in ('tea', 'milk'):\n"
        "        ks.space('shop').history.commit({'order': Order(item), 'at': (1, 2)})\n"
    )
    subprocess.run([COMMAND[0], "-c", write], env={"KEEPSTATE_URL": url}, check=True)

    shown = keepstate("show", "shop", "--json")
    part = keepstate("show", "shop", "main", "order")
    differences = keepstate("diff", "shop", "main~1", "--json")

    assert shown.code == 0, shown.err
    assert shown.json()["value"]["order"] == {"@type": "order@2", "item": "milk"}
    assert part.out.splitlines()[1:] == ["{", '  "@type": "order@2",', '  "item": "milk"', "}"]
    assert [(one["path"], one["new"]) for one in differences.lines()] == [
        ("order", {"@type": "order@2", "item": "milk"}),
    ]


def test_people_at_a_terminal_see_colours_and_lines_that_fit(url: str) -> None:
    coloured, plain = at_terminal(url, "show", "run"), at_terminal(url, "show", "run", NO_COLOR="1")

    assert "\x1b[33mmain#5" in coloured
    assert "\x1b[33m" not in plain
    lines = re.sub(r"\x1b\[[\d;]*m", "", plain).split("\r\n")
    assert [line[:13] for line in lines if line.startswith(("1  ", "    "))] == [
        "1  assistant ",
        *[" " * 13] * 2,
    ]
    assert max(map(len, lines)) <= 60
    assert (
        max(map(len, re.sub(r"\x1b\[[\d;]*m", "", at_terminal(url, "diff", "run", "v1")).split("\r\n"))) <= 60
    )


def at_terminal(url: str, *words: str, **environment: str) -> str:
    """Return what a terminal of 60 columns gets to show."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    process = subprocess.Popen(
        [*COMMAND, *words, "--url", url],
        env={**kept, "TERM": "xterm", **environment},
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs)
    shown = bytearray()
    with process, open(ours, "rb", buffering=0) as terminal, suppress(OSError):  # at its end Linux says EIO
        while data := terminal.read(4096):
            shown += data
    assert process.returncode == 0
    return shown.decode()


def test_colours_are_for_terminals_only(keepstate: Keepstate) -> None:
    for words in (("log", "run"), ("show", "run"), ("diff", "run", "v1"), ("blame", "run")):
        assert "\x1b" not in keepstate(*words).out


def test_control_characters_of_what_is_stored_do_nothing(keepstate: Keepstate, url: str) -> None:
    with keepstate_open(url) as ks:
        history = ks.space("bad").history
        history.append(
            "\x1b[2J", {"role": "\x1b[1m", "content": "\x1b[31m\u202e"}, author="\x1b[7m", message="\x1b]0;"
        )
        history.append(
            "\x1b[2J",
            {
                "role": "\x1b[1m",
                "content": "\x1b[31m",
                "tool_calls": [{"function": {"name": "\x1b", "arguments": "\x1b"}}],
            },
        )

    for words in (
        ("log", "bad"),
        ("show", "bad"),
        ("show", "bad", "--full"),
        ("diff", "bad", "main~1"),
        ("blame", "bad"),
    ):
        ended = keepstate(*words)

        assert ended.code == 0, ended.err
        assert "\x1b" not in ended.out
        assert "\u202e" not in ended.out


def test_spaces_that_print_the_same_name_are_all_verified(keepstate: Keepstate, url: str) -> None:
    with open_store(url) as ks:
        ks.space("run of tenant 'acme'").history.commit({"a": 1})
    with open_store(url, tenant="acme") as ks:
        ks.space("run").history.commit({"a": 1})

    found = {(one["tenant"], one["space"]) for one in keepstate("verify", "--json").lines()}

    assert found >= {(None, "run of tenant 'acme'"), ("acme", "run")}
