"""The read-only state of one commit."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from copy import deepcopy
from typing import Any, Never

from keepstate._finish import finish, finish_each
from keepstate.engine.history.checkout import Checkout
from keepstate.engine.history.commits import Commit
from keepstate.engine.history.history import History
from keepstate.engine.history.working_copy import WorkingCopy
from keepstate.errors import InvalidError
from keepstate.workspace.binding import WorkspaceBinding
from keepstate.workspace.task_events import TaskEvent


class PastState(Mapping[str, Any]):
    """The variables of one commit, read-only. Reads return copies.

    Attributes:
        commit: The commit.
    """

    def __init__(
        self, checkout: Checkout, history: History, working: WorkingCopy, home: WorkspaceBinding
    ) -> None:
        self._checkout, self._history, self._working = checkout, history, working
        self._home = home  # keeps the store open while this object exists
        self.commit: Commit = checkout.commit

    def __repr__(self) -> str:
        return f"<PastState {self.commit.id[:10]}, read-only>"

    @property
    def commit_hash(self) -> str:
        """The id of the commit."""
        return self.commit.id

    def __getitem__(self, name: str) -> Any:
        """Return a copy of a variable.

        Raises:
            NotFoundError: The commit has no such variable.
        """
        return deepcopy(self._checkout[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._checkout)

    def __len__(self) -> int:
        return len(self._checkout)

    def __setitem__(self, name: str, value: object) -> None:
        """Raise `InvalidError`, because a commit never changes."""
        raise self._read_only()

    def __delitem__(self, name: str) -> None:
        """Raise `InvalidError`, because a commit never changes."""
        raise self._read_only()

    def update(self, *_: object, **__: object) -> Never:
        """Raise `InvalidError`, because a commit never changes."""
        raise self._read_only()

    setdefault = pop = popitem = clear = update

    def _read_only(self) -> InvalidError:
        return InvalidError(
            f"{self!r} cannot change. Change the state itself, roll it back, or branch from this commit."
        )

    @property
    def task_events(self) -> list[TaskEvent]:
        """A new list of the events up to the commit, in order.

        Events that changed nothing while the state was at this commit are later, and not included.
        """
        ids = {commit.id for commit in finish_each(self._history.log(self.commit))}
        return [event for event in finish(self._working.told()) if self._is_before_commit(event, ids)]

    def _is_before_commit(self, event: TaskEvent, ids: Container[str | None]) -> bool:
        return event.commit_hash in ids and event.commit_before != self.commit_hash
