"""The final state of a space: its entries and its log, read from the store itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from keepstate.errors import CompactedError
from keepstate.stores.protocol import Applied, Batch, Change, Conflict, Store, revision_in_token
from keepstate.values.key import BY_KEY, OBJECTS, WITH_VALUES, stored_key
from keepstate_testing.proof.operations import FOREVER, Attempt, Refused, Saw, Took, saw

_NEVER: Final = 2**53 - 1
_SECTIONS: Final = tuple(stored_key(section) for section in (OBJECTS, BY_KEY, WITH_VALUES))


class End(msgspec.Struct, frozen=True):
    """A space after the last operation on it. The log is whole: nothing of it was cut."""

    revision: int
    now_ms: int
    entries: Mapping[bytes, Saw]
    log: Sequence[Change]


async def settle(store: Store, attempts: Iterable[Attempt]) -> None:
    """Ask the store for the outcomes of batches whose answers were lost, and write them down.

    Afterwards they have applied, or never will. Their senders must be gone.

    Raises:
        OutcomeUnknownError: The log no longer reaches back to one of them.
    """
    for attempt in attempts:
        if attempt.answer is not None or not attempt.writes:
            continue
        known = revision_in_token(attempt.token)
        probe = Batch(attempt.space, (), at=_NEVER, token=attempt.token, retry_of=known)
        outcome = (await store.apply([probe]))[0]
        if isinstance(outcome, Applied):
            attempt.answer = Took(outcome.revision, outcome.now_ms)
        elif isinstance(outcome, Conflict):
            attempt.answer = Refused(None, 0, 0, "settled: it had not applied")
            attempt.ended_ns = FOREVER
        else:
            raise outcome


async def read_end(store: Store, space: str) -> End:
    """Return the present content of a space. No client may write to it at the same time.

    Raises:
        CompactedError: Its log was cut: the run was too long for one space.
    """
    entries: dict[bytes, Saw] = {}
    for section in _SECTIONS:
        after: bytes | None = None
        while True:
            page = await store.scan(space, section, after=after, limit=1024)
            entries.update((entry.key, saw(entry)) for entry in page.entries)
            if (after := page.next) is None:
                break
    reading = await store.read(space, [])
    return End(reading.revision, reading.now_ms, entries, await _log(store, space, reading.revision))


async def _log(store: Store, space: str, revision: int) -> list[Change]:
    items: list[Change] = []
    upto = 0
    while upto < revision:
        page = await store.changes(space, upto)
        if page.floor:
            raise CompactedError(f"the log of {space!r} was cut at {page.floor}", floor=page.floor)
        items += page.items
        if page.upto <= upto:
            break
        upto = page.upto
    return items
