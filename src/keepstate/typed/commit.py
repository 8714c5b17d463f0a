"""How a batch of updates is applied: to the newest values, one update after the other, all or none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keepstate.errors import StateConflictError, StateError
from keepstate.typed.batch import UNSET, MutationBatch
from keepstate.typed.encoded_value import Kept, copied, fresh, kept, value_of
from keepstate.typed.key import AnyKey
from keepstate.typed.layout import slot_of
from keepstate.typed.options import Registered
from keepstate.typed.registry import Registry
from keepstate.typed.thread import Change, Found


class Applying:
    """A batch on its way into a state: what it touches, and what it makes of what it finds there.

    Attributes:
        stored: The slots that it touches and that stand in documents.
    """

    def __init__(
        self, batch: MutationBatch, registry: Registry, unstored: Mapping[str, Kept], run_id: str
    ) -> None:
        self._batch, self._unstored, self._run_id = batch, unstored, run_id
        self._touched = {operation.key.KEY: registry.named(operation.key) for operation in batch}
        self.stored = frozenset(_slot(each) for each in self._touched.values() if each.persistent)

    def compute(self, found: Found) -> Change | None:
        """Return what the batch makes of the newest values; None if it has no updates.

        Raises:
            StateConflictError: It must not be applied to them.
            Exception: What the `apply` of a key raises.
        """
        if self._batch.is_empty():
            return None
        if (refusal := self._refusal(found)) is not None:
            raise refusal
        values: dict[str, Any] = {}
        for key, update in self._batch:
            slot = _slot(self._touched[key.KEY])
            if update is UNSET:
                values[slot] = UNSET
                continue
            value = values[slot] if slot in values else self._now(slot, key, found)
            values[slot] = _applied(key, fresh(key) if value is UNSET else value, update)
        revision = found.head.revision + 1
        keys = {_slot(self._touched[operation.key.KEY]): operation.key for operation in self._batch}
        return Change(
            {
                slot: None if value is UNSET else kept(keys[slot], value, revision)
                for slot, value in values.items()
            },
            self.stored,
        )

    def _now(self, slot: str, key: AnyKey, found: Found) -> Any:
        stored = self._stored(slot, found)
        return fresh(key) if stored is None else value_of(key, stored)

    def _stored(self, slot: str, found: Found) -> Kept | None:
        return found.slots.get(slot) if slot in self.stored else self._unstored.get(slot)

    def _moved(self, base: int, found: Found) -> str | None:
        """Return an exclusive key of the batch that is not as it was at its base, if there is one.

        A value of a revision that the state has not come to was written before an earlier state was restored.
        """
        for name in sorted(self._batch.exclusive_keys()):
            slot = _slot(self._touched[name])
            stored, head = self._stored(slot, found), found.head
            changed = head.removed_at(slot, self._run_id) if stored is None else stored.revision
            if base < changed <= head.revision:
                return name
        return None

    def _refusal(self, found: Found) -> StateConflictError | None:
        base, lineage = self._batch.base_revision, self._batch.lineage
        if base is None:
            return None
        head, exclusive = found.head, None
        if lineage is not None and not head.continues(base, lineage):
            reason = "the state was begun anew, restored or lost since"
        elif base > head.revision:
            reason = f"the state is at revision {head.revision}"
        elif (exclusive := self._moved(base, found)) is not None:
            reason = f"exclusive key {exclusive!r} was changed since"
        else:
            return None
        return StateConflictError(
            f"the batch was computed from revision {base}, and {reason}; nothing of it was applied: compute "
            "it again from a new snapshot",
            state_key=exclusive,
            actual=head.revision,
        )


def _slot(registered: Registered) -> str:
    return slot_of(registered.scope, registered.key.KEY)


def _applied(key: AnyKey, value: Any, update: Any) -> Any:
    try:
        new = key.apply(value, copied(update, f"an update of {key.KEY!r}"))
    except Exception as error:
        error.add_note(
            f"raised by {key.__qualname__}.apply of key {key.KEY!r}; nothing of the batch was applied"
        )
        raise
    if new is None and key.default() is not None:
        raise StateError(
            f"{key.__qualname__}.apply returned None for key {key.KEY!r}; let it return the new value; "
            "nothing of the batch was applied",
            state_key=key.KEY,
        )
    return new
