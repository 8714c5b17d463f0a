"""Blocking twins of `keepstate.engine.history.draft`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

from keepstate._finish import finish
from keepstate.engine.history import draft as engine
from keepstate.engine.history.commit_request import OnConflict
from keepstate.engine.history.commits import Commit
from keepstate.engine.history.merge import MergeRules
from keepstate.sync.loaded_state import Loaded


class Draft(Loaded[engine.Draft], MutableMapping[str, Any]):
    """The state of a branch as it is being changed: a mapping of plain values.

    Lists and dicts in it may be changed in place, also through a reference taken before an earlier commit:
    what is committed is how each value differs from what the draft loaded or committed last.

    Attributes:
        branch: The branch that `commit` moves.
        base: The commit that it stands on, or None if the branch has none yet.
    """

    @property
    def branch(self) -> str:
        """The branch that `commit` moves."""
        return self._inner.branch

    @property
    def base(self) -> Commit | None:
        """The commit that it stands on, or None if the branch has none yet."""
        return self._inner.base

    def __getitem__(self, key: str) -> Any:
        """Return the value of a key, the same object each time.

        Raises:
            NotFoundError: There is none.
            NotLoadedError: It was left out when loading; blocking use loads it now.
        """
        return self._inner[key]

    def __setitem__(self, key: str, value: object) -> None:
        """Set a key; what it had before need not be loaded."""
        self._inner[key] = value

    def __delitem__(self, key: str) -> None:
        """Remove a key.

        Raises:
            NotFoundError: There is none.
            NotLoadedError: It was left out when loading; blocking use loads it now.
        """
        del self._inner[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._inner)

    def __len__(self) -> int:
        return len(self._inner)

    def commit(
        self,
        message: str = "",
        *,
        author: str | None = None,
        on_conflict: OnConflict = "raise",
        rules: MergeRules | None = None,
    ) -> Commit:
        """Commit the state, and return the commit that the branch is on now; the draft goes on from there.

        Each call makes a commit, also if nothing was changed: the moment was asked for. Calls at once take
        turns.

        Args:
            message: What for; at most 64 KiB of UTF-8.
            author: Who commits, if not the author of the space.
            on_conflict: What to do if others have committed to the branch since: raise, or merge. After a
                merge, the draft's lists and dicts are brought to the merged state in place.
            rules: How to merge, by path; see `History.merge`.

        Raises:
            ConflictError: The branch has moved on; nothing was committed.
            NotFoundError: Others are to be merged with, and the branch is gone.
            MergeConflictError: Both sides changed the same, and no rule decides.
            InvalidError: A value would not come back equal; its path is named. Nothing was committed.
        """
        return finish(self._inner.commit(message, author=author, on_conflict=on_conflict, rules=rules))
