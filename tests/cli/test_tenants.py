"""Tenants and whole spaces at the terminal."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import keepstate as ks_package
from keepstate.cli import tenants
from tests.cli.conftest import Keepstate


def test_the_limit_of_tenants_counts_over_all_pages(
    keepstate: Keepstate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenants, "_AT_ONCE", 2)
    for number in range(5):
        keepstate("put", "run/1", "plan", "1", "--tenant", f"t{number}")

    limited = [row["id"] for row in keepstate("tenants", "--limit", "3", "--json").lines()]
    assert limited == ["t0", "t1", "t2"]
    assert len(keepstate("tenants", "--json").lines()) == 5


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


def test_a_tenant_is_erased_if_its_id_is_given_twice(keepstate: Keepstate) -> None:
    for tenant in ("acme", "zeta"):
        keepstate("put", "run/1", "plan", "1", "--tenant", tenant)
        keepstate("put", "run/2", "plan", "1", "--tenant", tenant)
    size = keepstate("size", "--tenant", "acme", "--json").json()
    refused = keepstate("erase", "--tenant", "acme", "--confirm", "zeta")
    nameless = keepstate("erase", "--confirm", "acme")

    erased = keepstate("erase", "--tenant", "acme", "--confirm", "acme", "--json").json()

    assert (refused.code, "`confirm` is 'zeta'" in refused.err) == (2, True)
    assert (nameless.code, "name it with --tenant" in nameless.err) == (2, True)
    assert (erased["spaces"], erased["entries"], erased["archives"]) == (2, size["entries"], [])
    assert [row["id"] for row in keepstate("tenants", "--json").lines()] == ["zeta"]
    again = keepstate("erase", "--tenant", "acme", "--confirm", "acme").out
    assert again.startswith("0 spaces, 0 entries, 0 bytes erased\nnot reached: backups")


def test_a_prefix_is_expunged_only_if_confirmed(keepstate: Keepstate) -> None:
    for name in ("user/ann/a", "user/ann/b", "user/bob/a"):
        keepstate("put", "team", name, "1")
    refused = keepstate("expunge", "team", "user/ann/")

    expunged = keepstate("expunge", "team", "user/ann/", "--yes", "--json").json()

    assert (refused.code, "--yes" in refused.err) == (2, True)
    assert (expunged["spaces"], expunged["entries"]) == (1, 2)
    assert [row["key"] for row in keepstate("ls", "team", "--json").lines()] == ["user/bob/a"]
    assert keepstate("expunge", "none", "user/ann/", "--yes").code == 1


def test_a_tenant_is_exported_and_imported_under_another_id(keepstate: Keepstate, tmp_path: Path) -> None:
    keepstate("put", "run/1", "plan", '{"step": 1}', "--tenant", "acme")
    path = str(tmp_path / "acme.jsonl")

    exported = keepstate("export-tenant", path, "--tenant", "acme", "--json").json()
    again = keepstate("export-tenant", path, "--tenant", "acme")
    imported = keepstate("import-tenant", path, "--tenant", "zeta")

    assert (exported["spaces"], exported["entries"], exported["archives"]) == (1, 1, [])
    assert (again.code, "exists already" in again.err) == (4, True)
    assert imported.out == "1 space with 1 entry written; 0 have expired\n"
    assert keepstate("get", "run/1", "plan", "--tenant", "zeta", "--json").json()["value"] == {"step": 1}
    assert keepstate("import-tenant", path).code == 2


def test_documents_are_removed_and_missing_ones_named(keepstate: Keepstate) -> None:
    keepstate("put", "run", "plan", "1")
    keepstate("put", "run", "note", "1")

    removed = keepstate("rm", "run", "plan", "none", "note")

    assert (removed.code, removed.out) == (1, "2 documents deleted\n")
    assert "there is no document 'none' in 'run'" in removed.err
    assert keepstate("ls", "run", "--json").lines() == []
    assert keepstate("rm", "run").code == 2


def test_spaces_are_listed_by_size(keepstate: Keepstate) -> None:
    keepstate("put", "a small one", "x", "1")
    keepstate("put", "large", "x", '"' + "long " * 200 + '"')

    shown = keepstate("size", "--each").out.splitlines()
    listed = keepstate("size", "--each", "--json").lines()

    assert [line.split()[0] for line in shown] == ["space", "large", "a"]
    assert [row["space"] for row in listed] == ["large", "a small one"]
    assert listed[0] == {"space": "large"} | {
        "entries": keepstate("size", "large", "--json").json()["entries"],
        "size_bytes": keepstate("size", "large", "--json").json()["size_bytes"],
    }
    assert keepstate("size", "large", "--each").code == 2


def test_a_space_is_dropped_once_and_only_if_confirmed(keepstate: Keepstate) -> None:
    keepstate("put", "run", "plan", "1")
    size = keepstate("size", "run", "--json").json()
    refused = keepstate("drop", "run")

    assert keepstate("size", "run").out.split()[:2] == ["entries", "1"]
    assert size["entries"] == 1 and size["size_bytes"] > 4
    assert (refused.code, "--yes" in refused.err) == (2, True)
    assert keepstate("drop", "run", "--yes", "--json").json() == {"space": "run", "dropped": True}
    assert (keepstate("drop", "run", "--yes").code, keepstate("size", "run").code) == (1, 1)


def test_an_owner_is_exported_and_imported_into_another_tenant(keepstate: Keepstate, tmp_path: Path) -> None:
    async def main() -> None:
        async with ks_package.open(f"sqlite:///{tmp_path}/cli.db") as ks:
            for user in ("ann", "bob"):
                session = ks_package.Session(user, user_id=user, persistence=ks.tenant("acme"))
                await session.conversation.append({"role": "user", "content": f"I am {user}"})

    asyncio.run(main())
    path = tmp_path / "ann.jsonl"

    written = keepstate("export-owner", "ann", str(path), "--tenant", "acme", "--json").json()
    again = keepstate("export-owner", "ann", str(path), "--tenant", "acme")
    shown = keepstate("export-owner", "bob", str(tmp_path / "bob.jsonl"), "--tenant", "acme").out
    imported = keepstate("import-tenant", str(path), "--tenant", "ann", "--json").json()

    assert (written["spaces"], imported["spaces"], again.code) == (1, 1, 4)
    assert "not included: data that names this person" in shown
    assert keepstate("spaces", "--tenant", "ann", "--json").lines() == ["session/ann"]
    assert "I am bob" not in path.read_text()
    nobody = keepstate("export-owner", "carl", str(tmp_path / "carl.jsonl"), "--tenant", "acme")
    assert nobody.code == 1
    assert "nothing of the owner 'carl' was found" in nobody.err
    assert not (tmp_path / "carl.jsonl").exists()
