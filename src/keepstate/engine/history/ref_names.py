"""Makes branches and tags, and lists them."""

from __future__ import annotations

from keepstate.engine.history.heads import Head, heads, put_head, read_head
from keepstate.engine.history.revisions import Revision, find_commit, held, number_of
from keepstate.engine.history.session import HistorySession
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.key_text import describe
from keepstate.engine.kernel.stored import decode_stored
from keepstate.errors import AlreadyExistsError


async def name_commit(session: HistorySession, part: bytes, name: str, at: Revision) -> Head:
    """Put a new branch or tag on a commit."""
    if await read_head(session.unit, part, name) is not None:
        what = describe(layout.named_key(part, name))
        raise AlreadyExistsError(
            f"{what} of {session.unit.space!r} exists; delete it first, or take another name"
        )
    found = await held(session, await find_commit(session, at))
    head = Head(found.id, await number_of(session, found))
    put_head(session.unit, part, name, head)
    return head


async def named(session: HistorySession, part: bytes) -> list[tuple[str, Head]]:
    """Return all branches, or all tags, by name; inside a transaction with those that it makes."""
    if session.unit.writes:
        return [
            (layout.name_of(part, entry.key), decode_stored(entry.value, Head, describe(entry.key)))
            async for entry in session.unit.scan(part)
        ]
    return [pair async for pair in heads(session.unit, part)]
