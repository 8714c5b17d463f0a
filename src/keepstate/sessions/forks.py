"""Forks of a conversation: how one begins without a copy, and how it comes back.

A fork knows where its first messages stand, and which edits its parent had when it began. So a merge can tell
what each of both has edited since, and adds the messages of the fork behind those of its parent.
"""

from __future__ import annotations

from typing import Final, Literal

from keepstate.engine.history.merge import MergeConflict
from keepstate.engine.kernel.arguments import check_text
from keepstate.engine.space.transaction import Transaction
from keepstate.errors import AlreadyExistsError, InvalidError, MergeConflictError, NotFoundError
from keepstate.home import quoted
from keepstate.sessions import context_fit
from keepstate.sessions.conversation_documents import ConversationRecord
from keepstate.sessions.conversation_store import ConversationStore
from keepstate.sessions.messages import Message
from keepstate.sessions.window import PINNED, ROWS, Window
from keepstate.values.missing import MISSING

Side = Literal["ours", "theirs"]

_NAME_BYTES: Final = 100
_AT_ONCE: Final = 400
_LOOKED_BACK: Final = 500
"""So many messages before an earlier point are looked at for the context of a fork that begins there."""


def tail_of(name: str) -> str:
    """Return what the names of a fork's documents go on with.

    Raises:
        InvalidError: It is no text of 1 to 100 bytes.
    """
    if not 0 < len(check_text("name", name).encode()) <= _NAME_BYTES:
        raise InvalidError(f"`name` is {name!r}; a fork's name has 1 to {_NAME_BYTES} bytes of UTF-8")
    return f"fork/{quoted(name)}/"


async def begin(parent: ConversationStore, fork: ConversationStore, name: str, at: int | None) -> None:
    """Let a fork begin at a message, the newest one if none is given.

    Raises:
        AlreadyExistsError: There is such a fork.
        NotFoundError: There is no such message.
    """

    async def work(tx: Transaction, prefix: str) -> None:
        if await tx.documents.get(fork.talk(prefix)) is not None:
            raise AlreadyExistsError(f"the session has a fork {name!r}; give another name")
        record, window = await parent.record(tx, prefix), await parent.window(tx, prefix)
        last = window.count - 1 if at is None else at
        if type(last) is not int or not record.begin <= last < window.count:
            raise NotFoundError(
                f"there is no message {at!r} to fork at; they are {record.begin} to {window.count - 1}"
            )
        made = _record(parent, record, last)
        if len(made.edited) > _AT_ONCE:
            raise InvalidError(f"{len(made.edited)} messages were edited; at most {_AT_ONCE} can be forked")
        edits = await parent.read(tx, prefix, record, list(made.edited))
        for number, message in edits.items():
            await tx.documents.put(fork.edit_name(prefix, number), message)
        await parent.load(tx, prefix, window, window.needed)
        if last == window.count - 1 and len(window.pages) <= _AT_ONCE:
            window.changed |= window.pages.keys()
        else:
            window = await _earlier(tx, prefix, parent, record, window, last)
        await fork.put_record(tx, prefix, made)
        await fork.put_window(tx, prefix, window)

    await parent.site.together(work, message=f"fork {name}")


def _record(parent: ConversationStore, record: ConversationRecord, last: int) -> ConversationRecord:
    spans: list[tuple[str, int]] = []
    for tail, upto in [*record.spans, (parent.tail, last + 1)]:
        spans.append((tail, min(upto, last + 1)))
        if upto > last:
            break
    edited = {number: edit for number, edit in record.edited.items() if number <= last}
    return ConversationRecord(
        begin=record.begin,
        edited=edited,
        edits=record.edits,
        spans=spans,
        parent=parent.tail,
        own_base=dict(edited),
        parent_base=dict(record.edited),
        merged=last + 1,
    )


async def _earlier(
    tx: Transaction,
    prefix: str,
    parent: ConversationStore,
    record: ConversationRecord,
    window: Window,
    last: int,
) -> Window:
    """Return the context as of an earlier message: what never leaves, and what fits of the last ones."""
    first = max(record.begin, last + 1 - _LOOKED_BACK)
    made, rows = Window(first, first=first, era=window.era), window.entries
    pinned = {row.number for row in rows if row.kind == PINNED}
    earlier = [row.number for row in rows if row.number < first and row.stays]
    numbers = [*earlier, *range(first, last + 1)]
    messages = await parent.read(tx, prefix, record, numbers)
    for number in numbers:
        made.count = number
        made.pages.setdefault(number // ROWS, {})
        context_fit.add(made, messages[number], parent.rules.budget, pinned=number in pinned)
    made.spans = []
    return made


async def merge(ours: ConversationStore, theirs: ConversationStore, name: str, prefer: Side | None) -> int:
    """Add what a fork has, and its parent has not, to that; returns how many messages were added.

    Raises:
        MergeConflictError: Both have edited one message, and no side is preferred.
        NotFoundError: There is no such fork of this conversation.
    """

    async def work(tx: Transaction, prefix: str) -> int:
        record, their_window = await theirs.record(tx, prefix), await theirs.window(tx, prefix)
        if record.parent != ours.tail:
            raise NotFoundError(f"fork {name!r} was not made of {ours!r}; merge it into what it was made of")
        own = await ours.record(tx, prefix)
        upto = record.spans[-1][1]
        taken = await _edits(tx, prefix, ours, own, theirs, record, prefer)
        if taken:
            await ours.edited(tx, prefix, taken, own, await ours.window(tx, prefix))
        first = max(record.merged, record.begin)
        numbers = range(first, min(first + _AT_ONCE, their_window.count))
        messages = await theirs.read(tx, prefix, record, numbers)
        if messages:
            await ours.added(tx, prefix, [messages[number] for number in numbers])
        if messages or taken:
            record.merged = numbers.stop if messages else record.merged
            record.own_base = {number: edit for number, edit in record.edited.items() if number < upto}
            record.parent_base = dict(own.edited)
            await theirs.put_record(tx, prefix, record)
        return len(messages)

    added = 0
    while True:
        step = await ours.site.together(work, message=f"merge {name}")
        added += step
        if step < _AT_ONCE:
            return added


async def _edits(
    tx: Transaction,
    prefix: str,
    ours: ConversationStore,
    own: ConversationRecord,
    theirs: ConversationStore,
    record: ConversationRecord,
    prefer: Side | None,
) -> dict[int, Message]:
    """Return the edits that are to be taken over, by number."""
    upto = record.spans[-1][1]
    changed = [
        number
        for number, edit in record.edited.items()
        if own.begin <= number < upto and edit != record.own_base.get(number)
    ]
    their_texts = await theirs.read(tx, prefix, record, changed)
    our_texts = await ours.read(tx, prefix, own, changed)
    taken: dict[int, Message] = {}
    conflicts: list[MergeConflict] = []
    for number in changed:
        if our_texts[number] == their_texts[number]:
            continue
        is_changed_by_both = own.edited.get(number) != record.parent_base.get(number)
        if not is_changed_by_both or prefer == "theirs":
            taken[number] = their_texts[number]
        elif prefer is None:
            both = (our_texts[number], their_texts[number])
            conflicts.append(
                MergeConflict((number,), MISSING, *both, None, None, "both have edited the message")
            )
    if conflicts:
        raise MergeConflictError(
            f"{ours!r} and its fork have both edited {', '.join(map(str, conflicts))}; "
            "say prefer='ours' or 'theirs'",
            conflicts=tuple(conflicts),
        )
    return taken
