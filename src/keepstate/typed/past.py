"""The state of a thread at a moment of its recorded history."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from keepstate.engine.history.revisions import Revision
from keepstate.engine.space.space import Space
from keepstate.engine.space.transaction import Transaction
from keepstate.typed.encoded_value import EncodedValue
from keepstate.typed.layout import Names
from keepstate.typed.memory import Memory
from keepstate.typed.records import Head, ValueRecord, read_record


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
        name = difference.path[0]
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
