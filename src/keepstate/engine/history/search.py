"""Search in a history: commits by revision, in order, and by what they changed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from functools import partial

from keepstate.engine.history.ancestry import latest
from keepstate.engine.history.blame import Changes, blame
from keepstate.engine.history.commits import Blame, Commit, commit_of
from keepstate.engine.history.log import Log, LogFilter, LogRange, ReverseLog, start_after
from keepstate.engine.history.part import HistoryPart
from keepstate.engine.history.paths import Path, locate, steps_of
from keepstate.engine.history.record import heads
from keepstate.engine.history.revisions import Found, Revision, find_commit, numbered
from keepstate.engine.history.session import HistorySession
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.arguments import check_author, check_flag, check_meta, check_text
from keepstate.engine.kernel.layout import MAIN
from keepstate.errors import InvalidError, NotFoundError
from keepstate.values import limits

_PAGE = 64


class Search(HistoryPart):
    """Finds commits."""

    async def find(self, ref: Revision = MAIN) -> Commit:
        """Return the commit that a revision refers to.

        Raises:
            NotFoundError: The commit does not exist.
            InvalidError: The revision is not valid, or refers to more than one commit.
        """
        return (await self._read(lambda session: find_commit(session, ref))).to_commit()

    async def log(
        self,
        ref: Revision = MAIN,
        *,
        after: Revision | None = None,
        first: int | None = None,
        limit: int | None = None,
        reverse: bool = False,
        path: Path | None = None,
        author: str | None = None,
        text: str | None = None,
        meta: Mapping[str, str] | None = None,
    ) -> AsyncIterator[Commit]:
        """Yield a commit and all its ancestors, including those of merged branches, each before its parents.

        The order is that of the line of first parents. The commits that a merge brought into the line have
        no number, and come directly after the merge.

        For the next page, pass the last commit that was yielded as `after`. Its first commit costs about 40
        reads in a history of 100,000, more if the page begins inside a merged branch.

        Args:
            ref: The commit.
            after: The commit of the log after which to start. It need not fit the filters.
            first: Instead of `after`: the number, in the line of first parents, of the commit to start with.
                The default is the commit itself, or the earliest one with `reverse`.
            limit: The largest number of commits to yield.
            reverse: Yield in exactly the opposite order: the earliest commits first, each after its parents.
            path: Yield only commits whose value at this path differs from that in every parent. An index
                stays the same index. Commits that touched other paths are stepped over.
            author: Yield only commits of this author.
            text: Yield only commits whose message contains this text, in upper or lower case.
            meta: Yield only commits whose notes have these keys with these values.

        Raises:
            NotFoundError: The commit does not exist, or `after` is not one of its ancestors.
            PrunedError: The commit `after`, or with the number `first`, was pruned.
        """
        if after is not None and first is not None:
            raise InvalidError("`after` and `first` were both given; a log starts at one place")
        for name, count in (("limit", limit), ("first", first)):
            if count is not None:
                limits.admit_count(name, count)
        if path is not None:
            steps_of(path)  # check it before any read
        words = None if text is None else check_text("text", text)
        filter = LogFilter(path, check_author(author), words, check_meta(meta))
        is_reverse = check_flag("reverse", reverse)

        async def work(session: HistorySession) -> tuple[Found, LogRange | None]:
            found = await find_commit(session, ref)
            if after is not None:
                return found, await _start_after(session, found, after)
            return found, None if first is None else LogRange((await numbered(session, found, first, ref)).at)

        found, start = await self._read(work)
        walk = (
            ReverseLog(found, start, filter)
            if is_reverse
            else Log(found, start or LogRange(found.at), filter)
        )
        more = True
        while more:
            count = _PAGE if limit is None else min(limit, _PAGE)
            page, more = await self._read(partial(walk.take, count))
            for one in page if limit is None else page[:limit]:
                number = one.number if found.branch else None
                yield commit_of(one.place.id, one.place.record, number, found.branch)
            if limit is not None:
                limit -= len(page)
                more = more and limit > 0

    async def latest(self, limit: int = 100) -> list[Commit]:
        """Return the latest commits of all branches and tags, by time, each before its parents.

        The number of a commit is the one in its own line of first parents. Cost: a read for each commit, and
        one for each branch and tag.

        Args:
            limit: The largest number of commits to return.
        """
        limits.admit_count("limit", limit)

        async def work(session: HistorySession) -> list[Commit]:
            names: dict[bytes, str | None] = {}
            for part, is_branch in ((layout.BRANCHES, True), (layout.TAGS, False)):
                async for name, head in heads(session.unit, part):
                    names.setdefault(head.commit, name if is_branch else None)
                    session.read_loosely(head.commit)
            places = await latest(session, names, limit)
            return [commit_of(each.id, each.record, each.number, names.get(each.id)) for each in places]

        return await self._read(work)

    async def changes_of(
        self, path: Path, ref: Revision = MAIN, *, limit: int | None = None
    ) -> AsyncIterator[Blame]:
        """Yield the commits that changed the value at a path, the latest first.

        These are the commits of the line of first parents whose value differs from the first parent's,
        including those that added or removed it. A merge changed what it brought into the line. An index of a
        list stays the same index. Where the line was pruned, the change was made by the yielded commit or by
        an earlier one.

        Args:
            path: A key of the state, or a tuple of keys and indexes. It need not exist in the commit. Text
                that is not a key is read as a printed path, such as `messages[3].meta`.
            ref: The commit to start from.
            limit: The largest number of commits to yield.

        Raises:
            NotFoundError: The commit does not exist.
        """
        if limit is not None:
            limits.admit_count("limit", limit)
        steps_of(path)  # check it before any read

        async def work(session: HistorySession) -> Changes:
            found = await find_commit(session, ref)
            return Changes(found, await session.serve(locate(found.record.root, path)))

        changes = await self._read(work)
        while limit is None or limit > 0:
            count = _PAGE if limit is None else min(limit, _PAGE)
            page = await self._read(partial(changes.take, count))
            for found, is_exact in page:
                yield Blame(found.to_commit(), is_exact)
            if len(page) < count:
                return
            limit = None if limit is None else limit - count

    async def blame(self, path: Path, ref: Revision = MAIN) -> Blame:
        """Return the commit that gave the value at a path its content.

        An item of a list is followed as its index changes.

        Args:
            path: A key of the state, or a tuple of keys and indexes. Text that is not a key is read as a
                printed path, such as `messages[3].meta`.
            ref: The commit to start from.

        Raises:
            NotFoundError: The path or the commit does not exist.
        """
        steps_of(path)  # check it before any read

        async def work(session: HistorySession) -> Blame:
            found, is_exact = await blame(session, await find_commit(session, ref), path)
            return Blame(found.to_commit(), is_exact)

        return await self._read(work)


async def _start_after(session: HistorySession, found: Found, after: Revision) -> LogRange:
    last = await find_commit(session, after)
    start = await start_after(session, found, last.at)
    if start is None:
        raise NotFoundError(
            f"`after` is {last.id.hex()}, which is not an ancestor of {found.id.hex()[:10]}: list from the "
            "start, or pass the ref of the first page"
        )
    return start
