"""Revisions: the forms in which a caller names a commit.

```
main          the head of a branch, or the commit of a tag
a1b2c3d4      an id, or its first digits: at least four, with which only one id begins
main~3        three commits before that, by first parents
main#37       number 37 in the line of first parents, counted from its beginning
main@2026-11-21T10:00:00+00:00   the last commit at that time; a datetime is the same on `main`
```
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final, TypeAlias

import msgspec

from keepstate.engine.history.ancestry import At, before, down_to, is_ancestor, jump_from, parent_of
from keepstate.engine.history.ancestry import at as at_commit
from keepstate.engine.history.commits import Branch, Commit, Tag, commit_of
from keepstate.engine.history.record import CommitRecord, heads, is_whole_id, read_head
from keepstate.engine.history.session import HistorySession
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.layout import MAIN
from keepstate.engine.kernel.stored import to_milliseconds
from keepstate.errors import InvalidError, NotFoundError, PrunedError
from keepstate.values.refs import DIGEST_SIZE

Revision: TypeAlias = str | Commit | Branch | Tag | datetime

_FORM: Final = re.compile(r"([^~#@]+)(?:~(\d{1,9})?|#(\d{1,9})|@(.+))?", re.DOTALL)
_ID: Final = re.compile(r"[0-9a-f]{4,40}")
_SHORT_ID: Final = re.compile(r"[0-9a-f]{1,3}")


class Found(msgspec.Struct, frozen=True):
    """A commit that a revision refers to.

    Attributes:
        id: The name of the commit.
        record: The commit.
        number: Its number in the line that it was found through; None if it is not in that line.
        branch: The branch that it was found through.
        is_held: Whether the unit has read a branch or tag that leads to it, so that its batch is conditional
            on that.
    """

    id: bytes
    record: CommitRecord
    number: int | None
    branch: str | None
    is_held: bool

    @property
    def at(self) -> At:
        """The commit and its record."""
        return At(self.id, self.record)

    def to_commit(self) -> Commit:
        """Return the commit as callers see it."""
        return commit_of(self.id, self.record, self.number if self.branch else None, self.branch)


async def find_commit(session: HistorySession, revision: object) -> Found:
    """Return the commit that a revision refers to.

    Raises:
        InvalidError: It is not a revision, or fits more than one id.
        NotFoundError: The commit does not exist.
    """
    if isinstance(revision, datetime):
        await session.unit.read(layout.named_key(layout.BRANCHES, MAIN), layout.GRAFTS)
        return await _at_time(session, await _named(session, MAIN), revision)
    if isinstance(revision, Commit):
        revision = revision.id
    elif isinstance(revision, Branch | Tag):
        revision = revision.name
    form = _FORM.fullmatch(revision) if isinstance(revision, str) else None
    if form is None:
        raise InvalidError(f"{revision!r} is not a revision; pass a branch, a tag, an id, main~3 or main#37")
    time = None if form[4] is None else _parse_time(form[4])
    if form[0] != form[1] and not is_whole_id(form[1]):
        # One read for both: the way to the other commit depends on the grafts.
        await session.unit.read(layout.named_key(layout.BRANCHES, form[1]), layout.GRAFTS)
    found = await _named(session, form[1])
    if time is not None:
        return await _at_time(session, found, time)
    if form[3] is not None:
        return await numbered(session, found, int(form[3]), revision)
    if form[0] != form[1]:
        return await _before(session, found, int(form[2] or 1), revision)
    return found


async def hold(session: HistorySession, found: Found) -> Found:
    """Return the commit after reading a branch or tag that leads to it.

    Raises:
        NotFoundError: No branch or tag leads to it, so it may be collected at any time.
    """
    if found.is_held:
        return found
    for part in (layout.BRANCHES, layout.TAGS):
        async for name, head in heads(session.unit, part):
            if await is_ancestor(session, found.id, head.commit):
                if await read_head(session.unit, part, name) == head:
                    return msgspec.structs.replace(found, is_held=True)
    raise NotFoundError(f"no branch or tag leads to commit {found.id.hex()}; name one that does")


async def _named(session: HistorySession, name: str) -> Found:
    if is_whole_id(name):
        return await _by_id(session, name)
    for part, branch in ((layout.BRANCHES, name), (layout.TAGS, None)):
        head = await read_head(session.unit, part, name)
        if head is not None:
            return Found(head.commit, await session.record(head.commit), head.number, branch, True)
    if _ID.fullmatch(name):
        return await _by_id(session, name)
    more = " (an abbreviated id has at least 4 digits)" if _SHORT_ID.fullmatch(name) else ""
    if name == MAIN and not await session.is_recorded():
        more = ": nothing is committed or recorded there yet; space(…, record=True) records changes"
    raise NotFoundError(f"there is no branch, tag or commit {name!r} in {session.unit.name!r}{more}")


async def _by_id(session: HistorySession, text: str) -> Found:
    ids = [bytes.fromhex(text)] if len(text) == 2 * DIGEST_SIZE else await _ids(session, text)
    if len(ids) > 1:
        raise InvalidError(
            f"more than one commit of {session.unit.space!r} begins with {text!r}; pass more digits"
        )
    for id in ids:
        record = await session.stored_record(id) or await session.archived_record(id)
        if record is not None:
            session.read_loosely(id)
            return Found(id, await session.record(id), None, None, False)
    await session.require_archive()
    raise NotFoundError(f"there is no branch, tag or commit {text!r} in {session.unit.space!r}")


async def _ids(session: HistorySession, text: str) -> list[bytes]:
    """Return at most two ids that begin with these digits."""
    prefix = layout.COMMITS + bytes.fromhex(text[: len(text) // 2 * 2])
    keys = session.unit.written_objects(prefix)
    keys += [layout.COMMITS + id for id in await session.archived_ids(prefix[len(layout.COMMITS) :])]
    after: bytes | None = None
    while True:
        page = await session.unit.store.scan(session.unit.space, prefix, after=after)
        keys += [entry.key for entry in page.entries]
        ids = {key[len(layout.COMMITS) :] for key in keys}
        fitting = [id for id in ids if id.hex().startswith(text)]
        after = page.next
        if len(fitting) > 1 or after is None:
            return fitting[:2]


def on_line(found: Found, place: At) -> Found:
    """Return another commit of the line of a found one."""
    return msgspec.structs.replace(found, id=place.id, record=place.record, number=place.number)


async def _before(session: HistorySession, found: Found, steps: int, revision: object) -> Found:
    place = await before(session, found.at, steps)
    if place is not None:
        return on_line(found, place)
    if steps >= found.record.number:
        raise _outside_error(revision, found.record.number)
    raise await _pruned_error(session, revision)


async def numbered(session: HistorySession, found: Found, wanted: int, revision: object) -> Found:
    """Return the commit with a number in the line of another one.

    Raises:
        NotFoundError: The number is outside of the line.
        PrunedError: The commit was pruned.
    """
    if not 0 < wanted <= found.record.number:
        raise _outside_error(revision, found.record.number)
    place = await down_to(session, found.at, wanted)
    if place is None or place.number != wanted:
        raise await _pruned_error(session, revision)
    return on_line(found, place)


def _outside_error(revision: object, number: int) -> NotFoundError:
    return NotFoundError(f"{revision!r} is outside of its line of {number} commits")


async def _pruned_error(session: HistorySession, revision: object) -> PrunedError:
    await session.require_archive()
    return PrunedError(f"{revision!r} of {session.unit.name!r} was pruned")


async def _at_time(session: HistorySession, found: Found, time: datetime) -> Found:
    if time.tzinfo is None:
        raise InvalidError(f"{time!r} has no time zone; pass an aware datetime")
    time_ms = to_milliseconds(time)
    place: At | None = found.at
    while place is not None:
        if place.record.created_ms <= time_ms:
            return on_line(found, place)
        jump = await jump_from(session, place) if place.record.low_ms > time_ms else None
        place = await parent_of(session, place) if jump is None else await at_commit(session, *jump)
    await session.require_archive()
    raise NotFoundError(f"there was no commit yet at {time.isoformat()}")


def _parse_time(text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidError(f"{text!r} is not a time; write it as 2026-11-21T10:00:00Z") from error
    if time.tzinfo is None:
        raise InvalidError(f"{text!r} has no time zone; for UTC write {time.isoformat()}Z")
    return time
