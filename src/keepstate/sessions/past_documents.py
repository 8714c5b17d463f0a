"""The documents of a space at an earlier moment, for code that reads documents by their names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from keepstate.engine.history.checkout import Checkout
from keepstate.engine.history.revisions import Revision
from keepstate.engine.kernel.unreadable import UNREADABLE, IfUnreadable, Unreadable
from keepstate.engine.space.space import Space, Transaction


@dataclass(frozen=True, slots=True)
class PastEntry:
    """A document of an earlier moment."""

    value: Any


class PastDocuments:
    """The documents of one commit. It reads only the documents that a caller asks for.

    Args:
        checkout: The state of the commit.
    """

    def __init__(self, checkout: Checkout) -> None:
        self._checkout: Final = checkout

    async def entries(self, *names: str, unreadable: IfUnreadable = "raise") -> dict[str, PastEntry]:
        """Return the documents with these names that the commit has.

        Args:
            names: The names.
            unreadable: As for `documents.entries`.
        """
        checkout = self._checkout
        try:
            present = await checkout._load_present(names)  # pyright: ignore[reportPrivateUsage]
        except UNREADABLE:
            if unreadable == "raise" or not names:
                raise
            return await self._each(names, unreadable)
        return {name: PastEntry(checkout[name]) for name in present}

    async def _each(self, names: Sequence[str], unreadable: IfUnreadable) -> dict[str, PastEntry]:
        """Read documents one by one, because one of them cannot be read."""
        found: dict[str, PastEntry] = {}
        for name in names:
            try:
                found |= await self.entries(name)
            except UNREADABLE as error:
                if unreadable == "raw":
                    found[name] = PastEntry(Unreadable(None, (), error.code, error.message))
        return found

    async def get(self, name: str, default: Any = None, *, type: Any = None) -> Any:
        """Return a document, or the default."""
        found = await self.entries(name)
        return found[name].value if name in found else default


@dataclass(frozen=True, slots=True)
class PastSpace:
    """A space at an earlier moment, of which documents can be read."""

    documents: PastDocuments


async def open_past(target: Space | Transaction, ref: Revision) -> PastSpace:
    """Return a space at a commit.

    Raises:
        NotFoundError: The commit does not exist, or the space is not recorded.
    """
    return PastSpace(PastDocuments(await target.at(ref, load=False)))
