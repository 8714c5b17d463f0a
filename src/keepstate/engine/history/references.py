"""The branches and tags of a history, as callers see them."""

from __future__ import annotations

from collections.abc import AsyncIterator

from keepstate.engine.history.commits import Branch, Tag
from keepstate.engine.history.lineage import head_of
from keepstate.engine.history.part import HistoryPart
from keepstate.engine.history.record import (
    Head,
    check_ref_name,
    decode_head,
    heads,
    put_head,
    read_head,
)
from keepstate.engine.history.revisions import Revision, find_commit, hold
from keepstate.engine.history.session import HistorySession
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.layout import MAIN
from keepstate.engine.kernel.stored import describe
from keepstate.errors import AlreadyExistsError


class References(HistoryPart):
    """The names of commits: branches, which move to each new commit, and tags, which do not move."""

    async def branch(self, name: str, at: Revision = MAIN) -> Branch:
        """Create a branch that begins at a commit.

        Raises:
            AlreadyExistsError: A branch has this name.
            NotFoundError: The commit does not exist, or no branch or tag leads to it.
        """
        head = await self._name_commit(layout.BRANCHES, name, at)
        return Branch(name, head.commit.hex(), head.number)

    async def branches(self) -> AsyncIterator[Branch]:
        """Yield all branches by name."""
        for name, head in await self._names(layout.BRANCHES):
            yield Branch(name, head.commit.hex(), head.number)

    async def delete_branch(self, name: str) -> bool:
        """Delete a branch, and return whether it existed. Commits without another name are collected.

        Raises:
            InvalidError: It is `main` of a recorded space; call `ks.drop` to delete the space.
        """
        return await self._delete_name(layout.BRANCHES, name)

    async def tag(self, name: str, at: Revision = MAIN) -> Tag:
        """Give a commit a name that does not move.

        Raises:
            AlreadyExistsError: A tag has this name.
            NotFoundError: The commit does not exist, or no branch or tag leads to it.
        """
        return Tag(name, (await self._name_commit(layout.TAGS, name, at)).commit.hex())

    async def tags(self) -> AsyncIterator[Tag]:
        """Yield all tags by name."""
        for name, head in await self._names(layout.TAGS):
            yield Tag(name, head.commit.hex())

    async def delete_tag(self, name: str) -> bool:
        """Delete a tag, and return whether it existed."""
        return await self._delete_name(layout.TAGS, name)

    async def _name_commit(self, part: bytes, name: str, at: Revision) -> Head:
        checked = check_ref_name("name", name)

        async def work(session: HistorySession) -> Head:
            if await read_head(session.unit, part, checked) is not None:
                raise AlreadyExistsError(
                    f"{describe(layout.named_key(part, checked))} of {session.unit.space!r} exists; delete "
                    "it first, or choose another name"
                )
            found = await hold(session, await find_commit(session, at))
            head = head_of(found.id, found.record)
            put_head(session.unit, part, checked, head)
            return head

        return await self._run(work)

    async def _names(self, part: bytes) -> list[tuple[str, Head]]:
        """Return all branches, or all tags, by name, including new ones of the transaction."""

        async def work(session: HistorySession) -> list[tuple[str, Head]]:
            if session.unit.writes:
                return [
                    (layout.name_of(part, entry.key), decode_head(entry.key, entry.value))
                    async for entry in session.unit.scan(part)
                ]
            return [pair async for pair in heads(session.unit, part)]

        return await self._run(work)

    async def _delete_name(self, part: bytes, name: str) -> bool:
        key = layout.named_key(part, check_ref_name("name", name))

        async def work(session: HistorySession) -> bool:
            existed = await session.unit.get(key) is not None
            if existed and part is layout.BRANCHES:
                await session.reject_recorded(name)
            if existed:
                session.unit.delete(key)
            return existed

        return await self._run(work)
