"""Forks of a conversation: creation without copies, and merging.

A fork records where its shared messages are stored, and which edits its parent had. A merge compares both
sides with that record, so it finds what each side edited since, and appends the fork's messages to the
parent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from keepstate.engine.history.merge import MergeConflict
from keepstate.engine.kernel.arguments import check_text
from keepstate.engine.kernel.glob import escape_pattern
from keepstate.errors import AlreadyExistsError, InvalidError, MergeConflictError, NotFoundError
from keepstate.names import escape, unescape
from keepstate.sessions import context_fit
from keepstate.sessions.conversation_documents import RECORD, ConversationDocuments, ConversationRecord
from keepstate.sessions.conversation_store import ConversationStore
from keepstate.sessions.entries import Addition
from keepstate.sessions.messages import Message
from keepstate.sessions.window import PINNED, ROWS, Window
from keepstate.values.types import MISSING

Side = Literal["ours", "theirs"]

_FORK: Final = "fork/"
_NAME_BYTES: Final = 100
_AT_ONCE: Final = 400
_LOOKED_BACK: Final = 500
"""Number of messages that are read back for the context of a fork that begins at an earlier message."""


def tail_of(name: str) -> str:
    """Return the name prefix of a fork's documents.

    Raises:
        InvalidError: The name is not text of 1 to 100 bytes.
    """
    if not 0 < len(check_text("name", name).encode()) <= _NAME_BYTES:
        raise InvalidError(f"`name` is {name!r}. The name of a fork has 1 to {_NAME_BYTES} bytes of UTF-8.")
    return f"{_FORK}{escape(name)}/"


@dataclass(frozen=True, slots=True)
class Fork:
    """A fork of a conversation.

    Attributes:
        name: Its name in the session.
        parent: The name of the fork that it was created from; None for the conversation itself.
        at: The number of the last message that both share.
        last: The number of its last message.
    """

    name: str
    parent: str | None
    at: int
    last: int


async def list_forks(store: ConversationStore) -> list[Fork]:
    """Return the forks of a session, by name."""
    namespace = store.namespace
    prefix = await namespace.to_read()
    if prefix is None:
        return []
    begin, documents = f"{prefix}{_FORK}", namespace.target.documents
    names = [key async for key in documents.keys(f"{escape_pattern(begin)}*/{RECORD}")]
    found: list[Fork] = []
    for name in names:
        tail = name[len(prefix) : -len(RECORD)]
        window, record = await replace_tail(store, tail).at(namespace.target, prefix).window_and_record()
        at = record.spans[-1][1] - 1
        found.append(Fork(_name_of(tail) or "", _name_of(record.parent or ""), at, window.count - 1))
    return found


def _name_of(tail: str) -> str | None:
    return unescape(tail[len(_FORK) : -1]) if tail else None


def replace_tail(store: ConversationStore, tail: str) -> ConversationStore:
    """Return the conversation of the same session whose documents have another name prefix."""
    return ConversationStore(store.namespace, store.rules, tail)


async def begin(parent: ConversationStore, fork: ConversationStore, name: str, at: int | None) -> None:
    """Create a fork at a message, by default the newest.

    Raises:
        AlreadyExistsError: A fork of this name exists.
        NotFoundError: The message does not exist.
    """

    async def work(ours: ConversationDocuments) -> None:
        theirs = fork.at(ours.target, ours.prefix)
        if await ours.target.documents.get(theirs.record_name) is not None:
            raise AlreadyExistsError(f"Fork {name!r} already exists in the session. Choose another name.")
        record, window = await ours.record(), await ours.window()
        last = window.count - 1 if at is None else at
        if not record.holds(last, window.count) and (at is not None or window.count == record.begin):
            raise NotFoundError(
                f"Cannot fork at message {at!r}, it does not exist. The numbers are {record.begin} to "
                f"{window.count - 1}."
            )
        made = _fork_record(parent, record, last)
        if len(made.edited) > _AT_ONCE:
            raise InvalidError(
                f"The conversation has {len(made.edited)} edited messages. A fork supports at most "
                f"{_AT_ONCE}."
            )
        edits = await ours.read(record, list(made.edited))
        for number, message in edits.items():
            await theirs.put_edit(number, message)
        await ours.load(window, window.needed)
        if last == window.count - 1 and len(window.pages) <= _AT_ONCE:
            window.changed |= window.pages.keys()
        else:
            window = await _context_at(ours, record, window, last)
        await theirs.put_record(made)
        await theirs.put_window(window)

    await parent.together(work, message=f"fork {name}")


def _fork_record(parent: ConversationStore, record: ConversationRecord, last: int) -> ConversationRecord:
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
        removed=[
            (first, min(end, last + 1), change) for first, end, change in record.removed if first <= last
        ],
    )


async def _context_at(
    documents: ConversationDocuments, record: ConversationRecord, window: Window, last: int
) -> Window:
    """Return the context as of an earlier message: what never leaves, and the last messages that fit."""
    first = max(record.begin, last + 1 - _LOOKED_BACK)
    made, rows = Window(first, first=first, era=window.era), window.entries
    pinned = {row.number for row in rows if row.kind == PINNED}
    earlier = [row.number for row in rows if row.number < first and row.stays]
    numbers = [*earlier, *record.numbers(first, last + 1)]
    messages = await documents.read(record, numbers)
    for number in numbers:
        made.count = number
        made.pages.setdefault(number // ROWS, {})
        context_fit.add(made, messages[number], documents.rules.budget, pinned=number in pinned)
    made.due = []
    return made


async def merge(ours: ConversationStore, theirs: ConversationStore, name: str, prefer: Side | None) -> int:
    """Add the fork's own messages and edits to its parent, and return the number of messages added.

    Raises:
        MergeConflictError: Both sides edited the same message, and `prefer` is None.
        NotFoundError: This conversation has no fork of this name.
    """

    async def work(parent: ConversationDocuments) -> tuple[int, bool]:
        fork = theirs.at(parent.target, parent.prefix)
        record, window = await fork.record(), await fork.window()
        if record.parent != ours.tail:
            raise NotFoundError(
                f"Fork {name!r} was not created from {ours!r}. Merge it into the conversation it was created "
                "from."
            )
        own = await parent.record()
        upto = record.spans[-1][1]
        taken = await _edits(ours, parent, own, fork, record, prefer)
        if taken:
            await parent.edit(taken, own, await parent.window())
        first = max(record.merged, record.begin)
        numbers = range(first, min(first + _AT_ONCE, window.count))
        said = await fork.read_records(record, record.numbers(numbers.start, numbers.stop))
        if said:
            await parent.add([Addition.again(said[number]) for number in sorted(said)])
        if numbers or taken:
            record.merged = max(numbers.stop, record.merged)
            record.own_base = {number: edit for number, edit in record.edited.items() if number < upto}
            record.parent_base = dict(own.edited)
            await fork.put_record(record)
        return len(said), len(numbers) < _AT_ONCE

    added, is_last = 0, False
    while not is_last:
        step, is_last = await ours.together(work, message=f"merge {name}")
        added += step
    return added


async def merge_back(fork: ConversationStore, name: str, addition: Addition) -> int:
    """Add a message to a fork's parent that links to the fork as it is, and return its number.

    Raises:
        NotFoundError: The fork does not exist.
    """

    async def work(theirs: ConversationDocuments) -> int:
        window, record = await theirs.window_and_record()
        if record.told is not None and record.told[:2] == (window.count, record.edits):
            return record.told[2]
        assert record.parent is not None, "a fork has a parent"
        parent = replace_tail(fork, record.parent).at(theirs.target, theirs.prefix)
        link = {"name": name, "at": record.spans[-1][1] - 1, "last": window.count - 1}
        (number,), _, _ = await parent.add([replace(addition, meta={"fork": link})])
        record.told = window.count, record.edits, number
        await theirs.put_record(record)
        return number

    return await fork.together(work, message=f"merge back {name}")


async def _edits(
    ours: ConversationStore,
    parent: ConversationDocuments,
    own: ConversationRecord,
    fork: ConversationDocuments,
    record: ConversationRecord,
    prefer: Side | None,
) -> dict[int, Message]:
    """Return the fork's edits that the parent should apply, by message number."""
    upto = record.spans[-1][1]
    changed = [
        number
        for number, edit in record.edited.items()
        if own.holds(number, upto) and edit != record.own_base.get(number)
    ]
    their_texts = await fork.read(record, changed)
    our_texts = await parent.read(own, changed)
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
                MergeConflict((number,), MISSING, *both, None, None, "both sides edited the message")
            )
    if conflicts:
        raise MergeConflictError(
            f"Both {ours!r} and its fork edited {', '.join(map(str, conflicts))}. "
            "Pass prefer='ours' or prefer='theirs'.",
            conflicts=tuple(conflicts),
        )
    return taken
