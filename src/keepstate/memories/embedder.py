"""The caller's embedding model, and the caller's index of vectors, called safely.

A model may be down. A memory is then stored without a vector and found by its words, and `reembed` adds the
vector. An index of vectors is derived: what it does not know is put again by `reembed`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias

from keepstate._runner import Runner
from keepstate.engine.kernel.arguments import check_name
from keepstate.engine.kernel.executor import call_function, reject_coroutine_function
from keepstate.errors import InvalidError
from keepstate.values import limits
from keepstate.values.vectors import NUMBER_BYTES, pack_vector, unpack_vector

_LOG: Final = logging.getLogger("keepstate.memories")

Vectors: TypeAlias = Sequence[Sequence[float]]
"""The vectors of texts, one for each: lists of numbers, or a matrix of numpy."""
Embed: TypeAlias = Callable[[Sequence[str]], Vectors | Awaitable[Vectors]]


class VectorIndex(Protocol):
    """An index of vectors outside of keepstate. Its methods are plain, or coroutine functions.

    It is derived from the memories and never trusted: each result is compared with the space.
    """

    def put(self, ids: Sequence[str], vectors: Vectors) -> Awaitable[None] | None:
        """Add or replace the vectors of memories."""
        ...

    def delete(self, ids: Sequence[str]) -> Awaitable[None] | None:
        """Remove the vectors of memories; an unknown id is ignored."""
        ...

    def search(
        self, vector: Sequence[float], limit: int, where: Mapping[str, Any]
    ) -> Sequence[tuple[str, float]] | Awaitable[Sequence[tuple[str, float]]]:
        """Return up to `limit` ids with their scores, larger is nearer; it may ignore `where`."""
        ...


class Embedder:
    """Calls the caller's model.

    Args:
        embed: A function of texts that returns their vectors.
        model: The name of the model, which is stored with the vectors.
        runner: The runner of the mode.

    Attributes:
        model: The name of the model.
    """

    def __init__(self, embed: Embed, model: str, runner: Runner) -> None:
        if not callable(embed):
            raise InvalidError(f"`embed` is {embed!r}. Pass a function of a list of texts.")
        if runner.mode == "blocking":
            reject_coroutine_function(embed)
        self._embed, self._runner = embed, runner
        self.model = check_name("model", model) if model else ""

    async def vectors(self, texts: Sequence[str]) -> list[bytes]:
        """Return the stored vectors of texts. A plain function runs in a thread.

        Raises:
            InvalidError: The model returned something other than one vector for each text, all of one length.
        """
        given = await self._runner.run_function(self._embed, (list(texts),), None)
        try:
            packed = [pack_vector(each) for each in given]
        except (TypeError, ValueError) as error:
            raise InvalidError(
                f"`embed` returned {given!r:.99}. It must return one list of finite numbers for each text."
            ) from error
        sizes = {len(each) // NUMBER_BYTES for each in packed}
        if len(packed) != len(texts) or len(sizes) > 1:
            raise InvalidError(
                f"`embed` returned {len(packed)} vectors of {sorted(sizes)} numbers for {len(texts)} texts. "
                "It must return one vector for each text, all of one length."
            )
        if sizes and max(sizes) > limits.VECTOR_NUMBERS:
            raise InvalidError(
                f"`embed` returned a vector of {max(sizes):,} numbers. It may have {limits.VECTOR_NUMBERS:,}."
            )
        return packed

    async def try_vector(self, text: str) -> bytes | None:
        """Return the stored vector of a text; None if the model failed, which is logged.

        Raises:
            InvalidError: The model works, and returned something other than a vector.
        """
        try:
            return (await self.vectors([text]))[0]
        except InvalidError:
            raise
        except Exception:  # noqa: BLE001 - a caller's function
            _LOG.warning("the embedding model failed; words are used instead", exc_info=True)
            return None


class DerivedIndex:
    """Calls the caller's index of vectors. A failed write is logged, because `reembed` repeats it."""

    def __init__(self, index: VectorIndex, runner: Runner) -> None:
        for name in ("put", "delete", "search"):
            method = getattr(index, name, None)
            if not callable(method):
                raise InvalidError(f"`index` is {index!r}, which has no method {name!r}. See VectorIndex.")
            if runner.mode == "blocking":
                reject_coroutine_function(method)
        self._index = index

    async def put(self, vectors: Mapping[str, bytes]) -> None:
        """Add vectors by the ids of their memories."""
        if vectors:
            await self._index_write(
                self._index.put, list(vectors), [unpack_vector(each) for each in vectors.values()]
            )

    async def delete(self, ids: Sequence[str]) -> None:
        """Remove the vectors of memories."""
        await self._index_write(self._index.delete, list(ids))

    async def _index_write(self, method: Callable[..., Any], *args: Any) -> None:
        try:
            await call_function(method, *args)
        except Exception:  # noqa: BLE001 - a caller's object
            _LOG.warning("the index of vectors failed; call reembed() once it works", exc_info=True)

    async def search(self, query: bytes, limit: int, where: Mapping[str, Any]) -> list[tuple[str, float]]:
        """Return ids and scores, nearest first."""
        found = await call_function(self._index.search, unpack_vector(query), limit, dict(where))
        return [(str(id), float(score)) for id, score in found]
