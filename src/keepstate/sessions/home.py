"""Where the parts of sessions are kept: a store of their own opening, or a space or transaction passed.

What was passed in open is never closed here. Where nothing is said, state is in memory: what has an id is
shared by this process, what has none is seen by nobody else.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from keepstate._runner import Colour
from keepstate.engine.admission import admit_space, admit_text
from keepstate.engine.space import Space
from keepstate.engine.transaction import Transaction
from keepstate.errors import InvalidError
from keepstate.home import PRIVATE, HomeBase, Persistence

DEFAULT: Final = "memory://default"
_ESCAPED: Final = str.maketrans(
    {sign: f"%{ord(sign):02X}" for sign in ("%", "/", "\x7f", *map(chr, range(32)))}
)
_NO_LABEL: Final = str.maketrans({sign: f"%{ord(sign):02X}" for sign in "~#@"})
_LABEL_BYTES: Final = 200


class Home(HomeBase):
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
        super().__init__(persistence, space, default=PRIVATE if is_private else DEFAULT, colour=colour)

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
