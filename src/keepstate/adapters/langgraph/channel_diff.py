"""Differences of channel values from the last stored checkpoint.

Nodes change messages in place, so the identity of an object proves nothing. Values are compared by their
*marks*: encodings that are different for different values. The mark of a message encodes its attributes, and
only messages with changed attributes are stored. Marks are computed each time, except for messages that hold
the same text and number objects as before (`identity_snapshot`). The stored form is computed from the mark,
because the value may have changed by then.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, TypeAlias, cast

import msgspec

from keepstate.adapters.langgraph.identities import ARE_TOLD
from keepstate.adapters.langgraph.identity_snapshot import FIXED, GROUPS, IdentitySnapshot, attributes_of
from keepstate.adapters.langgraph.records import CheckpointRecord
from keepstate.adapters.langgraph.serde import SAID, Serialized, Values, kind_of
from keepstate.adapters.langgraph.shapes import Snapshot
from keepstate.engine.history.record import Head
from keepstate.engine.kernel.store_abilities import LossDetector
from keepstate.errors import InvalidError
from keepstate.stores.protocol import Entry as StoredEntry
from keepstate.stores.protocol import Store
from keepstate.values.codec import canonical
from keepstate.values.contents import close_contents, close_tree, open_contents, split
from keepstate.values.diff import align
from keepstate.values.encode_ext import array_head
from keepstate.values.merkle import MerkleValue
from keepstate.values.nodes import LIST_STYLE, MAP_STYLE, Entry, is_ref, item, refs_in
from keepstate.values.patch import Edits, apply_edits, find_edits, trim_common
from keepstate.values.refs import TAG, Fetching
from keepstate.values.touched import Touched, touched_by
from keepstate.values.tree import Editing, Tree

_MAY_HOLD_REF: Final = re.compile(rb"\xc7.%c" % TAG, re.DOTALL)
_OVERHEAD_BYTES: Final = 512
_FEW_MORE: Final = 64
"""At this number of separate encodings they are joined: joining them each time would cost too much.

Up to this number of messages have one snapshot, which is copied for each new message. Comparing it takes half
as long as comparing two.
"""

_extra: Final = attrgetter("__pydantic_extra__")

Kinds: TypeAlias = list[type]


class Splices(msgspec.Struct, frozen=True):
    """The changes from one list to another.

    Attributes:
        parts: The changed ranges of the old list, in order, each with its new items.
    """

    parts: list[tuple[int, int, list[MerkleValue]]]


Opened: TypeAlias = Tree | tuple[Entry, ...] | None
Difference: TypeAlias = Splices | Edits | MerkleValue | None


class Mark(msgspec.Struct, frozen=True):
    """The mark of a value.

    Attributes:
        begun: The encoding, or the beginning of the encoding of a list.
        kinds: The classes of the items, if each item has its own encoding, such as messages.
        more: The encodings of further items.
        holding: Snapshots of the messages, in order, so that unchanged ones are not encoded the next time. Up
            to 64 messages have one; then those in `more` have one of their own.
    """

    begun: bytes
    kinds: Kinds | None = None
    more: list[bytes] = []
    holding: tuple[IdentitySnapshot, ...] = ()

    @property
    def whole(self) -> bytes:
        """The whole encoding."""
        if self.kinds is None or not self.more:
            return self.begun
        count = len(self.kinds)
        items = memoryview(self.begun)[len(array_head(count - len(self.more))) :]
        return b"".join((array_head(count), items, *self.more))

    @property
    def size_bytes(self) -> int:
        """The approximate memory that the mark takes."""
        size = len(self.begun) + sum(map(len, self.more)) + 8 * len(self.kinds or ())
        # The texts in snapshots take as much again, if nothing else refers to them.
        return 2 * size + sum([one.size_bytes for one in self.holding]) if self.holding else size


class Channel(msgspec.Struct, frozen=True):
    """A stored channel value.

    Attributes:
        mark: The mark of the value.
        encoding: The Merkle form.
        opened: The items of a list that was changed lately, so that it need not be read again: the tree, or
            the items of a short one.
    """

    mark: Mark
    encoding: bytes
    opened: Opened = None

    @property
    def opened_bytes(self) -> int:
        """The approximate memory that the items of a short list take."""
        return 3 * len(self.encoding) if isinstance(self.opened, tuple) else 0


class ClockReading(msgspec.Struct, frozen=True):
    """A reading of the store's clock.

    Attributes:
        now_ms: The store's time.
        at_s: The monotonic time of this process at the reading.
    """

    now_ms: int
    at_s: float


class ReadCache(msgspec.Struct, frozen=True):
    """The entries that the next checkpoint builds on, as this one left them: checked, but not read again.

    Attributes:
        store: The store.
        entries: The entries by key; None for absent ones.
        revision: The revision of the entries.
        reading: The last reading of the store's clock.
        losses: The detector of lost history, which makes the entries invalid.
        head: The head in the entry of the namespace's branch.
        record: The record in the entry of the checkpoint.
    """

    store: Store
    entries: dict[bytes, StoredEntry | None]
    revision: int
    reading: ClockReading
    losses: LossDetector
    head: Head
    record: CheckpointRecord


class StateSummary(msgspec.Struct, frozen=True):
    """The last stored checkpoint of a namespace.

    Attributes:
        id: The id.
        commit: The commit.
        channels: The values by channel.
        cache: The entries that the next checkpoint builds on.
        seen: The versions of channels that each node has seen, of which a run of the node changes some.
    """

    id: str
    commit: bytes
    channels: dict[str, Channel]
    cache: ReadCache | None = None
    seen: Mapping[str, Any] = {}

    @property
    def size_bytes(self) -> int:
        """The approximate memory that the summary takes."""
        size = _OVERHEAD_BYTES
        for channel in self.channels.values():
            size += _OVERHEAD_BYTES + channel.mark.size_bytes + channel.opened_bytes
        return size


class ChannelChange(msgspec.Struct, frozen=True):
    """A channel value as it was passed; later changes of the value have no effect.

    Attributes:
        mark: The mark of the value.
        difference: The difference from the stored value: None, edits, or the whole new value.
    """

    mark: Mark
    difference: Difference


def snapshots_in(channels: Mapping[str, Any]) -> list[str]:
    """Return the channels whose value is a snapshot of a delta channel."""
    return [name for name, value in channels.items() if type(value) is Snapshot]


def lacking(metadata: Mapping[str, Any], channels: Mapping[str, Any]) -> list[str]:
    """Return the delta channels without a value that have writes since an earlier checkpoint."""
    counted: object = metadata.get("counters_since_delta_snapshot")
    if not isinstance(counted, Mapping):
        return []
    return [name for name in cast("Mapping[str, object]", counted) if name not in channels]


def take(
    values: Values, channels: Mapping[str, Any], before: StateSummary | None
) -> dict[str, ChannelChange]:
    """Return the values as they are now.

    Raises:
        InvalidError: A value would not come back; the error names its path.
    """
    taken: dict[str, ChannelChange] = {}
    for name, given in channels.items():
        value = given.value if type(given) is Snapshot else given
        try:
            taken[name] = _take(values, value, before.channels.get(name) if before else None)
        except InvalidError as error:
            path = f"{name}{error.path if (error.path or '').startswith('[') else f'.{error.path}'}"
            raise InvalidError(f"channel {name!r} cannot be stored: {error}", path=path) from error
    return taken


def _take(values: Values, value: Any, before: Channel | None) -> ChannelChange:
    if kind_of(value) is list:
        value = value[:]
        extended = _extend(values, value, before.mark) if before else None
        if extended is not None:
            return extended
    mark = _mark(values, value)
    return ChannelChange(mark, _compare(values, mark, before.mark if before else None))


# ---- marks


def _extend(values: Values, value: list[Any], before: Mark) -> ChannelChange | None:
    """Return the delta of a list whose old messages are unchanged; None if it is another list."""
    if not before.holding:
        return None
    end = 0
    for holding in before.holding:
        begin, end = end, end + len(holding)
        if len(value) < end or not holding.holds(value[begin:end]):
            return None
    added = value[end:]
    if not added:
        return ChannelChange(before, None)
    if not _are_messages(values, added):
        return None
    try:
        attributes = attributes_of(added)
        more = IdentitySnapshot(added, attributes, values.mark_message)
        if values.serde is not None and more.is_odd:
            return None
        own = [*map(_own, attributes)]
        marks = [
            values.codec.canonical(held if mine is None else mine)
            for held, mine in zip(attributes, own, strict=True)
        ]
    except InvalidError:
        return None  # the general way raises the error with its path
    if not more.holds(added):  # another thread changes them right now
        return None
    assert before.kinds is not None
    items = [
        values.to_merkle(
            _item(values, mark, kind)
            if mine is None or values.serde is not None
            else _message(values, kind, mine)
        )
        for mark, kind, mine in zip(marks, more.kinds, own, strict=True)
    ]
    mark = Mark(
        before.begun,
        before.kinds + more.kinds,
        before.more + marks,
        _followed(before.holding, more),
    )
    difference = Splices([(end, end, items)])
    return ChannelChange(mark if len(mark.more) < _FEW_MORE else _joined(mark), difference)


def _followed(holding: tuple[IdentitySnapshot, ...], more: IdentitySnapshot) -> tuple[IdentitySnapshot, ...]:
    first, *rest = holding
    if not rest and len(first) < _FEW_MORE:
        return (first.followed(more),)
    return first, rest[0].followed(more) if rest else more


def _joined(mark: Mark) -> Mark:
    first, *rest = mark.holding
    holding = first.followed(rest[0]) if rest else first
    return Mark(mark.whole, mark.kinds, holding=() if holding.is_slow else (holding,))


def _mark(values: Values, value: Any) -> Mark:
    """Return the mark of a value."""
    if kind_of(value) is not list:
        return Mark(values.mark(value))
    if value and _are_messages(values, value):
        return _mark_of_messages(values, value)
    if values.serde is None:
        return Mark(values.codec.canonical_long(value))
    return Mark(_array([values.mark(one) for one in value]), [Serialized] * len(value))


def _mark_of_messages(values: Values, messages: list[Any]) -> Mark:
    kinds, attributes = [*map(type, messages)], attributes_of(messages)
    try:
        holding = IdentitySnapshot(messages, attributes, values.mark_message) if ARE_TOLD else None
        if values.serde is not None and (holding is None or holding.is_odd):
            return Mark(_array([values.mark_message(one) for one in messages]), kinds)
        encoding = values.codec.canonical_long(attributes)
    except InvalidError:
        values.codec.canonical(messages)  # raises the error with the path in the messages
        raise
    if holding is None or holding.is_slow or not holding.holds(messages):
        return Mark(encoding, kinds)
    return Mark(encoding, kinds, holding=(holding,))


def _are_messages(values: Values, items: Sequence[Any]) -> bool:
    """Return whether items are messages without extra fields."""
    return values.messages.issuperset(map(type, items)) and not any(map(_extra, items))


def _array(items: Sequence[bytes]) -> bytes:
    return array_head(len(items)) + b"".join(items)


# ---- differences


def _compare(values: Values, mark: Mark, before: Mark | None) -> Difference:
    """Return the difference between two marks; the value itself is not read again."""
    if before is None:
        return _whole(values, mark)
    was, now = before.whole, mark.whole
    if was == now and before.kinds == mark.kinds:
        return None
    if mark.kinds is not None and before.kinds is not None:
        return _list_compare(values, was, before.kinds, now, mark.kinds)
    if mark.kinds is not None or before.kinds is not None or values.serde is not None:
        return _whole(values, mark)
    return find_edits(was, now)


def _whole(values: Values, mark: Mark) -> MerkleValue:
    """Return the whole value of a mark."""
    if mark.kinds is None:
        return values.mark_to_merkle(mark.whole)
    items = zip(split(mark.whole), mark.kinds, strict=True)
    return values.list_to_merkle([_item(values, *one) for one in items])


def _item(values: Values, mark: bytes, kind: Any) -> Any:
    """Return a new object for an item of a list, by its mark."""
    if kind is Serialized or mark[0] == SAID:
        return values.serialized(mark)
    return _message(values, kind, values.codec.assemble(mark, {}))


def _message(values: Values, kind: Any, attributes: dict[str, Any]) -> Any:
    # A message may have other attributes, which are not stored.
    stored = kind.model_fields
    return values.classes.made(kind, {name: value for name, value in attributes.items() if name in stored})


def _own(attributes: dict[str, Any]) -> dict[str, Any] | None:
    """Return attributes that no other code can change; None unless new empty containers are enough."""
    own: dict[str, Any] = {}
    for name, value in attributes.items():
        if type(value) in FIXED:
            own[name] = value
        elif value or (kind := kind_of(value)) not in GROUPS:
            return None
        else:
            own[name] = kind()
    return own


def _list_compare(values: Values, old: bytes, was_kinds: Kinds, mark: bytes, kinds: Kinds) -> Difference:
    """Return the changes from one list to another, by the marks of their items."""
    count, begin = len(kinds), len(was_kinds)
    items = memoryview(old)[len(array_head(begin)) :]
    head_bytes = len(array_head(count))
    if kinds[:begin] == was_kinds and mark.startswith(items, head_bytes):
        fresh = split(array_head(count - begin) + mark[head_bytes + len(items) :])
        return Splices([(begin, begin, _to_merkle(values, fresh, kinds[begin:]))])
    head, was, now = trim_common(old, mark, count)
    tail = len(was_kinds) - head - len(was)
    if kinds[:head] != was_kinds[:head] or kinds[count - tail :] != was_kinds[len(was_kinds) - tail :]:
        head, was, now = 0, split(old), split(mark)
    before = [*zip(was_kinds[head : head + len(was)], was, strict=True)]
    after = [*zip(kinds[head : head + len(now)], now, strict=True)]
    return Splices(
        [
            (
                head + begin,
                head + end,
                _to_merkle(values, now[new_begin:new_end], kinds[head + new_begin : head + new_end]),
            )
            for begin, end, new_begin, new_end in align(before, after)
        ]
    )


def _to_merkle(values: Values, marks: Sequence[bytes], kinds: Kinds) -> list[MerkleValue]:
    return [values.to_merkle(_item(values, *one)) for one in zip(marks, kinds, strict=True)]


# ---- states


class State(msgspec.Struct, frozen=True):
    """The state of a commit.

    Attributes:
        value: The Merkle form of all channels together, with the new objects.
        channels: The channels as they are stored now.
        touched: Work that tells the places that differ from the base; None without a base.
    """

    value: MerkleValue
    channels: dict[str, Channel]
    touched: Fetching[Touched] | None = None


def state_of(
    values: Values, taken: Mapping[str, ChannelChange], names: Mapping[str, str], before: StateSummary | None
) -> Fetching[State]:
    """Return the state to commit.

    Args:
        values: What encodes.
        taken: The values as they were passed, as differences from `before`.
        names: The stored name of each channel.
        before: The base of the differences; without it, all values are encoded again.
    """
    objects: dict[bytes, bytes] = {}
    channels: dict[str, Channel] = {}
    for name, one in taken.items():
        difference = one.difference
        known = before.channels.get(name) if before else None
        if known is None and not isinstance(difference, MerkleValue):
            difference = _whole(values, one.mark)
        opened: Opened = None
        if known is not None and isinstance(difference, Splices):
            difference, opened = yield from _spliced(known, difference)
        elif known is not None and isinstance(difference, Edits):
            difference = yield from apply_edits(known.encoding, difference)
        if isinstance(difference, MerkleValue):
            objects.update(difference.objects)
            channels[name] = Channel(one.mark, difference.encoding, opened)
        elif known is not None:
            channels[name] = Channel(one.mark, known.encoding, known.opened)
    entries = [_entry(channel.encoding, canonical(names[name])) for name, channel in channels.items()]
    made = yield from close_contents(MAP_STYLE, entries)
    touched = None if before is None else _touched(values, taken, channels, before)
    return State(MerkleValue(made.encoding, objects | made.objects), channels, touched)


def _touched(
    values: Values,
    taken: Mapping[str, ChannelChange],
    channels: Mapping[str, Channel],
    before: StateSummary,
) -> Fetching[Touched]:
    """Tell the places in which the channels differ from the base, without comparing lists that grew."""
    replaced: list[tuple[bytes, bytes | None, bytes | None]] = []
    appended: list[tuple[bytes, int]] = []
    for name in (*channels, *(name for name in before.channels if name not in channels)):
        now, was = channels.get(name), before.channels.get(name)
        if now is not None and was is not None and now.encoding == was.encoding:
            continue
        key = canonical(values.called(name))
        difference = taken[name].difference if now is not None else None
        length = _appended_at(was, difference)
        if length is not None:
            appended.append((key, length))
        else:
            replaced.append((key, was.encoding if was else None, now.encoding if now else None))
    return touched_by(replaced, appended)


def _appended_at(was: Channel | None, difference: Difference) -> int | None:
    """Return the old length of a list that only became longer; None for another change."""
    if was is None or was.mark.kinds is None or not isinstance(difference, Splices):
        return None
    length = len(was.mark.kinds)
    is_append = len(difference.parts) == 1 and difference.parts[0][:2] == (length, length)
    return length if is_append else None


def _spliced(channel: Channel, splices: Splices) -> Fetching[tuple[MerkleValue, Opened]]:
    """Return the changed list with the new objects, and its items."""
    inner = {
        name: data for _, _, items in splices.parts for new in items for name, data in new.objects.items()
    }
    opened = channel.opened
    if opened is None:
        contents = yield from open_contents(channel.encoding)
        opened = tuple(contents.entries) if contents.tree is None else contents.tree
    changes = [
        (begin, end, [_entry(new.encoding) for new in items])
        for begin, end, items in reversed(splices.parts)  # from the end, so that indexes stay valid
    ]
    if isinstance(opened, tuple):
        entries = list(opened)
        for begin, end, items in changes:
            entries[begin:end] = items
        made = yield from close_contents(LIST_STYLE, entries)
        kept: Opened = None if made.objects else tuple(entries)
    else:
        editing = Editing(opened)
        for begin, end, items in changes:
            yield from editing.splice(begin, end, items)
        made = yield from close_tree(editing)
        kept = editing.tree if made.objects else None
    return MerkleValue(made.encoding, inner | made.objects), kept


def _entry(encoding: bytes, key: bytes = b"") -> Entry:
    is_deep = is_ref(encoding) or (_MAY_HOLD_REF.search(encoding) is not None and bool(refs_in(encoding)))
    return item(encoding, is_deep=is_deep, key=key)
