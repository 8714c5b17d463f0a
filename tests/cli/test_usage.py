"""What makes no sense is refused by name, with code 2, before anything is opened."""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import keepstate as keepstate_package
from keepstate import sync
from keepstate.cli.app import COMMANDS, GROUPS
from keepstate.cli.session import Session
from tests.cli.conftest import CALL, Keepstate, Started


@pytest.mark.parametrize("words", [("put", "run", "plan", "1"), ("watch", "run", "--timeout-s", "0.1")])
@pytest.mark.parametrize("url", ["memory://", "memory://shared"])
def test_what_would_be_gone_with_the_command_is_not_written(
    keepstate: Keepstate, words: Sequence[str], url: str
) -> None:
    ended = keepstate(*words, "--url", url)

    assert (ended.code, ended.out) == (2, "")
    assert f"{url} ends with this command" in ended.err


@pytest.mark.parametrize(
    "words",
    [
        *(("ls",), ("branch",), ("tag",), ("verify",), ("prune", "--keep-last", "1"), ("events",)),
        ("export", "file"),
    ],
    ids=" ".join,
)
def test_a_space_that_is_not_there_is_told(keepstate: Keepstate, words: Sequence[str]) -> None:
    keepstate("put", "run", "plan", "1")
    ended = keepstate(words[0], "nun", *words[1:])

    assert (ended.code, ended.out) == (1, "")
    assert "'nun'" in ended.err and "keepstate spaces" in ended.err


@pytest.mark.parametrize("words", [("watch", "run"), ("events", "run", "--follow")], ids=" ".join)
def test_following_makes_no_store(keepstate: Keepstate, tmp_path: Path, words: Sequence[str]) -> None:
    ended = keepstate(*words)

    assert ended.code == 1 and "there is no store" in ended.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [("--workers", "0"), ("--kill", "-1"), ("--most", "0"), ("--most", "-5")],
    ids=" ".join,
)
def test_a_number_that_the_demo_cannot_use_is_refused_by_its_option(
    keepstate: Keepstate, words: Sequence[str]
) -> None:
    ended = keepstate("demo", *words)

    assert (ended.code, ended.out) == (2, "")
    assert f"{' '.join(words)} is too small" in ended.err


def test_the_overview_lists_each_command_under_one_subject(keepstate: Keepstate) -> None:
    told = keepstate("--help").out

    assert sorted(name for names in GROUPS.values() for name in names) == sorted(COMMANDS)
    assert [title for title in GROUPS if f"─ {title} ─" not in told] == []
    assert "KEEPSTATE_URL" in told


def test_help_shows_no_default_that_says_nothing(keepstate: Keepstate) -> None:
    told = keepstate("schedules", "--help").out + keepstate("keys", "add", "--help").out

    assert "[default: False]" not in told and '[default: ""]' not in told and "--empty-" not in told
    assert "[default: 8484]" in keepstate("serve", "--help").out


def test_the_demo_says_where_it_runs_without_a_url(keepstate: Keepstate) -> None:
    told = keepstate("demo", "--help").out

    assert "temporary folder" in told
    assert "KEEPSTATE_URL" not in told


@pytest.mark.parametrize("command", [("spaces",), ("doctor",), ("doctor", "--verify")], ids=" ".join)
def test_a_wrong_option_is_told_also_where_there_is_no_file(
    keepstate: Keepstate, command: Sequence[str]
) -> None:
    ended = keepstate(*command, "--url", "sqlite:///absent.db?foo=1")

    assert ended.code == 2
    assert "does not have an option 'foo'" in ended.err


def test_a_task_that_is_not_dead_is_answered_with_the_command_that_lists_them(keepstate: Keepstate) -> None:
    keepstate("put", "run", "plan", "1")

    ended = keepstate("queue", "requeue", "run", "nope")

    assert ended.code == 1
    assert "see: keepstate queue list run dead" in ended.err


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (("get", "a run", "x"), 'keepstate ls "a run"'),
        (("queue", "show", "a run", "x"), 'keepstate queue list "a run"'),
        (("export", "a run", "x.history"), "keepstate spaces"),
    ],
    ids=["get", "queue", "export"],
)
def test_a_command_to_be_pasted_names_the_store_if_the_environment_does_not(
    keepstate: Keepstate, url: str, tmp_path: Path, words: Sequence[str], command: str
) -> None:
    other = f"sqlite:///{tmp_path}/other.db"
    for place in (url, other):
        keepstate("put", "run", "plan", "1", "--url", place)

    assert keepstate(*words, "--url", url).err.endswith(f"see: {command}\n")
    assert keepstate(*words, "--url", other).err.endswith(f"see: {command} --url {other}\n")


def test_a_command_to_be_pasted_has_no_password() -> None:
    session = Session(url="redis://ana:secret@127.0.0.1:1/0?retry_for_s=9")

    assert session.command("ls", "run") == 'keepstate ls run --url "redis://ana@127.0.0.1:1/0?retry_for_s=9"'


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("requeue", "run", "x", "--kind", "mail"), "give the ids of tasks, or --kind and --since"),
        (("requeue", "--under", "run", "--since", "yesterday"), "--since yesterday is not a time"),
        (("pause",), "name one space, or all below a name by --under"),
        (("pause", "run", "--under", "run"), "name one space, or all below a name by --under"),
        (("pause", "run", "--tenants"), "--tenants is for --under"),
        (("counts", "--under", "run", "--tenants", "--tenant", "acme"), "give no --tenant"),
    ],
)
def test_an_option_that_would_have_no_effect_is_refused(
    keepstate: Keepstate, words: Sequence[str], told: str
) -> None:
    ended = keepstate("queue", *words)

    assert (ended.code, ended.out) == (2, "")
    assert told in ended.err


@pytest.mark.parametrize(
    "form", ['{"@type": "tuple", "items": [1]}', '[{"deep": {"@type": "map", "items": []}}]']
)
def test_the_form_that_shows_another_type_is_not_stored_as_a_dict(keepstate: Keepstate, form: str) -> None:
    ended = keepstate("put", "run", "plan", form)

    assert ended.code == 2
    assert "takes plain JSON" in ended.err
    assert keepstate("get", "run", "plan").code == 1


def test_the_package_runs_as_the_command(keepstate: Keepstate, started: Started) -> None:
    keepstate("put", "run", "plan", "1")

    out, err = started("spaces", command=(sys.executable, "-m", "keepstate")).communicate(timeout=60)

    assert (out, err) == ("run\n", "")


def test_errors_are_json_lines_where_the_results_are(keepstate: Keepstate, url: str) -> None:
    keepstate("put", "run", "plan", "1")

    mistyped = keepstate("gte", "run", "plan", "--json")
    absent = keepstate("ls", "nun", "--json")
    late = keepstate("put", "run", "plan", "2", "--expected-version", "0", "--json")

    for ended, error in ((mistyped, "usage"), (absent, "not_found"), (late, "conflict")):
        told = json.loads(ended.err)
        assert (ended.out, told["error"], told["exit_code"]) == ("", error, ended.code)
    assert 'Did you mean "get"?' in json.loads(mistyped.err)["message"]
    assert (mistyped.code, absent.code) == (2, 1)


def test_an_error_advises_a_command_and_no_call(keepstate: Keepstate, url: str) -> None:
    with sync.open(url) as ks:
        ks.space("run").history.commit({"plan": 1})
        ks.space("run").queue.put("a", id="mail/1")
        ks.space("run").queue.cancel("mail/1")

    for words, advice in (
        (("queue", "rerun", "run", "mail/1", "--from-step", "none"), "see: keepstate queue show run mail/1"),
        (("queue", "requeue", "run", "none"), "see: keepstate queue list run dead"),
        (("queue", "dead", "--under", "", "--after", "none"), "`next` of a page"),
        (("schedules", "run", "none", "--run"), "see: keepstate schedules run"),
        (("expunge", "run", "", "--yes"), "drop the space"),
        (("find", "--after", "none"), ""),
        (("log", "run", "none"), ""),
        (("merge", "run", "none"), ""),
        (("rollback", "run", "--steps", "9"), ""),
    ):
        ended = keepstate(*words)
        assert ended.code in (1, 2), words
        assert advice in ended.err and not CALL.search(ended.err), ended.err


def test_no_text_of_a_command_names_a_call() -> None:
    package = Path(keepstate_package.__file__).parent
    files = [*(package / "cli").glob("*.py"), package / "engine/space/health.py"]

    assert [(file.name, text) for file in files for text in _texts(file) if CALL.search(text)] == []


def _texts(file: Path) -> list[str]:
    """Return the texts in a module except its docstrings."""
    nodes = list(ast.walk(ast.parse(file.read_text())))
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    return [
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
    ]


def test_the_nearest_word_is_named_for_a_mistyped_one(keepstate: Keepstate, url: str) -> None:
    with sync.open(url) as ks:
        space = ks.space("run")
        space.schedules.put("nightly", every_s=3600)
        space.queue.put("plan", id="report/1")
        space.queue.run(lambda task: task.step("look", len, "four"), idle_s=0.01)

    for words, meant in (
        (("find", "--kind", "sesion"), "did you mean 'session'?"),
        (("schedules", "run", "nihgtly"), "did you mean 'nightly'?"),
        (("queue", "show", "run", "report/21"), "did you mean 'report/1'?"),
        (("queue", "rerun", "run", "report/21"), "did you mean 'report/1'?"),
        (("queue", "rerun", "run", "report/1", "--from-step", "lok"), "did you mean 'look'?"),
    ):
        near, far = keepstate(*words), keepstate(*words[:-1], "zzz")
        assert near.code in (1, 2) and meant in near.err, near.err
        assert far.code in (1, 2) and "did you mean" not in far.err, far.err


def test_the_nearest_space_is_named_for_a_mistyped_one(keepstate: Keepstate) -> None:
    keepstate("put", "reports/2026", "plan", "1")

    assert "did you mean 'reports/2026'?" in keepstate("ls", "report/2026").err
    assert "did you mean" not in keepstate("ls", "billing").err


def test_an_empty_listing_is_told_alike(keepstate: Keepstate, url: str) -> None:
    with sync.open(url) as ks:
        ks.space("run").documents.put("plan", 1)
        ks.space("run").history.commit({})
        ks.space("run").events.append({"n": 1})
        last = str(ks.space("run").events.read()[-1].position)

    for words in (
        *(("queue", "list", "run"), ("queue", "dead", "run"), ("queue", "dead", "--under", "run")),
        *(("schedules", "run"), ("find",), ("find", "--tenants"), ("tenants",), ("ls", "run", "x*")),
        *(("spaces", "nun"), ("spaces", "nun", "--tenants"), ("size", "--each", "--tenant", "nobody")),
        *(("tag", "run"), ("log", "run", "--author", "nobody"), ("diff", "run", "main", "main")),
        *(("blame", "run"), ("events", "run", "--after", last), ("keys", "list"), ("keys", "audit")),
    ):
        told, plain = keepstate(*words), keepstate(*words, "--json")
        assert (told.code, told.out, told.err) == (0, "", "keepstate: nothing to list\n"), words
        assert (plain.code, plain.out, plain.err) == (0, "", ""), words


def test_a_trace_names_operations_and_no_values(shell: Keepstate, keepstate: Keepstate) -> None:
    keepstate("put", "run/1", "plan", '"secret"')

    traced = shell("get", "run/1", "plan", KEEPSTATE_TRACE="1")
    plain = shell("get", "run/1", "plan", KEEPSTATE_TRACE="")
    absent = shell("get", "run/1", "absent-name", KEEPSTATE_TRACE="1")

    assert traced.out == plain.out
    assert plain.err == ""
    assert re.search(r"^ +\d+\.\d\d ms  documents\.\w+ space=run/1", traced.err, re.MULTILINE)
    assert "secret" not in traced.err
    assert " ms  documents." in absent.err
