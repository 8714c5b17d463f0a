"""Where state is kept: in a store of its own opening, by an open handle, or in a space or transaction passed.

The home of a subject is the space `<kind>/<id>`. In its home the names of its documents have no prefix,
whether the home was reached by a store or passed as a space. In any other space they begin with
`<kind>/<id>/`, the id quoted. Invariant: what was passed in open is never closed here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from os import PathLike
from typing import Final, TypeAlias
from urllib.parse import unquote

from keepstate._clock import Clock
from keepstate._runner import Mode, Runner
from keepstate.engine.kernel.arguments import check_target
from keepstate.engine.kernel.glob import escape_pattern
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space
from keepstate.engine.space.transaction import Transaction
from keepstate.errors import InvalidError
from keepstate.opening import source_of
from keepstate.stores.protocol import Store

Persistence: TypeAlias = str | PathLike[str] | Store | Keepstate
"""A URL, the path of an SQLite file, an open store, or a handle on one."""

PRIVATE: Final = "memory://"
"""Memory that nobody else sees; it ends with who has it."""

_ESCAPED: Final = str.maketrans(
    {sign: f"%{ord(sign):02X}" for sign in ("%", "/", "~", "#", "@", "\x7f", *map(chr, range(32)))}
)
_LAST: Final = chr(0x10FFFF)
"""Sorts behind every other character."""


def quoted(text: str) -> str:
    """Return any text as one segment of a name, without `/` and what the name of a branch may not have."""
    return text.translate(_ESCAPED)


def unquoted(segment: str) -> str:
    """Return the text of a quoted segment."""
    return unquote(segment)


def space_name(kind: str, id: str) -> str:
    """Return the name of a subject's home. The id stands in it as it is."""
    return f"{kind}/{id}"


def is_home(place: Space | Transaction | None, kind: str, id: str) -> bool:
    """Return whether a space, or the space of a transaction, is the home of a subject."""
    name = place.space if isinstance(place, Transaction) else None if place is None else place.name
    return name == space_name(kind, id)


def prefix_of(place: Space | Transaction | None, kind: str, id: str) -> str:
    """Return the prefix of a subject's names in a space that was passed; without one it is at home."""
    return "" if place is None or is_home(place, kind, id) else f"{kind}/{quoted(id)}/"


async def subjects_in(place: Space | Transaction, kind: str) -> AsyncIterator[str]:
    """Yield the ids of all subjects of a kind in a space that was passed, the one whose home it is first.

    A home is counted only if it holds a document of its own, and not of guests alone. Cost: a scan of the
    guests' names and at most two pages.
    """
    begin = f"{kind}/"
    name = place.space if isinstance(place, Transaction) else place.name
    if name.startswith(begin) and await _has_own(place, begin):
        yield name[len(begin) :]
    last: str | None = None
    async for key in place.documents.keys(f"{escape_pattern(begin)}*"):
        segment = key[len(begin) :].partition("/")[0]
        if segment != last:
            yield unquoted(segment)
        last = segment


async def _has_own(place: Space | Transaction, begin: str) -> bool:
    """Return whether a document exists whose name does not begin so."""
    for after in (None, begin + _LAST):
        async for key in place.documents.keys(after=after):
            if not key.startswith(begin):
                return True
            break
    return False


def refuse_exchanged(persistence: object, space: object) -> None:
    """Raise `InvalidError` for a space or transaction as `persistence`, or a handle as `space`."""
    held, place = getattr(persistence, "_inner", persistence), getattr(space, "_inner", space)
    if isinstance(held, Space | Transaction):
        raise InvalidError(f"`persistence` is {held!r} ({type(held).__name__}); pass it as `space`")
    if isinstance(place, Keepstate):
        raise InvalidError(
            f"`space` is {place!r} (Keepstate); pass it as `persistence`, or one of its spaces as `space`"
        )


class HomeBase:
    """Holds a store, or the space that was passed; closes only what it has opened.

    Attributes:
        passed: The space or transaction that was passed.
        handle: Instead: the handle on a store.

    Args:
        persistence: Where to keep spaces.
        space: Instead: the space or transaction that all is in.
        default: The URL of the store, where neither is given.
        mode: How it is used.
    """

    def __init__(
        self,
        persistence: Persistence | None,
        space: Space | Transaction | None,
        *,
        default: str,
        mode: Mode,
    ) -> None:
        self.passed: Space | Transaction | None = None
        self.handle: Keepstate | None = None
        self._is_own = False
        refuse_exchanged(persistence, space)
        if space is not None:
            if persistence is not None:
                raise InvalidError(
                    "`space` says where state is kept already; give no `persistence` beside it"
                )
            self.passed = check_target("space", space, mode, Space, Transaction)
        elif isinstance(persistence, Keepstate) or hasattr(persistence, "_inner"):
            self.handle = check_target("persistence", persistence, mode, Keepstate)
        else:
            url = default if persistence is None else persistence
            self.handle, self._is_own = Keepstate(source_of(url, mode)), True

    def __repr__(self) -> str:
        return repr(self.passed or self.handle)

    @property
    def runner(self) -> Runner:
        """The runner of the mode."""
        return self._holder.runner

    @property
    def clock(self) -> Clock:
        """Time and randomness of this process."""
        return self._holder.clock

    @property
    def _holder(self) -> Space | Transaction | Keepstate:
        holder = self.passed or self.handle
        assert holder is not None
        return holder

    def require_outside_transaction(self, what: str) -> None:
        """Raise `InvalidError` inside a transaction, for what cannot wait until that applies."""
        if isinstance(self.passed, Transaction):
            raise InvalidError(f"{what} acts at once and cannot be part of a transaction; do it outside")

    async def close(self) -> None:
        """Release the store that this object opened."""
        if self.handle is not None and self._is_own:
            await self.handle.close()
