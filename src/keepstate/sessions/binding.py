"""Where the parts of sessions are kept: a store of their own opening, or a space or transaction passed.

What was passed in open is never closed here. Where nothing is said, state is in memory: what has an id is
shared by this process, what has none is seen by nobody else.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from keepstate._runner import Mode
from keepstate.engine.kernel.arguments import check_space_name, check_text
from keepstate.engine.space.joint_work import recorded
from keepstate.engine.space.space import Space
from keepstate.engine.space.transaction import Transaction
from keepstate.errors import InvalidError
from keepstate.home import PRIVATE, HomeBase, Persistence, is_home, prefix_of, space_name

DEFAULT: Final = "memory://default"
_LABEL_BYTES: Final = 200


class Home(HomeBase):
    """Gives the space of a subject, or the one that was passed.

    Args:
        persistence: Where to keep spaces; without it and `space`, in memory that this process shares.
        space: Instead: the space or transaction that all is in.
        mode: How it is used.
        is_private: Whether, where nothing is said, nobody else is to see it.
    """

    def __init__(
        self,
        persistence: Persistence | None,
        space: Space | Transaction | None,
        *,
        mode: Mode,
        is_private: bool = False,
    ) -> None:
        super().__init__(persistence, space, default=PRIVATE if is_private else DEFAULT, mode=mode)

    def place(self, kind: str, id: str, *, record: bool = False) -> Space | Transaction:
        """Return the space of a subject, or what was passed; asks the store nothing.

        A home that was passed as a space is recorded like one that was reached by a store.

        Raises:
            InvalidError: The id is empty, or its space's name would be over 200 bytes.
        """
        if not check_text("id", id):
            raise InvalidError(f"the id of a {kind} is empty; give one")
        name = check_space_name("id", space_name(kind, id))
        if self.passed is not None:
            is_recorded_home = record and self.is_home(kind, id) and isinstance(self.passed, Space)
            return recorded(self.passed) if is_recorded_home else self.passed
        assert self.handle is not None
        return self.handle.space(name, record=record)

    def is_home(self, kind: str, id: str) -> bool:
        """Return whether what was passed is the subject's own space, or a transaction on it."""
        return is_home(self.passed, kind, id)

    def prefix(self, kind: str, id: str) -> str:
        """Return the prefix of the names of a subject's documents; empty in its home."""
        return prefix_of(self.passed, kind, id)

    def next_to(self, kind: str, id: str) -> Space | None:
        """Return the recorded home of another subject in the store of a space that was passed.

        None if a transaction was passed, which reaches one space only.
        """
        if not isinstance(self.passed, Space):
            return None
        handle = self.passed.executor.home
        name = check_space_name("id", space_name(kind, id), handle.tenant_id)
        return Space(handle, name, author=self.passed.author, record=True)


def short(label: str) -> str:
    """Return the name of a branch or stream, cut where too long."""
    encoded = label.encode()
    if len(encoded) <= _LABEL_BYTES:
        return label
    return f"{label.partition('/')[0][:100]}/{sha256(encoded).hexdigest()}"
