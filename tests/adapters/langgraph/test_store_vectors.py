"""Items are found by meaning on every backend, without an extension of any."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from langgraph.store.base import PutOp

from keepstate.adapters.langgraph.store import KeepstateStore
from keepstate.errors import InvalidError

WORDS = ("cat", "dog", "car")


def embed(texts: Sequence[str]) -> list[list[float]]:
    """Count words: texts with the same words are near one another."""
    return [[float(text.lower().count(word)) for word in WORDS] for text in texts]


async def aembed(texts: Sequence[str]) -> list[list[float]]:
    return embed(texts)


INDEX: dict[str, Any] = {"dims": 3, "embed": embed, "fields": ["text"]}


def opened(url: str, **changes: Any) -> KeepstateStore:
    return KeepstateStore(url, index={**INDEX, **changes})  # type: ignore[arg-type]


def found(store: KeepstateStore, query: str, **options: Any) -> list[str]:
    return [item.key for item in store.search(options.pop("prefix", ()), query=query, **options)]


def test_the_nearest_come_first(any_url: str) -> None:
    with opened(any_url) as store:
        store.put(("pets",), "both", {"text": "a cat, a dog"})
        store.put(("pets", "old"), "cats", {"text": "cat cat cat", "old": True})
        store.put(("petshop",), "cat", {"text": "cat"})
        store.put(("pets",), "car", {"text": "car"})
        ranked = found(store, "cat", prefix=("pets",))
        filtered = found(store, "cat", prefix=("pets",), filter={"old": True})
        second = found(store, "cat", prefix=("pets",), limit=1, offset=1)
        scores = [item.score for item in store.search(("pets",), query="cat")]

    assert ranked == ["cats", "both", "car"]
    assert filtered == ["cats"]
    assert second == ["both"]
    assert scores == [pytest.approx(1), pytest.approx(0.5**0.5), pytest.approx(0)]


def test_a_vector_changes_and_goes_with_its_item(any_url: str) -> None:
    with opened(any_url) as store:
        store.put(("n",), "k", {"text": "cat"})
        store.put(("n",), "other", {"text": "dog"})
        store.put(("n",), "k", {"text": "car"})
        changed = store.search(("n",), query="cat", limit=1)[0]
        store.put(("n",), "k", {"text": "cat"}, index=False)
        hidden = found(store, "cat")
        store.delete(("n",), "other")

        assert changed.score == pytest.approx(0)
        assert hidden == ["other"]
        assert found(store, "dog") == []
        assert [item.key for item in store.search(())] == ["k"]
        assert store.list_namespaces() == [("n",)]


def test_whoever_puts_without_an_index_leaves_no_vector_of_what_was_there(any_url: str) -> None:
    if any_url.startswith("file"):
        any_url = "memory://two-of-one"  # two handles on one URL share its store in any case
    with opened(any_url) as store, KeepstateStore(any_url) as plain:
        store.put(("n",), "k", {"text": "cat"})
        plain.put(("n",), "k", {"text": "dog"})

        assert found(store, "cat") == []


def test_each_text_of_an_item_has_a_vector_and_the_nearest_counts() -> None:
    with opened("memory://", fields=["parts[*].text", "title"]) as store:
        store.put(("n",), "many", {"parts": [{"text": "cat"}, {"text": "dog"}], "title": "car"})
        store.put(("n",), "own", {"note": "cat", "title": "dog"}, index=["note"])
        scores = {
            query: {item.key: round(item.score or 0, 3) for item in store.search(("n",), query=query)}
            for query in WORDS
        }

    assert scores["cat"] == {"many": 1, "own": 1}
    assert scores["dog"] == {"many": 1, "own": 0}
    assert scores["car"] == {"many": 1, "own": 0}


@pytest.mark.parametrize(
    ("distance", "scores"), [("cosine", [1, 1]), ("inner_product", [3, 1]), ("l2", [0, -2])]
)
def test_nearness_is_measured_as_asked(distance: str, scores: list[float]) -> None:
    with opened("memory://", distance_type=distance) as store:
        store.put(("n",), "one", {"text": "cat"})
        store.put(("n",), "three", {"text": "cat cat cat"})
        told = [item.score for item in store.search(("n",), query="cat")]

    assert told == [pytest.approx(score) for score in scores]


def test_coroutine_functions_embed_in_asynchronous_use() -> None:
    async def use() -> list[str]:
        async with opened("memory://", embed=aembed) as store:
            await store.aput(("n",), "cat", {"text": "cat"})
            await store.abatch([PutOp(("n",), "dog", {"text": "dog"})])
            return [item.key for item in await store.asearch(("n",), query="dog")]

    assert asyncio.run(use()) == ["dog", "cat"]


def test_coroutine_functions_are_refused_in_words_in_blocking_use() -> None:
    with opened("memory://", embed=aembed) as store:
        store.put(("n",), "not indexed", {"note": "cat"})
        with pytest.raises(InvalidError, match="use the store with `await`"):
            store.put(("n",), "cat", {"text": "cat"})
        with pytest.raises(InvalidError, match="use the store with `await`"):
            store.search((), query="cat")


def test_what_an_index_on_postgresql_says_is_taken() -> None:
    with opened("memory://", ann_index_config={"kind": "hnsw", "vector_type": "halfvec"}) as store:
        store.put(("n",), "k", {"text": "cat"})

        assert found(store, "cat") == ["k"]


def test_a_query_without_an_index_is_an_ordinary_search() -> None:
    with KeepstateStore("memory://") as store:
        store.put(("n",), "k", {"text": "cat"})

        assert found(store, "cat") == ["k"]


def test_a_model_that_makes_vectors_of_another_length_is_told_of() -> None:
    with opened("memory://two-models", dims=4) as store:
        with pytest.raises(InvalidError, match="a vector of 3 numbers, but `dims` of the index is 4"):
            store.put(("n",), "k", {"text": "cat"})
        kept = store.get(("n",), "k")
    with opened("memory://two-models") as store:
        store.put(("n",), "k", {"text": "cat"})
        with (
            opened("memory://two-models", dims=1, embed=lambda texts: [[1.0] for _ in texts]) as other,
            pytest.raises(InvalidError, match=r"'n..k' has 3 numbers, the query's 1"),
        ):
            other.search((), query="cat")

    assert kept is None


@pytest.mark.parametrize("wrong", [{"dims": 0}, {"distance_type": "far"}])
def test_a_wrong_index_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidError, match="of the index is"):
        opened("memory://", **wrong)


@pytest.mark.parametrize("made", [None, 5, [], [None], ["text"], [["a", "b", "c"]], [[1.0]], [{"a": 1}]])
def test_what_a_model_makes_that_is_no_vector_is_refused(made: Any) -> None:
    with opened("memory://", embed=lambda _: made) as store:
        with pytest.raises(InvalidError, match="the model returned"):
            store.put(("n",), "k", {"text": "cat"})

        assert store.get(("n",), "k") is None
