"""Where state is kept: in a store of its own opening, by an open handle, or in a space or transaction passed.

Invariant: what was passed in open is never closed here. How spaces are named is not said here.
"""

from __future__ import annotations

from os import PathLike
from typing import Final, TypeAlias

from keepstate._clock import Clock
from keepstate._runner import Colour, Runner
from keepstate.engine.admission import admit_place
from keepstate.engine.keepstate import Keepstate
from keepstate.engine.space import Space
from keepstate.engine.transaction import Transaction
from keepstate.errors import InvalidError
from keepstate.opening import source_of
from keepstate.stores.protocol import Store

Persistence: TypeAlias = str | PathLike[str] | Store | Keepstate
"""A URL, the path of an SQLite file, an open store, or a handle on one."""

PRIVATE: Final = "memory://"
"""Memory that nobody else sees; it ends with who has it."""


class HomeBase:
    """Holds a store, or the space that was passed; closes only what it has opened.

    Attributes:
        passed: The space or transaction that was passed.
        handle: Instead: the handle on a store.

    Args:
        persistence: Where to keep spaces.
        space: Instead: the space or transaction that all is in.
        default: The URL of the store, where neither is given.
        colour: How it is used.
    """

    def __init__(
        self,
        persistence: Persistence | None,
        space: Space | Transaction | None,
        *,
        default: str,
        colour: Colour,
    ) -> None:
        self.passed: Space | Transaction | None = None
        self.handle: Keepstate | None = None
        self._is_own = False
        if space is not None:
            if persistence is not None:
                raise InvalidError(
                    "`space` says where state is kept already; give no `persistence` beside it"
                )
            self.passed = admit_place("space", space, colour, Space, Transaction)
        elif isinstance(persistence, Keepstate) or hasattr(persistence, "_inner"):
            self.handle = admit_place("persistence", persistence, colour, Keepstate)
        else:
            url = default if persistence is None else persistence
            self.handle, self._is_own = Keepstate(source_of(url, colour)), True

    def __repr__(self) -> str:
        return repr(self.passed or self.handle)

    @property
    def runner(self) -> Runner:
        """Returns how the colour waits."""
        return self._holder.runner

    @property
    def clock(self) -> Clock:
        """Returns time and randomness of this process."""
        return self._holder.clock

    @property
    def _holder(self) -> Space | Transaction | Keepstate:
        holder = self.passed or self.handle
        assert holder is not None
        return holder

    def refuse_inside(self, what: str) -> None:
        """Raises `InvalidError` inside a transaction, for what cannot wait until that applies."""
        if isinstance(self.passed, Transaction):
            raise InvalidError(f"{what} acts at once and cannot be part of a transaction; do it outside")

    async def close(self) -> None:
        """Lets go of a store that was opened here."""
        if self.handle is not None and self._is_own:
            await self.handle.close()
