"""A store in trouble: away, damaged, or without the past that it had acknowledged."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Self

from keepstate.errors import CorruptError, StoreFullError, StoreUnavailableError
from keepstate.stores.base import StoreBase
from keepstate.stores.protocol import Batch, Changes, Outcome, Reading
from keepstate.stores.wrappers.wrapper import StoreWrapper


class TroubledStore(StoreWrapper):
    """A store that fails as it is told.

    Attributes:
        away: How often it is still away when it is asked for a revision.
        takes_nothing: Whether it is away for batches.
        is_full: Whether it has no room for batches.
        batches_left: How many batches it takes before it is; None for all.
        lists_nothing: Whether it is away for who asks which spaces there are.
        meanwhile: What another does before the next batch, or removal of a space; once.
        is_damaged: Whether nobody can read its log.
    """

    def __init__(self, store: StoreBase | StoreWrapper) -> None:
        super().__init__(store)
        self.away, self._losses = 0, 0
        self.batches_left: int | None = None
        self.meanwhile: Callable[[], Awaitable[object]] | None = None
        self.takes_nothing = self.is_full = self.lists_nothing = self.is_damaged = False

    def around(self, store: StoreBase | StoreWrapper) -> Self:
        return type(self)(store)

    def lose(self, *, away: int) -> None:
        """Lose history, and is away then."""
        self.away, self._losses = away, self._losses + 1

    def losses(self, space: str) -> int:
        return super().losses(space) + self._losses

    async def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        if self.takes_nothing or self.batches_left == 0:
            raise _away()
        if self.is_full:
            raise StoreFullError("the store has no room; make some, or try again later")
        if self.batches_left is not None:
            self.batches_left -= 1
        await self._let_others()
        return await super().apply(batches)

    async def drop(self, space: str, *, at: int | None = None) -> bool:
        await self._let_others()
        return await super().drop(space, at=at)

    async def _let_others(self) -> None:
        others, self.meanwhile = self.meanwhile, None
        if others is not None:
            await others()

    async def read(self, space: str, keys: Sequence[bytes], *, at_ms: int | None = None) -> Reading:
        if not keys and self.away:
            self.away -= 1
            raise _away()
        return await super().read(space, keys, at_ms=at_ms)

    async def spaces(self, prefix: str = "", *, after: str | None = None, limit: int = 256) -> list[str]:
        if self.lists_nothing:
            raise _away()
        return await super().spaces(prefix, after=after, limit=limit)

    async def changes(self, space: str, after: int, *, limit: int = 1024) -> Changes:
        if self.is_damaged:
            raise CorruptError("the log has a frame that is none", place=space)
        return await super().changes(space, after, limit=limit)


def _away() -> StoreUnavailableError:
    return StoreUnavailableError("the store is away; try again later")
