"""Where typed state is kept, and how a thread's is named there."""

from __future__ import annotations

from keepstate._runner import Mode
from keepstate.engine.kernel.arguments import check_author, check_flag, check_space_name, check_text
from keepstate.engine.space.space import Space
from keepstate.engine.space.transaction import Transaction
from keepstate.errors import InvalidError
from keepstate.home import PRIVATE, HomeBase, Persistence, prefix_of, space_name
from keepstate.typed.layout import Names


class Home(HomeBase):
    """Gives spaces by name, or the one that was passed.

    Attributes:
        is_private: Whether nobody else sees it.

    Args:
        persistence: Where to keep spaces; without it and `space`, in private memory.
        space: Instead: the space or transaction that all is in.
        author: Who writes.
        record: Whether spaces of its own are recorded.
        mode: How it is used.
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
            raise InvalidError("`space` is recorded or not already; give record=True to the space")
        super().__init__(persistence, space, default=PRIVATE, mode=mode)
        self._author, self._record = check_author(author), check_flag("record", record)
        self.is_private = persistence is None and space is None

    def place(self, name: str) -> Space | Transaction:
        """Return the space of this name, or what was passed; asks the store nothing."""
        if self.passed is not None:
            return self.passed if self._author is None else self.passed.by(self._author)
        assert self.handle is not None
        return self.handle.space(name, author=self._author, record=self._record)

    def thread(self, thread_id: str) -> tuple[Space | Transaction, Names]:
        """Return where a thread's state stands, and how it is named there.

        Raises:
            InvalidError: The id is empty, or its space's name would be over 200 bytes.
        """
        if not check_text("thread_id", thread_id):
            raise InvalidError("`thread_id` is empty; give the thread's id")
        name = check_space_name("thread_id", space_name("thread", thread_id))
        return self.place(name), Names(prefix_of(self.passed, "thread", thread_id))
