"""Values of channels as they are passed to be stored, and what of them has changed since the last time.

Nodes change messages in place, so that an object that is the same as before says nothing. What a value is, is
told by its *mark*: an encoding that no two values share. Of messages that is an encoding of their attributes;
only those whose attributes differ from the last time are taken apart and stored. It is made anew each time,
but for messages that hold the very same texts and numbers as before (`holding`). What is stored is made of
the mark: the value itself may be another by then.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, TypeAlias, cast

import msgspec

from keepstate._runner import Lock
from keepstate.adapters.langgraph.identities import ARE_TOLD
from keepstate.adapters.langgraph.identity_snapshot import Holding, attributes_of
from keepstate.adapters.langgraph.serde import SAID, Serialized, Values, kind_of
from keepstate.adapters.langgraph.shapes import Snapshot
from keepstate.engine.kernel.store_abilities import LossDetector
from keepstate.errors import InvalidError
from keepstate.stores.protocol import Entry as StoredEntry
from keepstate.stores.protocol import Store
from keepstate.values.codec import canonical
from keepstate.values.contents import closed, closed_tree, open_contents, split
from keepstate.values.diff import aligned
from keepstate.values.encode_ext import array_head
from keepstate.values.merkle import MerkleValue
from keepstate.values.nodes import LIST_STYLE, MAP_STYLE, Entry, item, ref_of, refs_in
from keepstate.values.patch import Edits, between, compared, edited
from keepstate.values.refs import TAG, Fetching
from keepstate.values.tree import Editing, Tree

_KEPT_BYTES: Final = 64 << 20
_MAY_HOLD_REF: Final = re.compile(rb"\xc7.%c" % TAG, re.DOTALL)
_OVERHEAD_BYTES: Final = 512
_FEW_MORE: Final = 64
"""With so many encodings beside, a mark is made one: to join them each time costs as much as all else."""

_extra: Final = attrgetter("__pydantic_extra__")

Kinds: TypeAlias = list[type]


class Splices(msgspec.Struct, frozen=True):
    """What leads from one list to another.

    Attributes:
        parts: Where the old one is changed, first to last: from where, up to where, and what is there now.
    """

    parts: list[tuple[int, int, list[MerkleValue]]]


Verdict: TypeAlias = Splices | Edits | MerkleValue | None


class Mark(msgspec.Struct, frozen=True):
    """What a value was.

    Attributes:
        begun: Its encoding, or how that of a list begins.
        kinds: The classes of its items, where each is told by itself: a message by its attributes.
        more: The encodings of more items, behind those.
        holding: What those messages hold, so that the next time nothing of them need be encoded: first of
            those whose encoding is one, then of those behind.
    """

    begun: bytes
    kinds: Kinds | None = None
    more: list[bytes] = []
    holding: tuple[Holding, ...] = ()

    @property
    def whole(self) -> bytes:
        """The encoding."""
        if self.kinds is None or not self.more:
            return self.begun
        count = len(self.kinds)
        items = memoryview(self.begun)[len(array_head(count - len(self.more))) :]
        return b"".join((array_head(count), items, *self.more))

    @property
    def size_bytes(self) -> int:
        """Return how much memory it takes, about."""
        told = len(self.begun) + sum(map(len, self.more)) + 8 * len(self.kinds or ())
        # The texts that are held take as much again, if nobody else has them any more.
        return 2 * told + sum([one.size_bytes for one in self.holding]) if self.holding else told


class Channel(msgspec.Struct, frozen=True):
    """A channel's value as it was stored.

    Attributes:
        mark: What the value was.
        encoding: Its Merkle form.
        tree: If that is a list's tree that was changed lately, so that it need not be read anew.
    """

    mark: Mark
    encoding: bytes
    tree: Tree | None = None


class Moment(msgspec.Struct, frozen=True):
    """A time at which the store's clock was read.

    Attributes:
        now_ms: On that clock.
        at_s: On this process's.
    """

    now_ms: int
    at_s: float


class Seen(msgspec.Struct, frozen=True):
    """What the next checkpoint will stand on, as this one left it: it is checked, and need not be read.

    Attributes:
        store: Where.
        entries: The entries by key, None for absent ones.
        revision: As of which revision.
        moment: When the store was asked last.
        losses: Whether that still holds.
    """

    store: Store
    entries: dict[bytes, StoredEntry | None]
    revision: int
    moment: Moment
    losses: LossDetector


class StateSummary(msgspec.Struct, frozen=True):
    """The channels of the checkpoint of a namespace that was stored last.

    Attributes:
        id: Its id.
        commit: Its commit.
        channels: The values by channel.
        seen: What it left behind.
    """

    id: str
    commit: bytes
    channels: dict[str, Channel]
    seen: Seen | None = None

    @property
    def size_bytes(self) -> int:
        """Return how much memory it takes, about."""
        return _OVERHEAD_BYTES + sum(
            _OVERHEAD_BYTES + channel.mark.size_bytes for channel in self.channels.values()
        )


class Taken(msgspec.Struct, frozen=True):
    """A channel's value as it was passed; what becomes of that later changes nothing here.

    Attributes:
        mark: What it is.
        verdict: How it differs from what stood before: None not at all, edits to be done, or all of it.
    """

    mark: Mark
    verdict: Verdict


def snapshots_in(channels: Mapping[str, Any]) -> list[str]:
    """Return the channels whose value is a snapshot of a delta channel."""
    return [name for name, value in channels.items() if type(value) is Snapshot]


def lacking(metadata: Mapping[str, Any], channels: Mapping[str, Any]) -> list[str]:
    """Return the delta channels that have no value, but writes since an earlier checkpoint's."""
    counted: object = metadata.get("counters_since_delta_snapshot")
    if not isinstance(counted, Mapping):
        return []
    return [name for name in cast("Mapping[str, object]", counted) if name not in channels]


def take(values: Values, channels: Mapping[str, Any], before: StateSummary | None) -> dict[str, Taken]:
    """Return the values as they are now.

    Raises:
        InvalidError: One would not come back; its path is named.
    """
    taken: dict[str, Taken] = {}
    for name, given in channels.items():
        value = given.value if type(given) is Snapshot else given
        try:
            taken[name] = _take(values, value, before.channels.get(name) if before else None)
        except InvalidError as error:
            path = f"{name}{error.path if (error.path or '').startswith('[') else f'.{error.path}'}"
            raise InvalidError(f"channel {name!r} cannot be stored: {error}", path=path) from error
    return taken


def _take(values: Values, value: Any, before: Channel | None) -> Taken:
    if kind_of(value) is list:
        value = value[:]
        followed = _followed(values, value, before.mark) if before else None
        if followed is not None:
            return followed
    mark = _mark(values, value)
    return Taken(mark, _verdict(values, mark, before.mark if before else None))


# ---- what tells a value


def _followed(values: Values, value: list[Any], before: Mark) -> Taken | None:
    """Return a list of messages that are what they were, and those behind them; None if it is not that."""
    if not before.holding:
        return None
    end = 0
    for holding in before.holding:
        begin, end = end, end + len(holding)
        if len(value) < end or not holding.holds(value[begin:end]):
            return None
    added = value[end:]
    if not added:
        return Taken(before, None)
    if not _are_messages(values, added):
        return None
    try:
        attributes = attributes_of(added)
        more = Holding(added, attributes, values.told_message)
        if values.serde is not None and more.is_odd:
            return None
        marks = [*map(values.codec.canonical, attributes)]
    except InvalidError:
        return None  # to be done the other way, which names the path
    if not more.holds(added):  # somebody changes them just now
        return None
    assert before.kinds is not None
    planted = [values.to_merkle(_item(values, *one)) for one in zip(marks, more.kinds, strict=True)]
    first, *rest = before.holding
    mark = Mark(
        before.begun,
        before.kinds + more.kinds,
        before.more + marks,
        (first, rest[0].followed(more) if rest else more),
    )
    verdict = Splices([(end, end, planted)])
    return Taken(mark if len(mark.more) < _FEW_MORE else _joined(mark), verdict)


def _joined(mark: Mark) -> Mark:
    first, rest = mark.holding
    holding = first.followed(rest)
    return Mark(mark.whole, mark.kinds, holding=() if holding.is_slow else (holding,))


def _mark(values: Values, value: Any) -> Mark:
    """Return what tells a value."""
    if kind_of(value) is not list:
        return Mark(values.told(value))
    if value and _are_messages(values, value):
        return _mark_of_messages(values, value)
    if values.serde is None:
        return Mark(values.codec.canonical_long(value))
    return Mark(_array([values.told(one) for one in value]), [Serialized] * len(value))


def _mark_of_messages(values: Values, messages: list[Any]) -> Mark:
    kinds, attributes = [*map(type, messages)], attributes_of(messages)
    try:
        holding = Holding(messages, attributes, values.told_message) if ARE_TOLD else None
        if values.serde is not None and (holding is None or holding.is_odd):
            return Mark(_array([values.told_message(one) for one in messages]), kinds)
        told = values.codec.canonical_long(attributes)
    except InvalidError:
        values.codec.canonical(messages)  # names the path as it is in the messages
        raise
    if holding is None or holding.is_slow or not holding.holds(messages):
        return Mark(told, kinds)
    return Mark(told, kinds, holding=(holding,))


def _are_messages(values: Values, items: Sequence[Any]) -> bool:
    """Return whether items are messages that are nothing but their attributes."""
    return values.messages.issuperset(map(type, items)) and not any(map(_extra, items))


def _array(items: Sequence[bytes]) -> bytes:
    return array_head(len(items)) + b"".join(items)


# ---- how it differs from what stood before


def _verdict(values: Values, mark: Mark, before: Mark | None) -> Verdict:
    """Return what is to be done; it is made of the mark alone, whatever has become of the value."""
    if before is None:
        return _whole(values, mark)
    was, now = before.whole, mark.whole
    if was == now and before.kinds == mark.kinds:
        return None
    if mark.kinds is not None and before.kinds is not None:
        return _list_verdict(values, was, before.kinds, now, mark.kinds)
    if mark.kinds is not None or before.kinds is not None or values.serde is not None:
        return _whole(values, mark)
    return compared(was, now)


def _whole(values: Values, mark: Mark) -> MerkleValue:
    """Return all of a value, made of what tells it."""
    if mark.kinds is None:
        return values.planted(mark.whole)
    told = zip(split(mark.whole), mark.kinds, strict=True)
    return values.plant_whole([_item(values, *one) for one in told])


def _item(values: Values, told: bytes, kind: Any) -> Any:
    """Return an item of a list, for nobody else, by what tells it."""
    if kind is Serialized or told[0] == SAID:
        return values.said(told)
    attributes: dict[str, Any] = values.codec.assemble(told, {})
    # Others may stand beside those of a message, and are not stored.
    return values.classes.made(
        kind, {name: value for name, value in attributes.items() if name in kind.model_fields}
    )


def _list_verdict(values: Values, old: bytes, was_kinds: Kinds, mark: bytes, kinds: Kinds) -> Verdict:
    """Return what leads from one list to another, told by the marks of their items."""
    count, begin = len(kinds), len(was_kinds)
    items = memoryview(old)[len(array_head(begin)) :]
    head_bytes = len(array_head(count))
    if kinds[:begin] == was_kinds and mark.startswith(items, head_bytes):
        fresh = split(array_head(count - begin) + mark[head_bytes + len(items) :])
        return Splices([(begin, begin, _planted(values, fresh, kinds[begin:]))])
    head, was, now = between(old, mark, count)
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
                _planted(values, now[new_begin:new_end], kinds[head + new_begin : head + new_end]),
            )
            for begin, end, new_begin, new_end in aligned(before, after)
        ]
    )


def _planted(values: Values, told: Sequence[bytes], kinds: Kinds) -> list[MerkleValue]:
    return [values.to_merkle(_item(values, *one)) for one in zip(told, kinds, strict=True)]


# ---- a state of them


class State(msgspec.Struct, frozen=True):
    """What a commit is made of.

    Attributes:
        planted: The Merkle form of all channels together, and the objects that are new.
        channels: Those as they are stored now.
    """

    planted: MerkleValue
    channels: dict[str, Channel]


def state_of(
    values: Values, taken: Mapping[str, Taken], names: Mapping[str, str], before: StateSummary | None
) -> Fetching[State]:
    """Return the state to commit.

    Args:
        values: What encodes.
        taken: The values as they were passed, told by how they differ from `before`.
        names: What each channel is called in the state.
        before: What they stand on; without it all is made anew.
    """
    objects: dict[bytes, bytes] = {}
    channels: dict[str, Channel] = {}
    for name, one in taken.items():
        verdict = one.verdict
        known = before.channels.get(name) if before else None
        if known is None and not isinstance(verdict, MerkleValue):
            verdict = _whole(values, one.mark)
        tree = known.tree if known else None
        if known is not None and isinstance(verdict, Splices):
            verdict, tree = yield from _spliced(known, verdict)
        elif known is not None and isinstance(verdict, Edits):
            verdict, tree = (yield from edited(known.encoding, verdict)), None
        elif verdict is not None:
            tree = None
        if isinstance(verdict, MerkleValue):
            objects.update(verdict.objects)
            channels[name] = Channel(one.mark, verdict.encoding, tree)
        elif known is not None:
            channels[name] = Channel(one.mark, known.encoding, known.tree)
    entries = [_entry(channel.encoding, canonical(names[name])) for name, channel in channels.items()]
    made = yield from closed(MAP_STYLE, entries)
    return State(MerkleValue(made.encoding, objects | made.objects), channels)


def _spliced(channel: Channel, splices: Splices) -> Fetching[tuple[MerkleValue, Tree | None]]:
    """Return a list as changed, the objects that are new, and its tree if it is one."""
    tree = channel.tree
    inner = {
        name: data for _, _, items in splices.parts for new in items for name, data in new.objects.items()
    }
    if tree is None:
        contents = yield from open_contents(channel.encoding)
        tree = contents.tree
        if tree is None:
            entries = list(contents.entries)
            for begin, end, items in reversed(splices.parts):
                entries[begin:end] = [_entry(new.encoding) for new in items]
            small = yield from closed(LIST_STYLE, entries)
            return MerkleValue(small.encoding, inner | small.objects), None
    editing = Editing(tree)
    for begin, end, items in reversed(splices.parts):  # what changes behind a place does not move it
        yield from editing.splice(begin, end, [_entry(new.encoding) for new in items])
    made = yield from closed_tree(editing)
    return MerkleValue(made.encoding, inner | made.objects), editing.tree if ref_of(made.encoding) else None


def _entry(encoding: bytes, key: bytes = b"") -> Entry:
    return item(
        encoding, is_deep=_MAY_HOLD_REF.search(encoding) is not None and bool(refs_in(encoding)), key=key
    )


class Standings:
    """What was stored last of each namespace of each thread; what nobody has used the longest gives way."""

    def __init__(self) -> None:
        self._standings: dict[tuple[str, str], StateSummary] = {}
        self._sizes: dict[tuple[str, str], int] = {}
        self._size_bytes = 0
        self._lock = Lock()

    def get(self, thread: str, line: str) -> StateSummary | None:
        """Return it, if it is still known."""
        return self._standings.get((thread, line))

    def put(self, thread: str, line: str, standing: StateSummary) -> None:
        """Take what was stored now for the last."""
        with self._lock:
            self._pop((thread, line))
            self._standings[thread, line] = standing
            self._sizes[thread, line] = size_bytes = standing.size_bytes
            self._size_bytes += size_bytes
            while self._size_bytes > _KEPT_BYTES and len(self._standings) > 1:
                self._pop(next(iter(self._standings)))

    def forget(self, thread: str) -> None:
        """Forget a thread."""
        with self._lock:
            for key in [key for key in self._standings if key[0] == thread]:
                self._pop(key)

    def _pop(self, key: tuple[str, str]) -> None:
        if self._standings.pop(key, None) is not None:
            self._size_bytes -= self._sizes.pop(key)
