"""Branches, tags, merges and going back, at the terminal; and what keeps a history in order."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

import keepstate.sync
from keepstate.engine.kernel import layout
from keepstate.stores.protocol import Batch, Delete
from tests.cli.conftest import Keepstate

keepstate_open = keepstate.sync.open


@pytest.fixture(autouse=True)
def _run(url: str) -> None:
    """Make a space of three commits."""
    with keepstate_open(url, author="planner") as ks:
        for n in (1, 2, 3):
            ks.space("run").history.commit({"n": n, "plan": {"step": n}}, message=f"step {n}")


def both_sides_change(url: str) -> None:
    """Let main and the branch `try` set the same to different values."""
    with keepstate_open(url) as ks:
        history = ks.space("run").history
        history.branch("try")
        history.commit({"n": 5, "plan": {"step": 3}}, author="writer")
        history.commit({"n": 7, "plan": {"step": 3}, "new": True}, branch="try", author="critic")


def state(keepstate: Keepstate, ref: str = "main") -> object:
    return keepstate("show", "run", ref, "--json").json()["value"]


def test_a_branch_is_made_listed_and_deleted(keepstate: Keepstate) -> None:
    made = keepstate("branch", "run", "try", "--at", "main#2")
    listed = keepstate("branch", "run", "--json").lines()
    table = keepstate("branch", "run").out
    deleted = keepstate("branch", "run", "try", "--delete")

    assert made.code == 0, made.err
    assert made.out.startswith("try#2  ")
    assert [(one["name"], one["number"]) for one in listed] == [("main", 3), ("try", 2)]
    assert [line.split()[:2] for line in table.splitlines()] == [["main", "main#3"], ["try", "try#2"]]
    assert deleted.out == "branch 'try' of 'run' is deleted\n"
    assert len(keepstate("branch", "run").out.splitlines()) == 1


def test_a_tag_stays_on_its_commit(keepstate: Keepstate) -> None:
    keepstate("tag", "run", "v1", "--at", "main#1")
    keepstate("tag", "run", "last")

    listed = keepstate("tag", "run", "--json").lines()

    assert [one["name"] for one in listed] == ["last", "v1"]
    assert state(keepstate, "v1") == {"n": 1, "plan": {"step": 1}}
    assert keepstate("tag", "run", "v1", "--delete", "--json").json() == {"deleted": True}
    assert keepstate("tag", "run", "v1", "--delete").code == 1


def test_a_merge_brings_what_the_other_changed(keepstate: Keepstate, url: str) -> None:
    with keepstate_open(url) as ks:
        history = ks.space("run").history
        history.branch("try")
        history.commit({"n": 3, "plan": {"step": 4}}, branch="try")
        history.commit({"n": 4, "plan": {"step": 3}})

    merged = keepstate("merge", "run", "try", "--author", "me", "--json").json()
    again = keepstate("merge", "run", "try")

    assert (merged["number"], merged["author"], merged["message"]) == (5, "me", "merge try")
    assert state(keepstate) == {"n": 4, "plan": {"step": 4}}
    assert again.err == "nothing to merge: main has all commits of try\n"


def test_a_conflict_shows_each_place_with_both_sides_and_ends_with_4(keepstate: Keepstate, url: str) -> None:
    both_sides_change(url)

    ended = keepstate("merge", "run", "try")
    told = keepstate("merge", "run", "try", "--json")

    assert (ended.code, ended.out) == (4, "")
    assert ended.err.splitlines()[:4] == [
        "n (both sides changed it)",
        "  before          3",
        "  main by writer  5",
        "  try by critic   7",
    ]
    assert 'to decide: --rule "n=ours"' in ended.err
    assert told.code == 4
    assert [(one["path"], one["base"], one["ours"], one["theirs"]) for one in told.lines()] == [
        ("n", 3, 5, 7)
    ]


def test_a_side_that_removed_is_shown_as_nothing(keepstate: Keepstate, url: str) -> None:
    with keepstate_open(url) as ks:
        history = ks.space("run").history
        history.branch("try")
        history.commit({"plan": None}, author="writer")
        history.commit({"plan": None, "n": 7}, branch="try", author="critic")

    ended = keepstate("merge", "run", "try")
    (told,) = keepstate("merge", "run", "try", "--json").lines()

    assert ended.err.splitlines()[2] == "  main by writer  (nothing)"
    assert (told["base"], "ours" in told, told["theirs"]) == (3, False, 7)


@pytest.mark.parametrize(
    ("rule", "n"), [("n=counter", 9), ("n=theirs", 7), ("maximum", 7), ("*=ours", 5), ("[*]=minimum", 5)]
)
def test_a_rule_decides(keepstate: Keepstate, url: str, rule: str, n: int) -> None:
    both_sides_change(url)

    ended = keepstate("merge", "run", "try", "--rule", "plan=ours", "--rule", rule)

    assert ended.code == 0, ended.err
    assert state(keepstate) == {"n": n, "plan": {"step": 3}, "new": True}


def test_a_rollback_commits_an_earlier_state_again(keepstate: Keepstate) -> None:
    by_steps = keepstate("rollback", "run", "--steps", "1", "--author", "me")
    by_ref = keepstate("rollback", "run", "--to", "main#1", "--message", "from the start", "--json").json()

    assert by_steps.out.startswith("main#4  ")
    assert (by_ref["number"], by_ref["message"]) == (5, "from the start")
    assert state(keepstate) == {"n": 1, "plan": {"step": 1}}
    assert state(keepstate, "main#4") == {"n": 2, "plan": {"step": 2}}


def test_old_commits_are_let_go_of(keepstate: Keepstate) -> None:
    keepstate("tag", "run", "v1", "--at", "main#1")

    pruned = keepstate("prune", "run", "--keep-last", "1", "--json").json()
    gone = keepstate("show", "run", "main#2")

    assert pruned["commits"] == 1
    assert (gone.code, state(keepstate, "v1")) == (1, {"n": 1, "plan": {"step": 1}})
    assert "was pruned" in gone.err
    pruned = keepstate("prune", "run", "--keep-last", "1", "--drop-tagged")
    assert pruned.out.startswith("1 commit pruned, ")
    assert keepstate("verify", "run").code == 0


@pytest.mark.parametrize(("age", "left"), [("1h", 3), ("2w", 3), ("2000-01-01T00:00:00Z", 3), ("0s", 1)])
def test_commits_are_let_go_of_by_age(keepstate: Keepstate, age: str, left: int) -> None:
    assert keepstate("prune", "run", "--older-than", age).code == 0

    assert len(keepstate("log", "run").out.splitlines()) == left


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("branch", "run", "--delete"), 2, "give one"),
        (("tag", "run", "v", "--at", "main", "--delete"), 2, "leave out one of them"),
        (("branch", "run", "main"), 4, "main"),
        (("branch", "run", "a~b"), 2, "without ~ # @"),
        (("branch", "run", "no", "--delete"), 1, "there is no branch 'no' of 'run'"),
        (("merge", "run", "no"), 1, "there is no branch, tag or commit 'no'"),
        (
            ("merge", "run", "main~1", "--rule", "n=best"),
            2,
            "'best' is not a rule; give PATH=RULE, with one of refuse",
        ),
        (("merge", "run", "main~1", "--rule", "a..b=ours"), 2, "a.⟨here⟩.b is not a path"),
        (("rollback", "run"), 2, "needs either --to COMMIT or --steps N"),
        (("rollback", "run", "--to", "main~1", "--steps", "1"), 2, "needs either"),
        (("prune", "run"), 2, "needs --keep-last N or --older-than 30d"),
        (("prune", "run", "--older-than", "soon"), 2, "--older-than soon is not a time"),
        (("prune", "run", "--older-than", "2026-11-21"), 2, "for UTC write 2026-11-21T00:00:00Z"),
        (("rollback", "run", "--to", "main@2026-11-21T11:09"), 2, "for UTC write 2026-11-21T11:09:00Z"),
        (("prune", "run", "--keep-last", "0"), 2, "`keep_last` is 0"),
        (("export", "nobody", "x.history"), 1, "'nobody' has no history"),
        (("export", "run", "no/such/folder"), 2, "there is no folder no/such"),
    ],
)
def test_what_cannot_be_done_is_told_in_one_line(
    keepstate: Keepstate, words: tuple[str, ...], code: int, says: str
) -> None:
    ended = keepstate(*words)

    assert (ended.code, ended.out) == (code, "")
    assert says in ended.err
    assert len(ended.err.splitlines()) == 1


def test_a_history_goes_into_a_file_and_into_another_store(keepstate: Keepstate, tmp_path: Path) -> None:
    other = f"sqlite:///{tmp_path}/other.db"
    keepstate("tag", "run", "v1", "--at", "main#2")

    exported = keepstate("export", "run", "run.history", "--json").json()
    imported = keepstate("import", "run.history", "--url", other)
    named = keepstate("import", "run.history", "--space", "copy", "--url", other, "--json").json()

    assert (exported["commits"], exported["bytes"]) == (3, (tmp_path / "run.history").stat().st_size)
    assert imported.out == "3 commits imported into the history of run\n"
    assert named == {"space": "copy", "commits": 3}
    assert keepstate("log", "run", "--json").out == keepstate("log", "copy", "--json", "--url", other).out
    assert keepstate("show", "run", "v1", "--url", other).code == 0


def test_a_file_that_is_there_is_replaced_only_if_asked(keepstate: Keepstate, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("mine")

    refused = keepstate("export", "run", "x")

    assert refused.code == 2
    assert "x exists already; give another name, or --replace" in refused.err
    assert (tmp_path / "x").read_text() == "mine"
    assert keepstate("export", "run", "x", "--replace").code == 0


def test_a_damaged_bundle_brings_nothing(keepstate: Keepstate, tmp_path: Path) -> None:
    keepstate("export", "run", "x.history")
    data = bytearray((tmp_path / "x.history").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "x.history").write_bytes(data)

    ended = keepstate("import", "x.history", "--space", "copy")

    assert ended.code == 5
    assert "x.history is damaged" in ended.err
    assert keepstate("spaces").out == "run\n"


def test_another_history_is_not_written_over(keepstate: Keepstate, url: str) -> None:
    keepstate("export", "run", "x.history")
    with keepstate_open(url) as ks:
        ks.space("busy").history.commit({"x": 1})

    ended = keepstate("import", "x.history", "--space", "busy")

    assert ended.code == 4
    assert "import the history into another space" in ended.err


def test_verifying_says_that_all_is_whole_and_finds_what_is_not(keepstate: Keepstate, tmp_path: Path) -> None:
    journal = f"file:///{tmp_path}/x.journal?format=json"
    keepstate("export", "run", "x.history")
    keepstate("import", "x.history", "--space", "run", "--url", journal)

    whole = keepstate("verify")
    told = keepstate("verify", "run", "--json", "--url", journal).json()

    assert (whole.code, whole.out.startswith("run: 3 commits, ")) == (0, True)
    assert whole.out.endswith("; no damage\n")
    assert told == {"tenant": None, "space": "run", "commits": 3, "objects": told["objects"], "problems": []}


def test_verifying_ends_with_5_where_an_object_is_gone(keepstate: Keepstate, url: str) -> None:
    asyncio.run(lose_an_object(url))

    ended = keepstate("verify", "big")
    told = keepstate("verify", "--json").lines()

    assert ended.code == 5
    assert re.search(r"^damaged  big: .*object [0-9a-f]{40}", ended.out)
    assert ended.out.endswith("; 1 problem\n")
    assert [(one["space"], len(one["problems"])) for one in told] == [("big", 1), ("run", 0)]


async def lose_an_object(url: str) -> None:
    """Make the space `big`, and delete one object of its history."""
    async with keepstate.open(url) as ks:
        await ks.space("big").history.commit({"list": list(range(5_000))})
        page = await ks.store.scan("big", layout.STATES)
        await ks.store.apply([Batch("big", [Delete(page.entries[0].key)])])
