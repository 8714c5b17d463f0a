"""Tenants and whole spaces at the terminal."""

from __future__ import annotations

from tests.cli.conftest import Keepstate


def test_tenants_and_the_spaces_of_all_of_them_are_listed(keepstate: Keepstate) -> None:
    keepstate("put", "run/1", "plan", "1")
    for tenant in ("acme", "zeta"):
        keepstate("put", "run/1", "plan", "1", "--tenant", tenant)
        keepstate("put", "run/10", "plan", "1", "--tenant", tenant)

    assert [row["id"] for row in keepstate("tenants", "--json").lines()] == ["acme", "zeta"]
    assert keepstate("tenants").out.split() == ["tenant", "'acme'", "'zeta'"]
    assert [row["id"] for row in keepstate("tenants", "--limit", "1", "--json").lines()] == ["acme"]
    assert [row["id"] for row in keepstate("tenants", "--after", "acme", "--json").lines()] == ["zeta"]
    assert keepstate("tenants", "--tenant", "acme").code == 2
    assert [row["tenant"] for row in keepstate("spaces", "run/1", "--tenants", "--json").lines()] == [
        None, "acme", "zeta"
    ]  # fmt: skip


def test_documents_are_removed_and_missing_ones_named(keepstate: Keepstate) -> None:
    keepstate("put", "run", "plan", "1")
    keepstate("put", "run", "note", "1")

    removed = keepstate("rm", "run", "plan", "none", "note")

    assert (removed.code, removed.out) == (1, "2 documents deleted\n")
    assert "there is no document 'none' in 'run'" in removed.err
    assert keepstate("ls", "run", "--json").lines() == []
    assert keepstate("rm", "run").code == 2


def test_a_space_is_dropped_once_and_only_if_confirmed(keepstate: Keepstate) -> None:
    keepstate("put", "run", "plan", "1")
    size = keepstate("size", "run", "--json").json()
    refused = keepstate("drop", "run")

    assert size["entries"] == 1 and size["size_bytes"] > 4
    assert (refused.code, "--yes" in refused.err) == (2, True)
    assert keepstate("drop", "run", "--yes", "--json").json() == {"space": "run", "dropped": True}
    assert (keepstate("drop", "run", "--yes").code, keepstate("size", "run").code) == (1, 1)
