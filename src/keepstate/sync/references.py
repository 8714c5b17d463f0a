"""Blocking twins of `keepstate.engine.history.references`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from keepstate._finish import finish, finish_each
from keepstate.engine.history import references as engine
from keepstate.engine.history.commits import Branch, Tag
from keepstate.engine.history.revisions import Revision
from keepstate.engine.kernel.layout import MAIN
from keepstate.sync.twin import Twin

Inner = TypeVar("Inner", bound=engine.References)


class References(Twin[Inner]):
    """The names of commits: branches, which move to each new commit, and tags, which do not move."""

    def branch(self, name: str, at: Revision = MAIN) -> Branch:
        """Create a branch that begins at a commit.

        Raises:
            AlreadyExistsError: A branch has this name.
            NotFoundError: The commit does not exist, or no branch or tag leads to it.
        """
        return finish(self._inner.branch(name, at))

    def branches(self) -> Iterator[Branch]:
        """Yield all branches by name."""
        return finish_each(self._inner.branches())

    def delete_branch(self, name: str) -> bool:
        """Delete a branch, and return whether it existed. Commits without another name are collected.

        Raises:
            InvalidError: It is `main` of a recorded space; call `ks.drop` to delete the space.
        """
        return finish(self._inner.delete_branch(name))

    def tag(self, name: str, at: Revision = MAIN) -> Tag:
        """Give a commit a name that does not move.

        Raises:
            AlreadyExistsError: A tag has this name.
            NotFoundError: The commit does not exist, or no branch or tag leads to it.
        """
        return finish(self._inner.tag(name, at))

    def tags(self) -> Iterator[Tag]:
        """Yield all tags by name."""
        return finish_each(self._inner.tags())

    def delete_tag(self, name: str) -> bool:
        """Delete a tag, and return whether it existed."""
        return finish(self._inner.delete_tag(name))
