"""Changes of the state: hooks after commits, watches of a key, past states, and differences of two."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, Self, TypeVar

from keepstate._runner import Mode
from keepstate.engine.documents.watch import DocumentChange, Watch
from keepstate.engine.history.revisions import Revision
from keepstate.engine.kernel.executor import call_function, reject_coroutine_function
from keepstate.engine.space.space import Space, Transaction
from keepstate.errors import InvalidError
from keepstate.typed.key import EncodedValue, StateKey, decode_value
from keepstate.typed.layout import Names, key_in, slot_of
from keepstate.typed.records import Head, ValueRecord, read_record
from keepstate.typed.registry import Registered
from keepstate.typed.state_map import Memory, Snapshot

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class StateChange(Generic[V]):
    """A change of a key's value.

    Attributes:
        key: The name of the key.
        old: The value before, or None.
        new: The value after, or None.
        revision: The state revision that wrote the new value; for a removal, that of the old value.
        position: An opaque text. Pass it as `after=` in any process to continue after this change.
    """

    key: str
    old: V | None
    new: V | None
    revision: int
    position: str = field(default="", compare=False)


class StateWatch(Generic[V]):
    """An iterator over the changes of one key."""

    def __init__(self, key: type[StateKey[V, Any]], changes: Watch) -> None:
        self._key, self._changes = key, changes

    def __repr__(self) -> str:
        return f"<StateWatch of {self._key.KEY!r}>"

    @property
    def position(self) -> str:
        """An opaque text. Pass it as `after=` in any process to continue where this watch is."""
        return self._changes.position

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StateChange[V]:
        change = await self._changes.__anext__()
        old, new = self._read(change, change.old), self._read(change, change.new)
        revision = max(each.revision for each in (old, new) if each is not None)
        return StateChange(self._key.KEY, self._value(old), self._value(new), revision, change.position)

    def _read(self, change: DocumentChange, value: Any) -> ValueRecord | None:
        return None if value is None else read_record(ValueRecord, change.key, value)

    def _value(self, record: ValueRecord | None) -> V | None:
        return None if record is None else record.decode(self._key)


@dataclass(frozen=True, slots=True)
class KeyDifference:
    """A key whose value differs between two moments.

    Attributes:
        key: The name of the key.
        old: The value before, or None; JSON if the key is not registered.
        new: The value after, or None.
    """

    key: str
    old: Any
    new: Any


def find_differences(
    old: Mapping[str, EncodedValue], new: Mapping[str, EncodedValue], registered: Mapping[str, Registered]
) -> list[KeyDifference]:
    """Return the values that differ between two moments, ordered by key name."""
    found: list[KeyDifference] = []
    for slot in sorted(old.keys() | new.keys(), key=lambda slot: (key_in(slot), slot)):
        before, after = old.get(slot), new.get(slot)
        if (
            before is None
            or after is None
            or (before.encoded, before.version) != (after.encoded, after.version)
        ):
            known = registered.get(key_in(slot))
            if known is not None and slot_of(known.scope, known.key.KEY) != slot:
                known = None
            found.append(KeyDifference(key_in(slot), _to_public(before, known), _to_public(after, known)))
    return found


def _to_public(stored: EncodedValue | None, known: Registered | None) -> Any:
    if stored is None:
        return None
    return stored.raw if known is None else decode_value(known.key, stored)


async def read_memory(
    target: Space | Transaction, names: Names, ref: Revision, run_id: str, slots: Iterable[str]
) -> Memory:
    """Return some slots of a thread's state at a commit; reads only these."""
    documents = await target.at(ref, load=False)
    wanted = [names.head, *(names.document(slot, run_id) for slot in slots)]
    present = await documents._load_present(wanted)  # pyright: ignore[reportPrivateUsage]
    found = {name: documents[name] for name in present}
    head = read_record(Head, names.head, found[names.head]) if names.head in found else Head()
    return Memory(head.revision, head.lineage, _slots(names, found, run_id))


async def diff_slots(
    target: Space | Transaction, names: Names, a: Revision, b: Revision, run_id: str
) -> tuple[dict[str, EncodedValue], dict[str, EncodedValue]]:
    """Return the slots that differ between two commits, for both sides; reads only these."""
    found: tuple[set[str], set[str]] = set(), set()
    for difference in await target.history.diff(a, b):
        name = next(iter(difference.path), None)
        if isinstance(name, str) and names.slot(name, run_id) is not None:
            is_whole = len(difference.path) == 1
            if not (is_whole and difference.kind == "added"):
                found[0].add(name)
            if not (is_whole and difference.kind == "removed"):
                found[1].add(name)
    sides: list[dict[str, EncodedValue]] = []
    for ref, wanted in zip((a, b), found, strict=True):
        documents = await target.at(ref, load=[(name,) for name in sorted(wanted)])
        sides.append(_slots(names, {name: documents[name] for name in wanted}, run_id))
    return sides[0], sides[1]


def _slots(names: Names, documents: Mapping[str, object], run_id: str) -> dict[str, EncodedValue]:
    return {
        slot: read_record(ValueRecord, name, value).to_encoded()
        for name, value in documents.items()
        if (slot := names.slot(name, run_id)) is not None
    }


_log = logging.getLogger("keepstate.typed")


@dataclass(frozen=True, slots=True)
class CommitEvent:
    """An applied batch.

    Attributes:
        previous_revision: The revision before the batch.
        new_revision: The revision that the batch made.
        op_count: The number of updates.
        snapshot: The state after the batch.
    """

    previous_revision: int
    new_revision: int
    op_count: int
    snapshot: Snapshot


class CommitHook(Protocol):
    """A function of the commit event, awaited if it is a coroutine function."""

    def __call__(self, event: CommitEvent, /) -> Awaitable[None] | None:
        """Handle a commit that was applied."""
        ...


class Hooks:
    """The hooks of one state, or of all states of a run object, in the order in which they were added."""

    def __init__(self, mode: Mode) -> None:
        self._blocking = mode == "blocking"
        self._hooks: list[CommitHook] = []

    def add(self, hook: CommitHook) -> None:
        """Add a hook.

        Raises:
            InvalidError: The hook is not a function, or a coroutine function in blocking mode.
        """
        if self._blocking:
            reject_coroutine_function(hook)
        elif not callable(hook):  # pyright: ignore[reportUnnecessaryComparison]
            raise InvalidError(f"{hook!r} is not callable. Pass a function.")
        self._hooks.append(hook)

    async def notify(self, event: CommitEvent) -> None:
        """Call all hooks. Errors are logged, because the batch is already applied."""
        for hook in list(self._hooks):
            try:
                await call_function(hook, event)
            except Exception:  # noqa: BLE001 - the batch is applied, so a failing hook must not fail the commit
                _log.exception("Hook %r failed; revision %d is applied", hook, event.new_revision)
