"""Vectors of items: which texts of a value have one, and how near they are to a query.

Vectors are compared here, in process, with numpy: no extension of a database is needed, and every store
does the same. A search looks at each vector under its namespace: 1,000 of 1,536 numbers take a few
milliseconds beside reading them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypedDict, cast

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

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

DISTANCES: Final = ("cosine", "inner_product", "l2")
_KEYS: Final = frozenset(("dims", "embed", "fields", "text_fields", "distance_type", "ann_index_config"))
_WHOLE: Final = "$"
_FLOAT: Final = "<f4"


class Index(TypedDict, total=False):
    """How values are found by meaning: LangGraph's own configuration.

    Attributes:
        dims: How many numbers a vector has.
        embed: What makes vectors of texts: `Embeddings`, a function, or a provider's model by name.
        fields: The paths of the texts in a value; `$`, the default, is all of it as JSON.
        text_fields: The same, as LangGraph's SQLite store names it.
        distance_type: `cosine` (the default), `inner_product` or `l2`.
        ann_index_config: Of LangGraph's store on PostgreSQL, and nothing here: all vectors are compared.
    """

    dims: int
    embed: Any
    fields: list[str] | None
    text_fields: list[str] | None
    distance_type: str
    ann_index_config: Mapping[str, Any]


class Vectors:
    """Makes, keeps and compares vectors as an index says.

    Attributes:
        embeddings: What makes vectors of texts.

    Raises:
        InvalidError: The configuration says something that there is not.
        MissingExtraError: numpy is not installed.
    """

    def __init__(self, index: Index | IndexConfig) -> None:
        told = cast("Mapping[str, Any]", index)
        if not isinstance(cast("object", index), Mapping):
            raise InvalidError(f"`index` is {index!r}; it is a dict with `dims`, `embed` and others")
        if unknown := told.keys() - _KEYS:
            raise InvalidError(f"`index` has {min(unknown)!r}; there are {', '.join(sorted(_KEYS))}")
        if told.get("embed") is None:
            raise InvalidError("`embed` of the index is missing: what makes vectors of texts")
        _numpy()
        self.embeddings: Embeddings = ensure_embeddings(told["embed"])
        dims = told.get("dims")
        if dims is not None and (type(dims) is not int or dims < 1):
            raise InvalidError(f"`dims` of the index is {dims!r}; it says how many numbers a vector has")
        self._dims: int | None = dims
        self._distance: str = told.get("distance_type") or DISTANCES[0]
        if self._distance not in DISTANCES:
            raise InvalidError(
                f"`distance_type` of the index is {self._distance!r}; there are {', '.join(DISTANCES)}"
            )
        fields = told.get("fields") or told.get("text_fields") or [_WHOLE]
        fields = [fields] if isinstance(fields, str) else fields
        if not is_texts(fields):
            raise InvalidError(f"`fields` of the index is {fields!r}; it is a list of paths")
        self._fields = _tokenized(fields)

    def blocking(self) -> Embeddings:
        """Return what makes vectors of texts without `await`.

        Raises:
            InvalidError: It only works with it.
        """
        if isinstance(self.embeddings, EmbeddingsLambda) and not hasattr(self.embeddings, "func"):
            raise InvalidError("`embed` of the index is a coroutine function; use the store with `await`")
        return self.embeddings

    def texts(self, op: PutOp) -> dict[str, str]:
        """Return the texts of an item that are to have a vector, by their paths."""
        if op.value is None or op.index is False:
            return {}
        found: dict[str, str] = {}
        for path, tokens in self._fields if op.index is None else _tokenized(op.index):
            texts = get_text_at_path(op.value, tokens)
            for place, text in enumerate(texts):
                found[f"{path}.{place}" if len(texts) > 1 else path] = text
        return found

    def stored(self, paths: Iterable[str], vectors: Iterable[Sequence[float]]) -> dict[str, bytes]:
        """Return vectors as they are kept, by their paths: 4 bytes a number."""
        return {path: self._admitted(vector).tobytes() for path, vector in zip(paths, vectors, strict=True)}

    def scores(
        self, query: Sequence[float], kept: Sequence[tuple[str, Mapping[str, bytes]]]
    ) -> dict[str, float]:
        """Return how near each item's nearest vector is, by its name; more is nearer.

        Raises:
            InvalidError: A vector has another length than the query's.
        """
        numpy = _numpy()
        asked = self._admitted(query)
        owners: list[str] = []
        rows: list[bytes] = []
        for name, vectors in kept:
            for vector in vectors.values():
                if len(vector) != asked.nbytes:
                    raise InvalidError(
                        f"a vector of {name!r} has {len(vector) // 4} numbers, the query's {asked.size}: "
                        "it is of another model; use that one, or put the item again"
                    )
                owners.append(name)
                rows.append(vector)
        if not rows:
            return {}
        matrix = numpy.frombuffer(b"".join(rows), _FLOAT).reshape(len(rows), asked.size)
        best: dict[str, float] = {}
        for owner, score in zip(owners, self._nearness(matrix, asked).tolist(), strict=True):
            best[owner] = max(best.get(owner, score), score)
        return best

    def _nearness(self, matrix: NDArray[np.float32], asked: NDArray[np.float32]) -> NDArray[np.float32]:
        numpy = _numpy()
        if self._distance == "l2":
            far: NDArray[np.float32] = numpy.linalg.norm(matrix - asked, axis=1)
            return -far
        products: NDArray[np.float32] = matrix @ asked
        if self._distance == "inner_product":
            return products
        lengths = numpy.linalg.norm(matrix, axis=1) * numpy.linalg.norm(asked)
        cosines: NDArray[np.float32] = numpy.divide(
            products, lengths, out=numpy.zeros_like(products), where=lengths != 0
        )
        return cosines

    def _admitted(self, vector: Sequence[float]) -> NDArray[np.float32]:
        try:
            made: NDArray[np.float32] = _numpy().asarray(vector, _FLOAT)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidError(
                f"the model made {vector!r:.99} of a text; `embed` of the index returns lists of numbers"
            ) from error
        if made.ndim != 1 or (self._dims is not None and made.size != self._dims):
            raise InvalidError(
                f"the model made a vector of {made.size} numbers, and `dims` of the index is {self._dims}"
            )
        return made


def is_texts(values: object) -> bool:
    """Whether it is a list of texts."""
    if not isinstance(values, list | tuple):
        return False
    return all(isinstance(each, str) for each in cast("list[Any]", values))


def _tokenized(paths: Iterable[str]) -> list[tuple[str, list[str] | str]]:
    return [(path, path if path == _WHOLE else tokenize_path(path)) for path in paths]


def _numpy() -> Any:
    try:
        import numpy
    except ImportError as error:
        install = "pip install 'keepstate[langgraph]'"
        raise MissingExtraError(f"a store with an index needs numpy: {install}", install=install) from error
    return numpy
