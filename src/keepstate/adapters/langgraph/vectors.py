"""Vectors of items: the texts to embed, and the scores of vectors for a query.

Vectors are compared in process with numpy, so no extension of a database is necessary and every store gives
the same results. A search compares each vector under its namespace: 1,000 vectors of 1,536 numbers take a few
milliseconds after they are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypedDict, cast

from langgraph.store.base import (
    Embeddings,
    IndexConfig,
    PutOp,
    ensure_embeddings,
    get_text_at_path,
    tokenize_path,
)
from langgraph.store.base.embed import EmbeddingsLambda

from keepstate.errors import InvalidError, MissingExtraError
from keepstate.values.vectors import DISTANCES, NUMBER_BYTES, Distance, find_numpy, nearness, pack_vector

_KEYS: Final = frozenset(("dims", "embed", "fields", "text_fields", "distance_type", "ann_index_config"))
_WHOLE: Final = "$"


class Index(TypedDict, total=False):
    """The configuration of search by meaning, in LangGraph's own form.

    Attributes:
        dims: The number of numbers in a vector.
        embed: The embedding model: `Embeddings`, a function, or a provider's model by name.
        fields: The paths of the texts in a value; `$`, the default, is the whole value as JSON.
        text_fields: The name of `fields` in LangGraph's SQLite store.
        distance_type: `cosine` (the default), `inner_product` or `l2`.
        ann_index_config: An option of LangGraph's store on PostgreSQL, without effect here.
    """

    dims: int
    embed: Any
    fields: list[str] | None
    text_fields: list[str] | None
    distance_type: str
    ann_index_config: Mapping[str, Any]


class Vectors:
    """The vectors of an index: their texts, their stored form and their scores.

    Attributes:
        embeddings: The embedding model.

    Raises:
        InvalidError: The configuration is wrong.
        MissingExtraError: numpy is not installed.
    """

    def __init__(self, index: Index | IndexConfig) -> None:
        given = cast("Mapping[str, Any]", index)
        if not isinstance(cast("object", index), Mapping):
            raise InvalidError(
                f"`index` is {index!r}; it must be a dict with `dims`, `embed` and other options"
            )
        if unknown := given.keys() - _KEYS:
            raise InvalidError(f"`index` has {min(unknown)!r}; there are {', '.join(sorted(_KEYS))}")
        if given.get("embed") is None:
            raise InvalidError("`embed` of the index is missing; give an embedding model")
        _require_numpy()
        self.embeddings: Embeddings = ensure_embeddings(given["embed"])
        dims = given.get("dims")
        if dims is not None and (type(dims) is not int or dims < 1):
            raise InvalidError(
                f"`dims` of the index is {dims!r}; it must be the number of numbers in a vector"
            )
        self._dims: int | None = dims
        self._distance: Distance = given.get("distance_type") or DISTANCES[0]
        if self._distance not in DISTANCES:
            raise InvalidError(
                f"`distance_type` of the index is {self._distance!r}; there are {', '.join(DISTANCES)}"
            )
        fields = given.get("fields") or given.get("text_fields") or [_WHOLE]
        fields = [fields] if isinstance(fields, str) else fields
        if not is_texts(fields):
            raise InvalidError(f"`fields` of the index is {fields!r}; it must be a list of paths")
        self._fields = _tokenized(fields)

    def blocking(self) -> Embeddings:
        """Return the embedding model for blocking calls.

        Raises:
            InvalidError: The model works only with `await`.
        """
        if isinstance(self.embeddings, EmbeddingsLambda) and not hasattr(self.embeddings, "func"):
            raise InvalidError("`embed` of the index is a coroutine function; use the store with `await`")
        return self.embeddings

    def texts(self, op: PutOp) -> dict[str, str]:
        """Return the texts of an item to embed, by their paths."""
        if op.value is None or op.index is False:
            return {}
        found: dict[str, str] = {}
        for path, tokens in self._fields if op.index is None else _tokenized(op.index):
            texts = get_text_at_path(op.value, tokens)
            for index, text in enumerate(texts):
                found[f"{path}.{index}" if len(texts) > 1 else path] = text
        return found

    def stored(self, paths: Iterable[str], vectors: Iterable[Sequence[float]]) -> dict[str, bytes]:
        """Return the stored form of vectors by their paths: 4 bytes a number."""
        return {path: self._check(vector) for path, vector in zip(paths, vectors, strict=True)}

    def scores(
        self, query: Sequence[float], stored: Sequence[tuple[str, Mapping[str, bytes]]]
    ) -> dict[str, float]:
        """Return the score of each item's nearest vector, by the item's name; larger is nearer.

        Raises:
            InvalidError: A vector has another length than the query's.
        """
        asked = self._check(query)
        owners: list[str] = []
        rows: list[bytes] = []
        for name, vectors in stored:
            for vector in vectors.values():
                if len(vector) != len(asked):
                    raise InvalidError(
                        f"a vector of {name!r} has {len(vector) // NUMBER_BYTES} numbers, the query's "
                        f"{len(asked) // NUMBER_BYTES}: it comes from another model; use that model, or put "
                        "the item again"
                    )
                owners.append(name)
                rows.append(vector)
        best: dict[str, float] = {}
        for owner, score in zip(owners, nearness(rows, asked, self._distance), strict=True):
            best[owner] = max(best.get(owner, score), score)
        return best

    def _check(self, vector: Sequence[float]) -> bytes:
        """Return the stored form of a vector."""
        try:
            packed = pack_vector(vector)
        except (TypeError, ValueError) as error:
            raise InvalidError(
                f"the model returned {vector!r:.99} for a text; `embed` of the index returns lists of numbers"
            ) from error
        size = len(packed) // NUMBER_BYTES
        if self._dims is not None and size != self._dims:
            raise InvalidError(
                f"the model returned a vector of {size} numbers, but `dims` of the index is {self._dims}"
            )
        return packed


def is_texts(values: object) -> bool:
    """Return whether a value is a list of texts."""
    if not isinstance(values, list | tuple):
        return False
    return all(isinstance(each, str) for each in cast("list[Any]", values))


def _tokenized(paths: Iterable[str]) -> list[tuple[str, list[str] | str]]:
    return [(path, path if path == _WHOLE else tokenize_path(path)) for path in paths]


def _require_numpy() -> None:
    if find_numpy() is None:
        install = "pip install 'keepstate[langgraph]'"
        raise MissingExtraError(f"a store with an index needs numpy: {install}", install=install)
