"""Spaces and documents at the terminal."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from keepstate import sync
from tests.cli.conftest import COMMAND, Keepstate


def test_what_was_put_is_got(keepstate: Keepstate) -> None:
    put = keepstate("put", "run/42", "plan", '{"step": 1, "done": [true, null]}')

    got = keepstate("get", "run/42", "plan")

    assert (put.code, put.out) == (0, "1\n")
    assert got.code == 0
    assert got.json() == {"step": 1, "done": [True, None]}


def test_json_output_tells_the_version(keepstate: Keepstate) -> None:
    put = keepstate("put", "run", "plan", "1", "--json").json()
    got = keepstate("get", "run", "plan", "--json").json()

    assert put == {"version": 1, "printed_version": got.pop("printed_version")}
    assert got == {
        "key": "plan", "version": 1, "created": 1, "value": 1,
    }  # fmt: skip


def test_a_value_can_come_from_standard_input(keepstate: Keepstate) -> None:
    keepstate("put", "run", "plan", "-", stdin='["from", "a", "pipe"]')

    assert keepstate("get", "run", "plan").json() == ["from", "a", "pipe"]


def test_text_without_quotes_is_refused_with_how_to_write_it(keepstate: Keepstate) -> None:
    put = keepstate("put", "run", "plan", "hello")

    assert put.code == 2
    assert put.err.startswith("keepstate: 'hello' is not JSON")
    assert "quotes" in put.err


def test_an_absent_document_is_told_on_stderr_with_code_1(keepstate: Keepstate) -> None:
    keepstate("put", "run", "note", "1")

    got = keepstate("get", "run", "plan")

    assert (got.code, got.out) == (1, "")
    assert "there is no document 'plan' in 'run'" in got.err


def test_an_expected_version_that_is_not_there_is_a_conflict(keepstate: Keepstate) -> None:
    keepstate("put", "run", "plan", "1")

    put = keepstate("put", "run", "plan", "2", "--expected-version", "0")

    assert put.code == 4
    assert "version 1" in put.err
    assert keepstate("get", "run", "plan").json() == 1


def test_a_printed_version_goes_from_one_command_to_the_next(keepstate: Keepstate) -> None:
    first = keepstate("put", "run", "plan", "1", "--json").json()["printed_version"]

    second = keepstate("put", "run", "plan", "2", "--expected-version", first, "--json").json()
    third = keepstate("put", "run", "plan", "3", "--expected-version", first)

    assert (second["version"], third.code) == (2, 4)
    assert keepstate("get", "run", "plan", "--json").json()["printed_version"] == second["printed_version"]
    assert keepstate("put", "run", "plan", "3", "--expected-version", "2").code == 2


def test_a_document_with_a_time_to_live_expires(keepstate: Keepstate) -> None:
    keepstate("put", "run", "plan", "1", "--ttl-s", "0.001")

    assert keepstate("get", "run", "plan").code == 1


def test_a_store_that_is_not_there_is_told_and_not_made(keepstate: Keepstate, tmp_path: Path) -> None:
    got = keepstate("ls", "run")

    assert got.code == 1
    assert "there is no store at" in got.err
    assert not (tmp_path / "cli.db").exists()


def test_brackets_and_control_characters_are_shown_as_they_are(keepstate: Keepstate) -> None:
    keepstate("put", "run", "[red]key[/red]\x1b[2J", '"[bold]"')

    listed = keepstate("ls", "run")

    assert "[red]key[/red]\\u001b[2J" in listed.out
    assert '"[bold]"' in listed.out


def test_documents_are_listed_by_pattern(keepstate: Keepstate) -> None:
    for key in ("plan", "plan/2", "note"):
        keepstate("put", "run", key, "1")

    listed = keepstate("ls", "run", "plan*", "--json")
    table = keepstate("ls", "run")

    assert [line["key"] for line in listed.lines()] == ["plan", "plan/2"]
    assert all(key in table.out for key in ("plan", "plan/2", "note"))


def test_spaces_are_listed_below_a_name(keepstate: Keepstate) -> None:
    for space in ("run/1", "run/10", "run/1/a", "team"):
        keepstate("put", space, "k", "1")

    assert keepstate("spaces", "run").out.splitlines() == ["run/1", "run/1/a", "run/10"]
    assert keepstate("spaces", "run/1").out.splitlines() == ["run/1", "run/1/a"]
    assert keepstate("spaces", "--json").lines() == ["run/1", "run/1/a", "run/10", "team"]


def test_each_command_is_about_the_spaces_of_one_tenant(keepstate: Keepstate) -> None:
    for tenant in ((), ("--tenant", "t1"), ("--tenant", "t10")):
        keepstate("put", "run", "k", json.dumps(tenant), *tenant)

    assert keepstate("get", "run", "k", "--tenant", "t1", "--json").lines()[0]["value"] == ["--tenant", "t1"]
    assert keepstate("spaces", "--tenants", "--json").lines() == [
        {"tenant": None, "space": "run"}, {"tenant": "t1", "space": "run"}, {"tenant": "t10", "space": "run"}
    ]  # fmt: skip
    assert keepstate("spaces", "--tenants").out.splitlines() == ["-  run", "'t1'  run", "'t10'  run"]
    absent = keepstate("get", "run", "none", "--tenant", "t1")
    assert absent.code == 1 and "keepstate ls run --tenant t1" in absent.err
    assert [line["tenant"] for line in keepstate("verify", "--json").lines()] == [None, "t1", "t10"]
    for command in (
        ("doctor",),
        ("doctor", "--verify"),
        ("spaces", "--tenants"),
        ("tenants",),
    ):
        ended = keepstate(*command, "--tenant", "t1")
        assert ended.code == 2 and "tenant" in ended.err
    assert keepstate("doctor", "--verify").out.endswith("no damage\n")


def test_objects_are_shown_without_their_classes_and_with_them(shell: Keepstate, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "import keepstate, dataclasses\n"
        "@keepstate.register('order', version=2)\n"
        "@dataclasses.dataclass\n"
        "class Order:\n    item: str\n"
    )
    write = (
        "import asyncio, keepstate, os, shop\n"
        "async def main():\n"
        "    async with keepstate.open(os.environ['KEEPSTATE_URL']) as ks:\n"
        "        await ks.space('run').documents.put('order', shop.Order('tea'))\n"
        "asyncio.run(main())\n"
    )
    subprocess.run(
        [COMMAND[0], "-c", write],
        cwd=tmp_path,
        env={"KEEPSTATE_URL": f"sqlite:///{tmp_path}/cli.db", "PYTHONPATH": str(tmp_path)},
        check=True,
    )

    assert shell("get", "run", "order").json() == {"@type": "order@2", "item": "tea"}
    assert shell("get", "run", "order", "--app", "shop").json() == {"@type": "order@2", "item": "tea"}


def test_a_module_that_cannot_be_imported_is_named(keepstate: Keepstate) -> None:
    got = keepstate("get", "run", "order", "--app", "no_such_module")

    assert got.code == 2
    assert "--app no_such_module" in got.err


def test_watching_prints_changes_as_they_are_made(keepstate: Keepstate) -> None:
    keepstate("put", "run", "plan", "1")
    keepstate("put", "run", "plan", "2")

    watched = keepstate("watch", "run", "--after", "0", "--timeout-s", "0.2", "--json")
    first = watched.lines()[0]["position"]
    rest = keepstate("watch", "run", "--after", first, "--timeout-s", "0.2", "--json")

    assert rest.lines() == watched.lines()[1:]
    assert [(line["kind"], line["old"], line["new"]) for line in watched.lines()] == [
        ("created", None, 1), ("updated", 1, 2),
    ]  # fmt: skip
    assert f"watching * in run after {first}" in rest.err.replace("\n", "")
    assert keepstate("watch", "run", "--after", "1", "--timeout-s", "0.2").code == 2


def test_a_long_list_is_whole_and_in_order(keepstate: Keepstate, url: str) -> None:
    names = [f"note/{number:03}" for number in range(250)]
    with sync.open(url) as ks, ks.space("run").transaction() as tx:
        for number, name in enumerate(reversed(names)):
            tx.documents.put(name, number)

    listed = keepstate("ls", "run", "note/*", "--json").lines()

    assert [each["key"] for each in listed] == names
    assert [each["value"] for each in listed] == list(reversed(range(250)))
    assert keepstate("ls", "run").out.count("note/") == 250
    assert keepstate("ls", "run", "plan/*").out == ""
