"""The state of a thread in memory: immutable, and replaced as a whole when a batch was applied."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from keepstate.typed.encoded_value import Kept
from keepstate.typed.key import AnyKey, admit_key, refuse_other
from keepstate.typed.layout import slot_of
from keepstate.typed.options import Registered
from keepstate.typed.state_map import FrozenMap, Snapshot


@dataclass(frozen=True, slots=True)
class Memory:
    """Values by slot, at a revision; those of keys that are not registered too.

    Attributes:
        revision: The revision.
        lineage: Which counting of revisions it belongs to.
        slots: The values.
    """

    revision: int = 0
    lineage: str = ""
    slots: Mapping[str, Kept] = field(default_factory=dict[str, Kept])

    def after(self, revision: int, lineage: str, changed: Mapping[str, Kept | None]) -> Memory:
        """Return the memory once these slots have changed; None is for what is gone."""
        slots = {**self.slots, **{slot: stored for slot, stored in changed.items() if stored is not None}}
        for slot, stored in changed.items():
            if stored is None:
                slots.pop(slot, None)
        return Memory(revision, lineage, slots)

    def snapshot(self, registered: Mapping[str, Registered]) -> Snapshot:
        """Return what the registered keys have; costs nothing, however many they are."""
        return Snapshot(self.revision, FrozenMap(RegisteredValues(self.slots, registered)))


class RegisteredValues(Mapping[AnyKey, Kept]):
    """The slots of registered keys, by the classes of the keys.

    Raises `StateError` for another class of a name that is registered: its values are of another form.
    """

    def __init__(self, slots: Mapping[str, Kept], registered: Mapping[str, Registered]) -> None:
        self._slots, self._registered = slots, registered

    def __getitem__(self, key: AnyKey) -> Kept:
        admit_key(key)
        found = self._registered.get(key.KEY)
        if found is None:
            raise KeyError(key.KEY)
        refuse_other(found.key, key)
        return self._slots[slot_of(found.scope, key.KEY)]

    def __iter__(self) -> Iterator[AnyKey]:
        return (
            each.key for each in self._registered.values() if slot_of(each.scope, each.key.KEY) in self._slots
        )

    def __len__(self) -> int:
        return sum(1 for _ in self)
