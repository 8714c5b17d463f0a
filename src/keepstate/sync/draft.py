"""Blocking twins of `keepstate.engine.history.draft`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

from keepstate._finish import finish
from keepstate.engine.history import draft as engine
from keepstate.engine.history.commit_request import OnConflict
from keepstate.engine.history.commits import Commit
from keepstate.engine.history.merge import MergeRules
from keepstate.sync.checkout import Loaded


class Draft(Loaded[engine.Draft], MutableMapping[str, Any]):
    """The next state of a branch: a mapping of plain values.

    Lists and dicts in it may be changed in place, also through a reference from before an earlier commit. A
    commit contains the differences of each value from its loaded or last committed form.

    Attributes:
        branch: The branch that `commit` moves.
        base: The commit that the draft is based on; None if the branch does not exist yet.
    """

    @property
    def branch(self) -> str:
        """The branch that `commit` moves."""
        return self._inner.branch

    @property
    def base(self) -> Commit | None:
        """The commit that the draft is based on; None if the branch does not exist yet."""
        return self._inner.base

    def __getitem__(self, key: str) -> Any:
        """Return the value of a key, the same object each time.

        Raises:
            NotFoundError: The key does not exist.
            NotLoadedError: The key is not loaded. Blocking use loads it now.
        """
        return self._inner[key]

    def __setitem__(self, key: str, value: object) -> None:
        """Set a key. Its old value need not be loaded."""
        self._inner[key] = value

    def __delitem__(self, key: str) -> None:
        """Remove a key.

        Raises:
            NotFoundError: The key does not exist.
            NotLoadedError: The key is not loaded. Blocking use loads it now.
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
        meta: Mapping[str, str] | None = None,
        on_conflict: OnConflict = "raise",
        rules: MergeRules | None = None,
    ) -> Commit:
        """Commit the state, and return the new head of the branch. The draft continues from there.

        Each call makes a commit, even without changes. Concurrent calls are serialized.

        Args:
            message: The commit message; at most 64 KiB of UTF-8.
            author: The author of the commit. The default is the author of the space.
            meta: Notes on the commit; see `History.commit`.
            on_conflict: What to do if the branch has moved on: raise, or merge. After a merge, the lists and
                dicts of the draft are updated in place to the merged state.
            rules: Merge rules by path; see `History.merge`.

        Raises:
            ConflictError: The branch has moved on. Nothing was committed.
            NotFoundError: `on_conflict` is `merge`, and the branch was deleted.
            MergeConflictError: Both sides changed the same value, and no rule decides.
            InvalidError: A value would not come back equal. The error names its path; nothing was committed.
        """
        return finish(
            self._inner.commit(message, author=author, meta=meta, on_conflict=on_conflict, rules=rules)
        )
