"""The storage binding of a part: a store that the part opens, or a space or transaction that was passed.

A space or transaction that was passed in open is never closed here. Without either, state is in memory: a
subject with an id is shared by this process, a subject without an id is private to its object.
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


class StoreBinding(HomeBase):
    """Resolves the space of a subject, or returns the space or transaction that was passed.

    Args:
        persistence: The store of the spaces; without it and `space`, memory that this process shares.
        space: Instead: the space or transaction that contains all subjects.
        mode: `async` or `blocking`.
        is_private: Without `persistence` and `space`, use memory that no other object shares.
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

    def resolve(self, kind: str, id: str, *, record: bool = False) -> Space | Transaction:
        """Return the space of a subject, or the space or transaction that was passed; no store access.

        With `record`, a subject's own space is recorded, whether it was reached by a store or passed as a
        space.

        Raises:
            InvalidError: The id is empty, or the name of its space would be over 200 bytes.
        """
        if not check_text("id", id):
            raise InvalidError(f"The id of a {kind} is empty. Pass a non-empty id.")
        name = check_space_name("id", space_name(kind, id))
        if self.passed is not None:
            is_recorded_home = record and self.is_home(kind, id) and isinstance(self.passed, Space)
            return recorded(self.passed) if is_recorded_home else self.passed
        assert self.handle is not None
        return self.handle.space(name, record=record)

    def is_home(self, kind: str, id: str) -> bool:
        """Return whether the passed space, or the space of the passed transaction, is the subject's own."""
        return is_home(self.passed, kind, id)

    def prefix(self, kind: str, id: str) -> str:
        """Return the prefix of a subject's document names; empty in the subject's own space."""
        return prefix_of(self.passed, kind, id)

    def sibling(self, kind: str, id: str) -> Space | None:
        """Return the recorded space of another subject, in the store of the space that was passed.

        Return None if a transaction was passed, because a transaction reaches one space only.
        """
        if not isinstance(self.passed, Space):
            return None
        handle = self.passed.executor.home
        name = check_space_name("id", space_name(kind, id), handle.tenant_id)
        return Space(handle, name, author=self.passed.author, record=True)


def shorten(label: str) -> str:
    """Return the name of a branch or stream; a name over 200 bytes is replaced by a prefix and its hash."""
    encoded = label.encode()
    if len(encoded) <= _LABEL_BYTES:
        return label
    return f"{label.partition('/')[0][:100]}/{sha256(encoded).hexdigest()}"
