"""Subjects at the terminal."""

from __future__ import annotations

import shlex

from keepstate import sync
from keepstate._finish import finish
from keepstate.engine.kernel import layout
from keepstate.managers import WorkflowState, WorkflowStatus
from keepstate.names import stored_name
from keepstate.stores.protocol import Batch, Put
from keepstate.sync.managers.workflows import WorkflowStateManager
from keepstate.sync.sessions.session import Session
from tests.cli.conftest import Keepstate


def _fill(url: str) -> None:
    with sync.open(url) as ks:
        for number, owner in enumerate(("ann", "ann", "bob")):
            session = Session(f"s{number}", user_id=owner, persistence=ks)
            session.conversation.append({"role": "user", "content": "Hello"})
        WorkflowStateManager(persistence=ks).create(WorkflowState("import", status=WorkflowStatus.RUNNING))
        ks.space("mails").queue.put("x", kind="mail", delay_s=3_600)


def _ids(ended: object) -> list[str]:
    return sorted(row["id"] for row in ended.lines())  # type: ignore[attr-defined]


def test_subjects_are_listed_by_kind_state_owner_name_and_time(keepstate: Keepstate, url: str) -> None:
    _fill(url)

    assert _ids(keepstate("find", "--json")) == ["import", "mail", "s0", "s1", "s2"]
    assert _ids(keepstate("find", "--kind", "session", "--json")) == ["s0", "s1", "s2"]
    assert _ids(keepstate("find", "--state", "running", "--json")) == ["import"]
    assert _ids(keepstate("find", "--owner", "ann", "--json")) == ["s0", "s1"]
    assert _ids(keepstate("find", "mails", "--json")) == ["mail"]
    assert _ids(keepstate("find", "--since", "1h", "--json")) == ["import", "mail", "s0", "s1", "s2"]
    assert keepstate("find", "--since", "2099-01-01T00:00:00Z").out == ""
    [queue] = keepstate("find", "--order", "due", "--json").lines()
    assert (queue["space"], queue["state"], queue["owner"], queue["tenant"]) == (
        "mails",
        "waiting",
        None,
        None,
    )
    shown = keepstate("find", "--kind", "workflow").out.splitlines()
    assert shown[0].split()[:3] == ["kind", "id", "state"]
    assert shown[1].split()[:3] == ["workflow", "import", "running"]


def test_a_listing_is_continued_by_the_command_that_it_prints(keepstate: Keepstate, url: str) -> None:
    _fill(url)
    whole = [row["id"] for row in keepstate("find", "--since", "1h", "--json").lines()]

    page = keepstate("find", "--since", "1h", "--limit", "2")
    found = [line.split()[1] for line in page.out.splitlines()[1:]]
    while "there are more: " in page.err:
        _, *words = shlex.split(page.err.partition("there are more: ")[2])
        page = keepstate(*words)
        found += [line.split()[1] for line in page.out.splitlines()[1:]]
    assert found == whole
    *rows, last = keepstate("find", "--limit", "2", "--json").lines()
    rest = keepstate("find", "--limit", "3", "--after", last["next"], "--json").lines()
    assert [row["id"] for row in (*rows, *rest)] == whole


def test_wrong_options_of_find_are_rejected(keepstate: Keepstate, url: str) -> None:
    _fill(url)

    for words in (
        ("--kind", "sessions"),
        ("--since", "noon"),
        ("--since", "2026-01-01"),
        ("--order", "name"),
        ("--limit", "0"),
        ("--after", "x"),
    ):
        ended = keepstate("find", *words)
        assert (ended.code, ended.out) == (2, ""), words
        assert words[1] in ended.err or "limit" in ended.err or "after" in ended.err


def test_a_tenant_lists_its_own(keepstate: Keepstate, url: str) -> None:
    _fill(url)
    with sync.open(url) as ks:
        ks.tenant("acme").space("mails").queue.put("x", kind="letter")

    assert [row["id"] for row in keepstate("find", "--tenant", "acme", "--json").lines()] == ["letter"]
    assert keepstate("find", "--tenant", "other", "--json").out == ""


def test_all_tenants_are_listed_page_by_page(keepstate: Keepstate, url: str) -> None:
    with sync.open(url) as ks:
        for tenant in ("acme", "zeta"):
            for number in range(2):
                ks.tenant(tenant).space("mails").queue.put("x", kind=f"{tenant}{number}")

    page = keepstate("find", "--tenants", "--limit", "3")
    assert [line.split()[:2] for line in page.out.splitlines()] == [
        ["tenant", "kind"], *[["'acme'", "queue"]] * 2, ["'zeta'", "queue"]
    ]  # fmt: skip
    _, *words = shlex.split(page.err.partition("there are more: ")[2])
    assert [line.split()[:2] for line in keepstate(*words).out.splitlines()[1:]] == [["'zeta'", "queue"]]
    for command in ("find", "reindex"):
        assert keepstate(command, "--tenants", "--tenant", "acme").code == 2


def test_the_doctor_finds_a_damaged_index_and_reindex_corrects_it(keepstate: Keepstate, url: str) -> None:
    _fill(url)
    keepstate("find")
    keepstate("find", "--tenants")
    assert keepstate("doctor").code == 0
    assert keepstate("reindex").out == "0 errors corrected\n"

    with sync.open(url) as ks:
        ks.tenant("acme").space("mails").queue.put("x", kind="letter")
        ks.tenant("acme").find()
        for space in ("keepstate:index", stored_name("acme", "keepstate:index")):
            page = finish(ks.store.scan(space, layout.ROWS, limit=1))
            finish(ks.store.apply([Batch(space, [Put(page.entries[0].key, b"?")])]))

    assert keepstate("doctor", "--verify").code == 5
    told = keepstate("doctor", "--json")
    [risk] = [finding for finding in told.json()["findings"] if not finding["well"]]
    assert (told.code, risk["subject"]) == (1, "index")
    assert "errors, such as: the index of subjects" in risk["text"]
    assert "keepstate reindex --tenants" in risk["mend"]
    assert keepstate("reindex", "--tenants", "--json").json()["corrected"] >= 2
    assert keepstate("doctor").code == keepstate("doctor", "--verify").code == 0
    assert _ids(keepstate("find", "--json")) == ["import", "mail", "s0", "s1", "s2"]


def test_a_repaired_store_makes_its_index_again(keepstate: Keepstate, url: str) -> None:
    _fill(url)
    whole = keepstate("find", "--json").lines()

    assert keepstate("repair", url, "file:///new.journal").code == 0
    assert keepstate("find", "--json", "--url", "file:///new.journal").lines() == whole
    assert keepstate("doctor", "--verify", "--url", "file:///new.journal").code == 0
