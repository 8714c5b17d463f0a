"""Searches and pages of memories around those that cannot be read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from keepstate import KeepstateError, Space, register
from keepstate.engine.kernel import layout
from keepstate.memories import Memories
from keepstate.values.schema import CLASSES
from tests.contracts.memories.memories import embed, ids
from tests.engine.test_unreadable import HINT, damage


@register("tests/place", version=2)
@dataclass
class Place:
    city: str


PLACE = {"@type": "tests/place@2", "city": "Rome"}


@pytest.fixture
def older(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function after which this process knows the first version only."""

    def downgrade() -> None:
        known = CLASSES._by_name["tests/place"]
        monkeypatch.setattr(
            CLASSES, "_by_name", {**CLASSES._by_name, "tests/place": replace(known, version=1)}
        )

    return downgrade


def key_of(id: str, kind: str = "fact") -> bytes:
    return layout.named_key(layout.DOCUMENTS, f"memories/{id}/{kind}")


@pytest.mark.parametrize("is_warm", [False, True], ids=["first", "later"])
async def test_a_search_goes_on_around_one_that_cannot_be_read(
    space: Space, older: Any, monkeypatch: pytest.MonkeyPatch, is_warm: bool
) -> None:
    memories = Memories(space)
    await memories.remember("Tea in London", id="a", data={"at": 1})
    if is_warm:
        assert ids(await memories.search("tea")) == ["a"]
    await memories.remember("Tea in Rome", id="b", data={"at": 1, "place": Place("Rome")})
    await memories.remember("Tea nowhere", id="c")
    await damage(space, key_of("c"))
    await space.documents.put("memories/d/fact", {"text": 5})
    older()

    with pytest.raises(KeepstateError, match=f"'memories/b/fact'.*{HINT}"):
        await memories.search("london")
    skipped = await memories.search("tea", unreadable="skip")
    raw = await memories.search("tea", unreadable="raw")
    by_data = await memories.search("rome", where={"place": PLACE}, unreadable="raw")

    assert ids(skipped) == ["a"]
    assert ids(raw) == ["a", "b"]
    assert raw[1].memory.data["place"] == PLACE
    assert raw[1].memory.unreadable.code == "unsupported"  # type: ignore[union-attr]
    assert ids(by_data) == ["b"]
    assert [each.id for each in await memories.page(unreadable="skip")] == ["a"]
    assert [each.id for each in await memories.page(unreadable="raw")] == ["a", "b", "c", "d"]

    monkeypatch.undo()
    for id in ("c", "d"):
        await space.documents.delete(f"memories/{id}/fact")
    assert ids(await memories.search("tea")) == ["a", "b"]
    assert ids(await memories.search("tea", unreadable="skip")) == ["a", "b"]


async def test_a_document_that_is_not_a_memory_is_named(space: Space) -> None:
    memories = Memories(space)
    await memories.remember("tea", id="a")
    for wrong in ({"text": 5}, {"text": "tea", "status": "lost"}, {"text": "tea", "replaces": 7}, {}, [1], 3):
        await space.documents.put("memories/b/fact", wrong)

        with pytest.raises(KeepstateError, match=f"memory 'b' is not a memory.*{HINT}"):
            await memories.search("tea")
        with pytest.raises(KeepstateError, match=f"memory 'b' is not a memory.*{HINT}"):
            await memories.page()
        assert ids(await memories.search("tea", unreadable="skip")) == ["a"]


async def test_a_memory_whose_vector_cannot_be_read_is_compared_by_words(space: Space) -> None:
    memories = Memories(space, embed=embed)
    await memories.remember("tea and coffee", id="a")
    await memories.remember("tea and dogs", id="b")
    await damage(space, key_of("b", "vector"))

    with pytest.raises(KeepstateError, match=f"'memories/b/vector'.*{HINT}"):
        await memories.search("tea")
    hits = await memories.search("tea", unreadable="skip")

    assert {hit.memory.id: hit.found_by for hit in hits} == {"a": "meaning", "b": "words"}


async def test_an_ended_memory_that_cannot_be_read_fails_no_search(space: Space, older: Any) -> None:
    memories = Memories(space)
    await memories.remember("Tea in Rome", id="a", data={"place": Place("Rome")})
    await memories.forget("a", because="wrong")
    await memories.remember("Tea in London", id="b")
    older()

    assert ids(await memories.search("tea")) == ["b"]
