"""Memories: remembered, found, replaced, forgotten and erased, as documented, in both modes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from keepstate.errors import AlreadyExistsError, InvalidError, NotFoundError, TransitionError
from keepstate.memories import Hit, Memories
from tests.contracts.managers.stage import ManagerStage

TOPICS = ("tea", "coffee", "paris", "dog", "music")


def embed(texts: Sequence[str]) -> list[list[float]]:
    """Return how often each topic is named, and a small constant."""
    return [[*(float(text.lower().count(topic)) for topic in TOPICS), 0.1] for text in texts]


def embed_otherwise(texts: Sequence[str]) -> list[list[float]]:
    """Return vectors of another model, of another length."""
    return [[1.0, *row] for row in embed(texts)]


class Model:
    """A model that can be down, and counts the texts that it has embedded."""

    def __init__(self) -> None:
        self.is_down, self.texts = False, list[str]()

    def __call__(self, texts: Sequence[str]) -> list[list[float]]:
        if self.is_down:
            raise ConnectionError("the model is down")
        self.texts += texts
        return embed(texts)


class PlainIndex:
    """An index of vectors that forgets nothing that it is not told to forget."""

    def __init__(self) -> None:
        self.vectors: dict[str, Sequence[float]] = {}

    def put(self, ids: Sequence[str], vectors: Sequence[Sequence[float]]) -> None:
        self.vectors |= dict(zip(ids, vectors, strict=True))

    def delete(self, ids: Sequence[str]) -> None:
        for id in ids:
            self.vectors.pop(id, None)

    def search(
        self, vector: Sequence[float], limit: int, where: Mapping[str, Any]
    ) -> list[tuple[str, float]]:
        rows = [
            (id, sum(a * b for a, b in zip(vector, each, strict=True))) for id, each in self.vectors.items()
        ]
        return sorted(rows, key=lambda row: (-row[1], row[0]))[:limit]


def ids(hits: Sequence[Hit]) -> list[str]:
    return [hit.memory.id for hit in hits]


class MemoryStage(ManagerStage):
    """Makes memories in one place, in both modes."""

    def memories(self, owner: str = "ada", **options: Any) -> Memories:
        """Return the memories of an owner; called again, another object of the same."""
        where: dict[str, Any] = (
            {"space": self.run_space()} if self.in_passed_space else {"persistence": self.url}
        )
        made = Memories(owner=owner, **where, **options, _mode=self.mode_name)
        self._closing.append(made)
        return made


class MemoryContract(MemoryStage):
    """The contract of `Memories`."""

    async def test_a_fact_is_found_by_its_words_with_its_source(self) -> None:
        memories = self.memories()
        await memories.remember("Ada drinks TEA", id="a", source="chat/7", data={"kind": "taste"})
        await memories.remember("Ada lives in Paris", id="b")

        [hit] = await memories.search("does she like tea?")

        assert (hit.memory.id, hit.memory.source, hit.memory.data) == ("a", "chat/7", {"kind": "taste"})
        assert hit.found_by == "words" and 0 < hit.score < 1
        assert hit.memory.at is not None and hit.memory.at > datetime(2020, 1, 1, tzinfo=UTC)

    async def test_a_fact_is_found_by_its_meaning(self) -> None:
        memories = self.memories(embed=embed, model="topics")
        await memories.remember("Tea, always tea", id="a")
        await memories.remember("A dog", id="b")

        hits = await memories.search("tea", limit=1)

        assert ids(hits) == ["a"] and hits[0].found_by == "meaning" and hits[0].score > 0.99
        assert ids(await memories.search("tea", min_score=0.5)) == ["a"]

    async def test_a_replaced_fact_is_in_the_history_only(self) -> None:
        memories = self.memories(embed=embed)
        await memories.remember("Ada lives in Paris", id="a", data={"kind": "home"})

        new = await memories.replace("a", "Ada lives in Rome, not Paris", because="she moved")

        assert ids(await memories.search("Paris")) == [new.id]
        old, present = await memories.history("a")
        assert (old.status, old.replaced_by, old.ended_because) == ("replaced", new.id, "she moved")
        assert (present.replaces, present.because, present.data) == (("a",), "she moved", {"kind": "home"})
        assert [each.id for each in await memories.history(new.id)] == ["a", new.id]
        assert [each.id for each in await memories.page()] == [new.id]
        with pytest.raises(TransitionError, match="is replaced by"):
            await memories.replace("a", "again", because="late")

    async def test_a_page_has_at_most_as_many_memories_as_asked_for(self) -> None:
        plain, meant = self.memories("plain"), self.memories("meant", embed=embed)
        for memories in (plain, meant):
            for number in range(9):
                await memories.remember(f"tea {number}", id=f"m{number}")
            for number in (0, 3, 4, 8):
                await memories.forget(f"m{number}", because="wrong")

            pages: list[list[str]] = []
            after: str | None = None
            while not pages or after is not None:
                page = await memories.page(after=after, limit=2)
                pages.append([each.id for each in page])
                after = page.next

            assert [id for each in pages for id in each] == ["m1", "m2", "m5", "m6", "m7"]
            assert max(map(len, pages)) == 2

    async def test_a_merged_fact_expires_with_the_last_of_its_facts(self) -> None:
        memories = self.memories()
        for id, expires_s in (("a", 3_600), ("b", 7_200), ("c", 7_200), ("d", None)):
            await memories.remember(f"fact {id}", id=id, expires_s=expires_s)
        last = await memories.get("b")
        assert last is not None

        timed = await memories.merge(["a", "b"], "both", because="same")
        lasting = await memories.merge(["c", "d"], "for good", because="same")

        assert timed.expires_at == last.expires_at and lasting.expires_at is None

    async def test_merged_facts_become_one(self) -> None:
        memories = self.memories()
        await memories.remember("likes tea", id="a", data={"x": 1, "y": 1})
        await memories.remember("loves tea", id="b", data={"y": 2})

        one = await memories.merge(["a", "b"], "loves tea", because="the same")

        assert ids(await memories.search("tea")) == [one.id] and one.data == {"x": 1, "y": 2}
        assert [each.status for each in await memories.history("a")] == ["merged", "merged", "current"]

    async def test_a_forgotten_fact_is_not_found(self) -> None:
        for memories in (self.memories(), self.memories(embed=embed)):
            made = await memories.remember("secret tea")
            assert ids(await memories.search("tea")) == [made.id]

            await memories.forget(made.id, because="asked to")

            assert await memories.search("tea") == [] and list(await memories.page()) == []
            [kept] = await memories.history(made.id)
            assert (kept.status, kept.ended_because, kept.text) == ("forgotten", "asked to", "secret tea")

    async def test_a_filter_selects_by_data(self) -> None:
        for number, options in enumerate(({}, {"embed": embed})):
            memories = self.memories(f"filter {number}", **options)
            await memories.remember("tea", id="a", data={"n": 1, "kind": "x"})
            await memories.remember("tea", id="b", data={"n": True})

            assert ids(await memories.search("tea", where={"n": 1})) == ["a"]
            assert ids(await memories.search("tea", where={"n": True})) == ["b"]
            assert await memories.search("tea", where={"none": None}) == []

    async def test_others_writes_are_seen_at_once(self) -> None:
        mine, others = self.memories(embed=embed), self.memories(embed=embed)
        await mine.remember("tea", id="a")
        assert ids(await mine.search("tea")) == ["a"]

        await others.remember("tea tea", id="b")
        await others.forget("a", because="wrong")

        assert ids(await mine.search("tea")) == ["b"]

    async def test_owners_do_not_see_each_other(self) -> None:
        first, second = self.memories("ada", embed=embed), self.memories("ada/b", embed=embed)
        await first.remember("tea", id="a")

        assert await second.search("tea") == [] and await second.get("a") is None
        await second.remember("coffee", id="a")
        assert [hit.memory.text for hit in await first.search("coffee tea")] == ["tea"]

    async def test_the_same_call_again_returns_the_first_memory(self) -> None:
        memories = self.memories()
        first = await memories.remember("tea", id="a")

        assert await memories.remember("tea", id="a") == first
        with pytest.raises(AlreadyExistsError):
            await memories.remember("coffee", id="a")

    async def test_a_model_that_fails_loses_no_fact(self) -> None:
        model = Model()
        memories = self.memories(embed=model, model="m")
        await memories.remember("dog tea", id="a")
        model.is_down = True
        await memories.remember("green tea", id="b")

        assert sorted(ids(await memories.search("tea"))) == ["a", "b"]
        model.is_down = False
        by = {hit.memory.id: hit.found_by for hit in await memories.search("tea")}
        assert by == {"a": "meaning", "b": "words"}
        assert await memories.reembed() == 1 and await memories.reembed() == 0
        assert {hit.found_by for hit in await memories.search("tea")} == {"meaning"}

    async def test_two_models_never_mix(self) -> None:
        old, new = self.memories(embed=embed, model="old"), self.memories(embed=embed_otherwise, model="new")
        await old.remember("tea", id="a")
        await old.remember("dog", id="b")
        with pytest.raises(InvalidError, match=r"reembed\(\)"):
            await new.remember("coffee")
        with pytest.raises(InvalidError, match=r"reembed\(\)"):
            await new.search("coffee")

        assert await new.reembed() == 2

        assert ids(await new.search("tea", limit=1)) == ["a"]
        with pytest.raises(InvalidError, match="model 'new'"):
            await old.remember("coffee")
        assert [each.id for each in await old.page()] == ["a", "b"]

    async def test_an_interrupted_reembedding_is_continued_and_searched(self) -> None:
        model, calls = Model(), 0

        def stops(texts: Sequence[str]) -> list[list[float]]:
            nonlocal calls
            calls += 1
            if calls == 3:
                raise KeyError("stopped")
            return embed_otherwise(texts)

        old, new = self.memories(embed=model, model="old"), self.memories(embed=stops, model="new")
        for number in range(70):
            await old.remember(f"tea {number}", id=f"{number:02d}")
        with pytest.raises(KeyError):
            await new.reembed()

        found = await new.search("tea", limit=100)
        assert len(found) == 70 and {hit.found_by for hit in found} == {"meaning", "words"}
        assert await new.reembed() == 6
        assert {hit.found_by for hit in await new.search("tea", limit=100)} == {"meaning"}

    async def test_an_index_is_never_trusted_about_what_exists(self) -> None:
        index = PlainIndex()
        memories = self.memories(embed=embed, index=index)
        for number in range(12):
            await memories.remember(f"tea {number}", id=f"a{number:02d}")
        index.vectors |= {f"ghost{number}": [9.0] * 6 for number in range(40)}
        others = self.memories(embed=embed)
        await others.forget("a00", because="wrong")

        assert ids(await memories.search("tea", limit=3)) == ["a01", "a02", "a03"]
        index.vectors.clear()
        await memories.reembed()
        assert sorted(index.vectors) == [f"a{number:02d}" for number in range(1, 12)]

    async def test_memories_with_equal_scores_are_ordered_by_id(self) -> None:
        for number, options in enumerate(({}, {"embed": embed})):
            memories = self.memories(f"ties {number}", **options)
            for id in ("c", "a", "d", "b"):
                await memories.remember("tea", id=id)

            assert ids(await memories.search("tea", limit=3)) == ["a", "b", "c"]

    async def test_an_erased_memory_is_gone_with_its_line(self) -> None:
        memories = self.memories(embed=embed)
        await memories.remember("tea", id="a")
        new = await memories.replace("a", "green tea", because="more exact")
        await memories.remember("black tea", id="ab")
        await memories.search("tea")

        report = await memories.erase(new.id)

        assert report.entries >= 3
        assert await memories.get("a") is None and await memories.get(new.id) is None
        assert ids(await memories.search("tea")) == ["ab"]
        with pytest.raises(NotFoundError):
            await memories.history("a")

    @pytest.mark.parametrize(
        "id", ["a/b", "a%2Fb", "..", "x\0y", "naïve 🦜", "\u202eevil", "~#@", "fact", "a" * 200]
    )
    async def test_any_id_names_its_own_memory(self, id: str) -> None:
        memories = self.memories()
        await memories.remember("tea", id=id)
        await memories.remember("tea", id="a")

        assert sorted(ids(await memories.search("tea"))) == sorted([id, "a"])
        assert [each.id for each in await memories.history(id)] == [id]
