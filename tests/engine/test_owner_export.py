"""Exporting an owner: all of that person, nothing of anybody else, and readable by an import."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

import keepstate
from keepstate import KeyRing, Memories, Session
from keepstate.engine.kernel import layout
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import AlreadyExistsError, InvalidError, NotOwnerError, UnsupportedError
from keepstate.names import stored_name
from keepstate.stores.protocol import Batch, Put
from tests.engine.conftest import url_of
from tests.engine.test_export import entries_of
from tests.engine.test_owner_erasure import REUSED, fill, lives_with_messages, talk

OWN = ("session/ANNs-0", "session/ANNs-1", "user/ANN")
SHARED = ("shared", "states")


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def said_in(path: Path) -> bytes:
    """Return all that the file says, with keys and stored values as bytes."""
    said: list[bytes] = []
    for line in lines_of(path):
        said += [bytes.fromhex(line.pop("key", "")), base64.b64decode(line.pop("stored", ""))]
        said.append(json.dumps(line).encode())
    return b"".join(said)


async def contents(ks: Keepstate, space: str, prefix: str = "") -> list[tuple[bytes, bytes]]:
    """Return the documents and events of a space under a prefix."""
    begins = (layout.name_prefix(layout.DOCUMENTS, prefix), layout.EVENTS)
    found = await entries_of(await ks.opened(), stored_name(ks.tenant_id, space))
    return [(entry.key, entry.value) for entry in found if entry.key.startswith(begins)]


@pytest.mark.parametrize("kind", ["memory", "sqlite", "redis", "postgres"])
async def test_an_owner_is_exported_and_nobody_else(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    path = tmp_path / "ann.jsonl"
    async with keepstate.open(url_of(kind, request, tmp_path)) as ks:
        one, other = ks.tenant("t"), ks.tenant("u")
        await fill(one)

        exported = await one.export(path, owner="ANN")
        imported = await other.import_(path)

        assert lines_of(path)[0] == {"keepstate": "export", "format": 1, "tenant": "t", "owner": "ANN"}
        assert b"BOB" not in said_in(path) and b"bobs" not in said_in(path)
        spaces = [line["space"] for line in lines_of(path) if "space" in line]
        assert spaces == sorted([*OWN, *SHARED, *REUSED])
        assert (
            (imported.spaces, imported.entries)
            == (exported.spaces, exported.entries)
            == (7, exported.entries)
        )
        for space in OWN:
            assert await contents(other, space) == await contents(one, space)
        for prefix in ("session/ANNs-live/", "session/ANNs-over/", "user/ANN/"):
            assert await contents(other, "shared", prefix) == await contents(one, "shared", prefix) != []
        assert [await lives_with_messages(other, space) for space in ("session/reused", "reused")] == [
            ["1", "3"]
        ] * 2


async def test_what_is_exported_is_what_an_erasure_removes(ks: Keepstate, tmp_path: Path) -> None:
    tenant, path = ks.tenant("t"), tmp_path / "ann.jsonl"
    await fill(tenant)
    spaces = [*OWN, *SHARED, *REUSED]
    before = {space: await contents(tenant, space) for space in spaces}

    await tenant.export(path, owner="ANN")
    await tenant.erase_owner("ANN")

    after = {space: await contents(tenant, space) for space in spaces}
    removed = sum(len(before[space]) - len(after[space]) for space in spaces)
    documents = sum("document" in line for line in lines_of(path))
    of_both = 2  # the lists of the owners of a session stay, without this one
    events = sum("event" in line for line in lines_of(path))
    assert documents + events == removed + of_both


async def test_an_import_of_an_owner_is_used_like_any_other_tenant(ks: Keepstate, tmp_path: Path) -> None:
    one, other, path = ks.tenant("t"), ks.tenant("u"), tmp_path / "ann.jsonl"
    await fill(one)
    await Memories(one.space("shared"), owner="ANN").remember("ANN likes tea")
    await Memories(one.space("shared"), owner="BOB").remember("BOB likes coffee")

    await one.export(path, owner="ANN")
    await other.import_(path)

    theirs = {(found.space, found.kind, found.id) for found in await one.find(owner="ANN")}
    assert {(found.space, found.kind, found.id) for found in await other.find()} == theirs
    live = Session("ANNs-live", user_id="ANN", space=other.space("shared"))
    assert [entry.message["content"] for entry in await live.conversation.page()] == ["Secret of ANN"]
    await live.conversation.append({"role": "user", "content": "more"})
    assert (await live.user.get_preferences())["name"] == "ANN"
    with pytest.raises(NotOwnerError):
        await Session("ANNs-live", user_id="BOB", space=other.space("shared")).conversation.page()
    again = Session("reused", user_id="ANN", persistence=other)
    await again.conversation.append({"role": "user", "content": "mine again"})
    assert await lives_with_messages(other, "session/reused") == ["1", "3", "5"]
    assert {found.owner for found in await other.find(kind="session")} == {"ANN"}
    hits = await Memories(other.space("shared"), owner="ANN").search("tea")
    assert [hit.memory.text for hit in hits] == ["ANN likes tea"]
    assert await Memories(other.space("shared"), owner="BOB").search("coffee") == []


async def test_large_values_and_usage_of_a_shared_space_come_along(ks: Keepstate, tmp_path: Path) -> None:
    one, other, path = ks.tenant("t"), ks.tenant("u"), tmp_path / "ann.jsonl"
    space = one.space("shared")
    session = await talk(one, "ANNs", "ANN", space=space)
    text = "Secret of ANN " + Random(1).randbytes(1 << 20).hex()
    await session.conversation.append({"role": "user", "content": text})
    await (await talk(one, "bobs", "BOB", space=space)).conversation.append(
        {"role": "user", "content": "BOB " + Random(2).randbytes(1 << 20).hex()}
    )
    await session.usage.record(keepstate.Usage(input_tokens=7))

    await one.export(path, owner="ANN")
    await other.import_(path)

    there = Session("ANNs", user_id="ANN", space=other.space("shared"))
    assert [entry.message["content"] for entry in await there.conversation.page()] == ["Secret of ANN", text]
    assert (await there.usage.totals()).total.tokens == 7
    assert b"BOB" not in said_in(path)
    assert (await other.sweep(), len((await there.conversation.page())[-1].message["content"])) == (
        0,
        len(text),
    )


async def test_the_report_names_what_is_not_in_the_file(ks: Keepstate, tmp_path: Path) -> None:
    tenant = ks.tenant("t")
    space = tenant.space("shared", record=True)
    await talk(tenant, "ANNs", "ANN", space=space)
    await talk(tenant, "broken", "ANN")
    damaged = Put(layout.named_key(layout.DOCUMENTS, "session"), b"\xc1")
    await (await tenant.opened()).apply([Batch(tenant.stored_name("session/broken"), [damaged])])

    exported = await tenant.export(tmp_path / "ann.jsonl", owner="ANN")
    nothing = await tenant.export(tmp_path / "none.jsonl", owner="nobody")

    assert exported.not_included[:-1] == ["session 'broken' in 'session/broken', whose owner cannot be read"]
    assert "is not a subject of this owner" in exported.not_included[-1]
    assert (nothing.spaces, nothing.entries, len(nothing.not_included)) == (0, 0, 2)


async def test_an_owner_without_a_tenant_is_exported_and_a_whole_store_is_not(tmp_path: Path) -> None:
    path = tmp_path / "ann.jsonl"
    async with keepstate.open("memory://") as ks:
        await fill(ks)
        await fill(ks.tenant("t"))

        exported = await ks.export(path, owner="ANN")
        imported = await ks.tenant("new").import_(path)

        assert lines_of(path)[0]["tenant"] is None
        assert (exported.spaces, imported.spaces) == (7, 7)
        with pytest.raises(AlreadyExistsError):
            await ks.export(path, owner="ANN")
        with pytest.raises(InvalidError, match="has no tenant"):
            await ks.export(tmp_path / "all.jsonl")
        with pytest.raises(InvalidError):
            await ks.export(tmp_path / "none.jsonl", owner="")
    async with keepstate.open("memory://", encryption=KeyRing(bytes(32))) as ks:
        with pytest.raises(UnsupportedError, match="encrypted"):
            await ks.export(tmp_path / "sealed.jsonl", owner="ANN")
        assert not (tmp_path / "sealed.jsonl").exists()
