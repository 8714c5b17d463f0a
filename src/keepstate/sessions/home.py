"""Where the parts of sessions are kept: a store of their own opening, or a space or transaction passed.

What was passed in open is never closed here. Where nothing is said, state is in memory: what has an id is
shared by this process, what has none is seen by nobody else.
"""

from __future__ import annotations

from hashlib import sha256
from os import PathLike
from typing import Final, TypeAlias

from keepstate._clock import Clock
from keepstate._runner import Colour, Runner
from keepstate.engine.admission import admit_place, admit_space, admit_text
from keepstate.engine.keepstate import Keepstate
from keepstate.engine.space import Space
from keepstate.engine.transaction import Transaction
from keepstate.errors import InvalidError
from keepstate.opening import source_of
from keepstate.stores.protocol import Store

Persistence: TypeAlias = str | PathLike[str] | Store | Keepstate
"""A URL, the path of an SQLite file, an open store, or a handle on one."""

DEFAULT: Final = "memory://default"
PRIVATE: Final = "memory://"
_ESCAPED: Final = str.maketrans(
    {sign: f"%{ord(sign):02X}" for sign in ("%", "/", "\x7f", *map(chr, range(32)))}
)
_NO_LABEL: Final = str.maketrans({sign: f"%{ord(sign):02X}" for sign in "~#@"})
_LABEL_BYTES: Final = 200


class Home:
    """Gives the space of a subject, or the one that was passed.

    Args:
        persistence: Where to keep spaces; without it and `space`, in memory that this process shares.
        space: Instead: the space or transaction that all is in.
        colour: How it is used.
        is_private: Whether, where nothing is said, nobody else is to see it.
    """

    def __init__(
        self,
        persistence: Persistence | None,
        space: Space | Transaction | None,
        *,
        colour: Colour,
        is_private: bool = False,
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
            default = PRIVATE if is_private else DEFAULT
            self.handle = Keepstate(source_of(default if persistence is None else persistence, colour))
            self._is_own = True

    def __repr__(self) -> str:
        return repr(self.passed or self.handle)

    @property
    def runner(self) -> Runner:
        """Returns how the colour waits."""
        place = self.passed or self.handle
        assert place is not None
        return place.runner

    @property
    def clock(self) -> Clock:
        """Returns time and randomness of this process."""
        place = self.passed or self.handle
        assert place is not None
        return place.clock

    def place(self, kind: str, id: str, *, record: bool = False) -> Space | Transaction:
        """Returns the space of a subject, or what was passed; asks the store nothing.

        Raises:
            InvalidError: The id is empty, or its space's name would be over 200 bytes.
        """
        if not admit_text("id", id):
            raise InvalidError(f"the id of a {kind} is empty; give one")
        name = admit_space("id", f"{kind}/{id}", "")
        if self.passed is not None:
            return self.passed
        assert self.handle is not None
        return self.handle.space(name, record=record)

    def prefix(self, kind: str, id: str) -> str:
        """Returns what the names of a subject's documents begin with: something only in a space of others."""
        return f"{kind}/{quoted(id)}/" if self.passed is not None else ""

    def refuse_inside(self, what: str) -> None:
        """Raises `InvalidError` inside a transaction, for what cannot wait until that applies."""
        if isinstance(self.passed, Transaction):
            raise InvalidError(f"{what} acts at once and cannot be part of a transaction; do it outside")

    async def close(self) -> None:
        """Lets go of a store that was opened here."""
        if self.handle is not None and self._is_own:
            await self.handle.close()


def quoted(id: str) -> str:
    """Returns any text as one segment of a name, without `/`."""
    return id.translate(_ESCAPED)


def short(name: str) -> str:
    """Returns the name of a branch or stream: without what no branch may have, cut where too long."""
    label = name.translate(_NO_LABEL)
    encoded = label.encode()
    if len(encoded) <= _LABEL_BYTES:
        return label
    return f"{label.partition('/')[0][:100]}/{sha256(encoded).hexdigest()}"
