"""Memories in files, encrypted stores, transactions and `find`; hostile input; a plain model."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keepstate
from keepstate.errors import InvalidError
from keepstate.memories import Memories
from keepstate.values import limits
from keepstate.values.vectors import pack_vector
from tests.contracts.memories.memories import embed, ids
from tests.engine.conftest import Turned


def bytes_under(folder: Path) -> bytes:
    """Return the content of all files of a folder."""
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


@pytest.mark.parametrize("record", [False, True], ids=["plain", "recorded"])
async def test_erasing_leaves_no_byte_in_the_files(tmp_path: Path, record: bool) -> None:
    vector, url = pack_vector(embed(["zanzibar tea"])[0]), f"sqlite:///{tmp_path}/a.db"
    async with keepstate.open(url) as ks:
        memories = Memories(ks.space("memory/ada", record=record), embed=embed)
        first = await memories.remember("zanzibar tea", source="quokka", id="wombat")
        second = await memories.replace(first.id, "zanzibar tea too", because="platypus")
        await memories.remember("coffee", id="kept")
    assert vector in bytes_under(tmp_path)

    async with keepstate.open(url) as ks:
        memories = Memories(ks.space("memory/ada", record=record), embed=embed)
        await memories.erase(second.id)
        assert ids(await memories.search("coffee zanzibar")) == ["kept"]

    left = bytes_under(tmp_path)
    for gone in (b"zanzibar", b"quokka", b"platypus", b"wombat", vector):
        assert gone not in left


async def test_an_encrypted_store_has_no_text_and_no_word_in_clear(tmp_path: Path) -> None:
    ring = keepstate.KeyRing(bytes(range(32)))
    async with keepstate.open(f"sqlite:///{tmp_path}/a.db", encryption=ring) as ks:
        memories = Memories(owner="ada", embed=embed, model="m", persistence=ks)
        await memories.remember("zanzibar tea", source="quokka", data={"animal": "wombat"})
        assert len(await memories.search("zanzibar")) == 1
        await memories.forget((await memories.page())[0].id, because="platypus")
    stored = bytes_under(tmp_path)
    for hidden in (b"zanzibar", b"quokka", b"wombat", b"platypus", pack_vector(embed(["zanzibar tea"])[0])):
        assert hidden not in stored


async def test_the_memories_of_an_owner_are_found_and_erased_together(tmp_path: Path) -> None:
    async with keepstate.open(f"sqlite:///{tmp_path}/a.db") as ks:
        shared = ks.space("shared")
        for memories in (
            Memories(owner="ada", persistence=ks),
            Memories(shared, owner="ada"),
            Memories(shared, owner="bob"),
        ):
            await memories.remember("zanzibar")

        found = await ks.find(kind="memory", owner="ada")
        assert {(each.space, each.id) for each in found} == {("memory/ada", "ada"), ("shared", "ada")}
        await ks.drop("memory/ada")
        await shared.expunge("memory/ada/")

        assert list(await Memories(shared, owner="ada").page()) == []
        assert list(await Memories(owner="ada", persistence=ks).page()) == []
        assert len(await Memories(shared, owner="bob").search("zanzibar")) == 1


async def test_a_memory_joins_a_transaction_and_is_embedded_later() -> None:
    async with keepstate.open("memory://") as ks:
        space = ks.space("memory/ada")
        with pytest.raises(KeyError):
            async with space.transaction() as tx:
                await Memories(tx, embed=embed).remember("lost tea", id="a")
                raise KeyError
        async with space.transaction() as tx:
            await Memories(tx, embed=embed).remember("tea", id="b")
            await tx.documents.put("other", 1)
            with pytest.raises(InvalidError, match="transaction"):
                await Memories(tx).search("tea")

        memories = Memories(space, embed=embed)
        assert [(hit.memory.id, hit.found_by) for hit in await memories.search("tea")] == [("b", "words")]
        assert await memories.reembed() == 1


async def test_an_expired_memory_is_not_found(turned: Turned) -> None:
    memories = Memories(turned.space, owner="ada", embed=embed)
    made = await memories.remember("tea", id="a", expires_s=10)
    await memories.replace("a", "tea tea", because="more")
    await memories.remember("tea", id="b")
    assert len(await memories.search("tea")) == 2
    assert made.expires_at is not None

    turned.clock.advance(11_000)

    assert ids(await memories.search("tea")) == ["b"]


async def test_a_million_bytes_of_any_text_are_remembered() -> None:
    async with keepstate.open("memory://") as ks:
        memories = Memories(owner="ada", persistence=ks)
        for number, text in enumerate(("tea " * 250_000, "ש" * 500_000, "a\0tea\u202e")):
            await memories.remember(text, id=str(number))
        assert sorted(ids(await memories.search("tea"))) == ["0", "2"]
        assert len((await memories.search("tea", limit=1))[0].memory.text) in (5 + 1, 1_000_000)


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("remember", {"text": ""}),
    ("remember", {"text": "\ud800"}),
    ("remember", {"text": 1}),
    ("remember", {"text": "a" * (limits.MEMORY_BYTES + 1)}),
    ("remember", {"text": "a", "id": ""}),
    ("remember", {"text": "a", "id": "/" * 67}),
    ("remember", {"text": "a", "id": "\ud800"}),
    ("remember", {"text": "a", "data": [1]}),
    ("remember", {"text": "a", "data": {1: 2}}),
    ("remember", {"text": "a", "source": "a" * 5_000}),
    ("remember", {"text": "a", "expires_s": 0}),
    ("search", {"query": ""}),
    ("search", {"query": "a", "limit": 0}),
    ("search", {"query": "a", "limit": 101}),
    ("search", {"query": "a", "where": "b"}),
    ("search", {"query": "a", "min_score": "b"}),
    ("search", {"query": "a", "min_score": float("nan")}),
    ("replace", {"id": "a", "text": "b", "because": ""}),
    ("merge", {"ids": ["a"], "text": "b", "because": "c"}),
    ("merge", {"ids": ["a", "a"], "text": "b", "because": "c"}),
    ("merge", {"ids": "ab", "text": "b", "because": "c"}),
    ("forget", {"id": "a", "because": None}),
    ("page", {"limit": 0}),
    ("page", {"after": 1}),
    ("get", {"id": 1}),
    ("erase", {"id": ""}),
    ("history", {"id": ""}),
    ("reembed", {}),
]


@pytest.mark.parametrize(
    ("call", "given"), WRONG, ids=[f"{call}-{number}" for number, (call, _) in enumerate(WRONG)]
)
async def test_wrong_arguments_are_refused(call: str, given: dict[str, Any]) -> None:
    async with keepstate.open("memory://") as ks:
        with pytest.raises(InvalidError):
            await getattr(Memories(ks.space("s")), call)(**given)
        assert await ks.space("s").revision() == 0


@pytest.mark.parametrize(
    "given",
    [{}, {"owner": ""}, {"owner": 1}, {"owner": "a", "model": "m"}, {"owner": "a", "index": object()},
     {"owner": "a", "embed": 1}, {"owner": "a", "embed": embed, "index": object()},
     {"owner": "a", "embed": embed, "model": 1}],
)  # fmt: skip
async def test_wrong_options_are_refused(given: dict[str, Any]) -> None:
    async with keepstate.open("memory://") as ks:
        with pytest.raises(InvalidError):
            Memories(persistence=ks, **given)


async def test_a_space_of_another_owner_is_refused() -> None:
    async with keepstate.open("memory://") as ks:
        with pytest.raises(InvalidError, match="another owner"):
            Memories(ks.space("memory/bob"), owner="ada")


@pytest.mark.parametrize(
    "wrong", [[[1.0], [1.0]], [], [["a"]], None, [[float("nan")]], [[]], [[0.0] * 16_385]]
)
async def test_a_model_that_returns_no_vectors_is_refused(wrong: Any) -> None:
    async with keepstate.open("memory://") as ks:
        with pytest.raises(InvalidError, match="`embed` returned"):
            await Memories(owner="ada", persistence=ks, embed=lambda texts: wrong).remember("tea")


async def test_a_coroutine_function_embeds() -> None:
    async def wait(texts: Any) -> Any:
        await asyncio.sleep(0)
        return embed(texts)

    async with keepstate.open("memory://") as ks:
        memories = Memories(owner="ada", persistence=ks, embed=wait)
        await memories.remember("tea", id="a")
        assert [hit.found_by for hit in await memories.search("tea")] == ["meaning"]
    with keepstate.sync.open("memory://") as blocking, pytest.raises(InvalidError, match="coroutine"):
        keepstate.sync.Memories(owner="ada", persistence=blocking, embed=wait)


async def test_too_many_vectors_need_an_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MEMORIES_MATRIX", 2)
    async with keepstate.open("memory://") as ks:
        memories = Memories(owner="ada", persistence=ks, embed=embed)
        for number in range(3):
            await memories.remember(f"tea {number}")
        with pytest.raises(InvalidError, match="VectorIndex"):
            await memories.search("tea")


async def test_a_search_without_changes_reads_two_entries_and_the_hits() -> None:
    async with keepstate.open("memory://") as ks:
        memories = Memories(owner="ada", persistence=ks)
        await memories.remember("tea", id="a")
        await memories.search("tea")
        local = memories._local  # pyright: ignore[reportPrivateUsage]
        assert local is not None
        words = local.words
        await memories.remember("dog", id="b")
        await memories.search("tea")

        assert local.words is words, "a change must not load everything again"


WORDS = st.sampled_from(["tea", "dog", "paris"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("remember"), st.lists(WORDS, min_size=1, max_size=3).map(" ".join)),
        st.tuples(st.sampled_from(["forget", "replace", "merge", "erase"]), st.integers(0, 20)),
        st.tuples(st.just("search"), WORDS),
    ),
    max_size=14,
)


@pytest.mark.parametrize("has_numpy", [True, False], ids=["numpy", "plain"])
@given(steps=STEPS, embeds=st.booleans())
@settings(max_examples=25, deadline=None)
def test_memories_are_like_a_dict(has_numpy: bool, steps: list[tuple[str, Any]], embeds: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if not has_numpy:
            patch.setitem(sys.modules, "numpy", None)
        asyncio.run(_compare(steps, embeds))


async def _compare(steps: list[tuple[str, Any]], embeds: bool) -> None:
    options: dict[str, Any] = {"embed": embed} if embeds else {}
    async with keepstate.open("memory://") as ks:
        writer, reader = (Memories(owner="ada", persistence=ks, **options) for _ in range(2))
        current: dict[str, str] = {}
        lines: dict[str, set[str]] = {}
        for number, (step, given) in enumerate([*steps, ("search", "tea")]):
            chosen = sorted(current)[given % len(current)] if isinstance(given, int) and current else None
            if step == "remember":
                made = await writer.remember(given, id=str(number))
                current[made.id], lines[made.id] = given, {made.id}
            elif step == "search":
                hits = await reader.search(given, limit=100, min_score=0.2 if embeds else None)
                assert {hit.memory.id: hit.memory.text for hit in hits} == {
                    id: text for id, text in current.items() if given in text.split()
                }
            elif chosen is not None and step == "forget":
                await writer.forget(chosen, because="x")
                del current[chosen]
            elif chosen is not None and step == "erase":
                await writer.erase(chosen)
                for id in lines[chosen]:
                    current.pop(id, None)
            elif chosen is not None:
                former = [chosen] if step == "replace" else sorted(current)[:2]
                if step == "merge" and len(former) < 2:
                    continue
                made = await (
                    writer.replace(chosen, "dog", because="x")
                    if step == "replace"
                    else writer.merge(former, "dog", because="x")
                )
                line = {made.id}.union(*(lines[id] for id in former))
                for id in line:
                    lines[id] = line
                for id in former:
                    del current[id]
                current[made.id] = "dog"
        assert {each.id for each in await reader.page(limit=1_000)} == set(current)
