"""The in-memory state of a thread: immutable, and replaced as a whole after each applied batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from keepstate.typed.encoded_value import EncodedValue
from keepstate.typed.key import AnyKey, check_key, require_same_key
from keepstate.typed.layout import slot_of
from keepstate.typed.options import Registered
from keepstate.typed.state_map import FrozenMap, Snapshot


@dataclass(frozen=True, slots=True)
class Memory:
    """Values by slot at a revision, including those of unregistered keys.

    Attributes:
        revision: The revision.
        lineage: The lineage of the revision.
        slots: The values.
    """

    revision: int = 0
    lineage: str = ""
    slots: Mapping[str, EncodedValue] = field(default_factory=dict[str, EncodedValue])

    def after(self, revision: int, lineage: str, changed: Mapping[str, EncodedValue | None]) -> Memory:
        """Return the memory after a change of these slots; None removes a slot."""
        slots = {**self.slots, **{slot: stored for slot, stored in changed.items() if stored is not None}}
        for slot, stored in changed.items():
            if stored is None:
                slots.pop(slot, None)
        return Memory(revision, lineage, slots)

    def snapshot(self, registered: Mapping[str, Registered]) -> Snapshot:
        """Return a snapshot of the registered keys, in constant time."""
        return Snapshot(self.revision, FrozenMap(RegisteredValues(self.slots, registered)))


class RegisteredValues(Mapping[AnyKey, EncodedValue]):
    """The values of registered keys, by the classes of the keys.

    Raises `StateError` for another class under a registered name, because its values have another form.
    """

    def __init__(self, slots: Mapping[str, EncodedValue], registered: Mapping[str, Registered]) -> None:
        self._slots, self._registered = slots, registered

    def __getitem__(self, key: AnyKey) -> EncodedValue:
        check_key(key)
        found = self._registered.get(key.KEY)
        if found is None:
            raise KeyError(key.KEY)
        require_same_key(found.key, key)
        return self._slots[slot_of(found.scope, key.KEY)]

    def __iter__(self) -> Iterator[AnyKey]:
        return (
            each.key for each in self._registered.values() if slot_of(each.scope, each.key.KEY) in self._slots
        )

    def __len__(self) -> int:
        return sum(1 for _ in self)
