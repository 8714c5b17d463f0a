"""The storage binding of typed state, and the document names of a thread."""

from __future__ import annotations

from keepstate._runner import Mode
from keepstate.engine.kernel.arguments import check_author, check_flag, check_space_name, check_text
from keepstate.engine.space.space import Space
from keepstate.engine.space.transaction import Transaction
from keepstate.errors import InvalidError
from keepstate.home import PRIVATE, HomeBase, Persistence, prefix_of, space_name
from keepstate.typed.layout import Names


class StoreBinding(HomeBase):
    """Returns spaces by name, or the space or transaction that was passed.

    Attributes:
        is_private: Whether no other object shares the store.

    Args:
        persistence: The store of the spaces; without it and `space`, private memory.
        space: Instead: the space or transaction that contains all state.
        author: The author of writes.
        record: Whether its own spaces are recorded.
        mode: `async` or `blocking`.
    """

    def __init__(
        self,
        persistence: Persistence | None,
        space: Space | Transaction | None,
        *,
        author: str | None = None,
        record: bool = False,
        mode: Mode,
    ) -> None:
        if space is not None and record:
            raise InvalidError(
                "record=True has no effect on `space`. Open the space itself with record=True."
            )
        super().__init__(persistence, space, default=PRIVATE, mode=mode)
        self._author, self._record = check_author(author), check_flag("record", record)
        self.is_private = persistence is None and space is None

    def resolve(self, name: str) -> Space | Transaction:
        """Return the space of this name, or the space or transaction that was passed; no store access."""
        if self.passed is not None:
            return self.passed if self._author is None else self.passed.by(self._author)
        assert self.handle is not None
        return self.handle.space(name, author=self._author, record=self._record)

    def resolve_thread(self, thread_id: str) -> tuple[Space | Transaction, Names]:
        """Return the space or transaction of a thread's state, and its document names there.

        Raises:
            InvalidError: The id is empty, or the name of its space would be over 200 bytes.
        """
        if not check_text("thread_id", thread_id):
            raise InvalidError("`thread_id` is empty. Pass the thread's id.")
        name = check_space_name("thread_id", space_name("thread", thread_id))
        return self.resolve(name), Names(prefix_of(self.passed, "thread", thread_id))
