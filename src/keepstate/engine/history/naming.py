"""Makes branches and tags, and lists them."""

from __future__ import annotations

from keepstate.engine import layout
from keepstate.engine.describing import describe
from keepstate.engine.history.heads import Head, heads, put_head, read_head
from keepstate.engine.history.ledger import Ledger
from keepstate.engine.history.revisions import Revision, find_commit, held, number_of
from keepstate.engine.stored import opened
from keepstate.errors import AlreadyExistsError


async def name_commit(ledger: Ledger, part: bytes, name: str, at: Revision) -> Head:
    """Puts a new branch or tag on a commit."""
    if await read_head(ledger.unit, part, name) is not None:
        what = describe(layout.named_key(part, name))
        raise AlreadyExistsError(
            f"{what} of {ledger.unit.space!r} exists; delete it first, or take another name"
        )
    found = await held(ledger, await find_commit(ledger, at))
    head = Head(found.id, await number_of(ledger, found))
    put_head(ledger.unit, part, name, head)
    return head


async def named(ledger: Ledger, part: bytes) -> list[tuple[str, Head]]:
    """Returns all branches, or all tags, by name; inside a transaction with those that it makes."""
    if ledger.unit.writes:
        return [
            (layout.name_of(part, entry.key), opened(entry.value, Head, describe(entry.key)))
            async for entry in ledger.unit.scan(part)
        ]
    return [pair async for pair in heads(ledger.unit, part)]
