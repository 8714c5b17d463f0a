"""Where typed state is kept: a store of its own opening, an open handle, or a space or transaction passed."""

from __future__ import annotations

from os import PathLike
from typing import TypeAlias

from keepstate._runner import Colour
from keepstate.engine.admission import admit_place, admit_space, admit_text
from keepstate.engine.keepstate import Keepstate
from keepstate.engine.space import Space
from keepstate.engine.transaction import Transaction
from keepstate.errors import InvalidError
from keepstate.opening import source_of
from keepstate.stores.protocol import Store
from keepstate.typed.layout import Names

Persistence: TypeAlias = str | PathLike[str] | Store | Keepstate
"""A URL, the path of an SQLite file, an open store, or a handle on one."""

PRIVATE = "memory://"
"""Memory that nobody else sees; it ends with who has it."""


class Home:
    """Gives spaces by name, or the one that was passed; closes only what it has opened.

    Attributes:
        passed: The space or transaction that was passed.
        handle: Instead: the handle on a store.
        is_private: Whether nobody else sees it.

    Args:
        persistence: Where to keep spaces; without it and `space`, in private memory.
        space: Instead: the space or transaction that all is in.
        author: Who writes.
        record: Whether spaces of its own are recorded.
        colour: How it is used.
    """

    def __init__(
        self,
        persistence: Persistence | None,
        space: Space | Transaction | None,
        *,
        author: str | None = None,
        record: bool = False,
        colour: Colour,
    ) -> None:
        self._author, self._record = author, record
        self.passed: Space | Transaction | None = None
        self.handle: Keepstate | None = None
        self._is_own = False
        self.is_private = persistence is None and space is None
        if space is not None:
            if persistence is not None or record:
                raise InvalidError(
                    "`space` says where state is kept already; give nothing beside it, and record=True to "
                    "the space"
                )
            self.passed = admit_place("space", space, colour, Space, Transaction)
        elif isinstance(persistence, Keepstate) or hasattr(persistence, "_inner"):
            self.handle = admit_place("persistence", persistence, colour, Keepstate)
        else:
            url = PRIVATE if persistence is None else persistence
            self.handle, self._is_own = Keepstate(source_of(url, colour)), True

    def __repr__(self) -> str:
        return repr(self.passed or self.handle)

    def place(self, name: str) -> Space | Transaction:
        """Returns the space of this name, or what was passed; asks the store nothing."""
        if self.passed is not None:
            return self.passed if self._author is None else self.passed.by(self._author)
        assert self.handle is not None
        return self.handle.space(name, author=self._author, record=self._record)

    def thread(self, thread_id: str) -> tuple[Space | Transaction, Names]:
        """Returns where a thread's state stands, and how it is named there.

        Raises:
            InvalidError: The id is empty, or its space's name would be over 200 bytes.
        """
        if not admit_text("thread_id", thread_id):
            raise InvalidError("`thread_id` is empty; give the thread's id")
        name = admit_space("thread_id", f"thread/{thread_id}", "")
        given = (
            self.passed.space if isinstance(self.passed, Transaction) else self.passed and self.passed.name
        )
        return self.place(name), Names() if given in (None, name) else Names.shared(thread_id)

    async def close(self) -> None:
        """Lets go of a store that was opened here."""
        if self.handle is not None and self._is_own:
            await self.handle.close()
