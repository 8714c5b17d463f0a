"""The calls of a LangGraph store that name one item: a key that is no text is refused.

LangGraph's own make a text of it, so that 5 and "5" are one item, and None is one too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from langgraph.store.base import NOT_PROVIDED, BaseStore, Item, NotProvided

from keepstate.adapters.langgraph.operations import admit_key


class Keyed(BaseStore):
    """A store whose keys are text."""

    def get(self, namespace: tuple[str, ...], key: str, *, refresh_ttl: bool | None = None) -> Item | None:
        """Return an item, None if it is not there."""
        return super().get(namespace, admit_key(key), refresh_ttl=refresh_ttl)

    async def aget(
        self, namespace: tuple[str, ...], key: str, *, refresh_ttl: bool | None = None
    ) -> Item | None:
        """Return an item, None if it is not there."""
        return await super().aget(namespace, admit_key(key), refresh_ttl=refresh_ttl)

    def put(
        self,
        namespace: tuple[str, ...],
        key: str,
        value: Mapping[str, Any],
        index: Literal[False] | list[str] | None = None,
        *,
        ttl: float | NotProvided | None = NOT_PROVIDED,
    ) -> None:
        """Put an item, in place of what is there."""
        super().put(namespace, admit_key(key), value, index, ttl=ttl)

    async def aput(
        self,
        namespace: tuple[str, ...],
        key: str,
        value: Mapping[str, Any],
        index: Literal[False] | list[str] | None = None,
        *,
        ttl: float | NotProvided | None = NOT_PROVIDED,
    ) -> None:
        """Put an item, in place of what is there."""
        await super().aput(namespace, admit_key(key), value, index, ttl=ttl)

    def delete(self, namespace: tuple[str, ...], key: str) -> None:
        """Delete an item; an absent one stays absent."""
        super().delete(namespace, admit_key(key))

    async def adelete(self, namespace: tuple[str, ...], key: str) -> None:
        """Delete an item; an absent one stays absent."""
        await super().adelete(namespace, admit_key(key))
