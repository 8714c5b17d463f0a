"""Application of a batch of updates: to the latest values, one update after the other, all or none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keepstate.errors import StateConflictError, StateError
from keepstate.typed.batch import UNSET, MutationBatch
from keepstate.typed.encoded_value import EncodedValue, copy_value, decode_value, default_value, encode_value
from keepstate.typed.key import AnyKey
from keepstate.typed.layout import slot_of
from keepstate.typed.options import Registered
from keepstate.typed.registry import Registry
from keepstate.typed.thread import Change, StoredState


class BatchApplication:
    """The application of a batch to a state: the keys that it touches, and the values that it computes.

    Attributes:
        stored: The touched slots whose values are stored in documents.
    """

    def __init__(
        self, batch: MutationBatch, registry: Registry, unstored: Mapping[str, EncodedValue], run_id: str
    ) -> None:
        self._batch, self._unstored, self._run_id = batch, unstored, run_id
        self._touched = {operation.key.KEY: registry.require(operation.key) for operation in batch}
        self.stored = frozenset(_slot(each) for each in self._touched.values() if each.persistent)

    def compute(self, found: StoredState) -> Change | None:
        """Apply the updates to the latest values and return the change; None for an empty batch.

        Raises:
            StateConflictError: The batch conflicts with the latest values.
            Exception: Any error that `apply` of a key raises.
        """
        if self._batch.is_empty():
            return None
        if (conflict := self._find_conflict(found)) is not None:
            raise conflict
        values: dict[str, Any] = {}
        for key, update in self._batch:
            slot = _slot(self._touched[key.KEY])
            if update is UNSET:
                values[slot] = UNSET
                continue
            value = values[slot] if slot in values else self._current_value(slot, key, found)
            values[slot] = _apply(key, default_value(key) if value is UNSET else value, update)
        revision = found.head.revision + 1
        keys = {_slot(self._touched[operation.key.KEY]): operation.key for operation in self._batch}
        return Change(
            {
                slot: None if value is UNSET else encode_value(keys[slot], value, revision)
                for slot, value in values.items()
            },
            self.stored,
        )

    def _current_value(self, slot: str, key: AnyKey, found: StoredState) -> Any:
        stored = self._stored(slot, found)
        return default_value(key) if stored is None else decode_value(key, stored)

    def _stored(self, slot: str, found: StoredState) -> EncodedValue | None:
        return found.slots.get(slot) if slot in self.stored else self._unstored.get(slot)

    def _changed_key(self, base: int, found: StoredState) -> str | None:
        """Return an exclusive key of the batch that changed after its base revision, or None.

        A value with a revision above that of the state was written before an earlier state was restored.
        """
        for name in sorted(self._batch.exclusive_keys()):
            slot = _slot(self._touched[name])
            stored, head = self._stored(slot, found), found.head
            changed = head.removed_at(slot, self._run_id) if stored is None else stored.revision
            if base < changed <= head.revision:
                return name
        return None

    def _find_conflict(self, found: StoredState) -> StateConflictError | None:
        base, lineage = self._batch.base_revision, self._batch.lineage
        if base is None:
            return None
        head, exclusive = found.head, None
        if lineage is not None and not head.continues(base, lineage):
            reason = "the state was recreated, restored or lost since then"
        elif base > head.revision:
            reason = f"the state is only at revision {head.revision}"
        elif (exclusive := self._changed_key(base, found)) is not None:
            reason = f"exclusive key {exclusive!r} changed since then"
        else:
            return None
        return StateConflictError(
            f"The batch was computed from revision {base}, but {reason}. Nothing was applied. Compute "
            "it again from a new snapshot.",
            state_key=exclusive,
            actual=head.revision,
        )


def _slot(registered: Registered) -> str:
    return slot_of(registered.scope, registered.key.KEY)


def _apply(key: AnyKey, value: Any, update: Any) -> Any:
    try:
        new = key.apply(value, copy_value(update, f"an update of {key.KEY!r}"))
    except Exception as error:
        error.add_note(
            f"Raised by {key.__qualname__}.apply of key {key.KEY!r}. Nothing of the batch was applied."
        )
        raise
    if new is None and key.default() is not None:
        raise StateError(
            f"{key.__qualname__}.apply returned None for key {key.KEY!r}. Return the new value. "
            "Nothing of the batch was applied.",
            state_key=key.KEY,
        )
    return new
