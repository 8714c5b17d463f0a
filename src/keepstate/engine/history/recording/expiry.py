"""The index of the documents of a recorded space that expire.

The store removes expired documents, and the record is updated by the next change. The index has the time from
which a document may be expired. It is read when its earliest time has come. Times are rounded up by at most
an eighth of the remaining time, so a document that is renewed often has only a few entries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Final

import msgspec

from keepstate.engine.history.record import scan_entries
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.stored import corrupt_error, decode_stored, describe
from keepstate.engine.kernel.unit import Unit
from keepstate.errors import CorruptError
from keepstate.stores.protocol import Entry
from keepstate.values.key import pack, unpack

_SHARE: Final = 16
_NAMES: Final = 100
"""Number of names in one entry."""
_AT_ONCE: Final = 200


def note(unit: Unit, now_ms: int, left_ms: Mapping[str, int]) -> int | None:
    """Add documents to the index, and return the time at which the first of them expires."""
    by_time: dict[int, list[str]] = {}
    for name, ttl_ms in left_ms.items():
        by_time.setdefault(_rounded(now_ms + ttl_ms, ttl_ms), []).append(name)
    for due_ms, names in _grouped(by_time):
        encoded = msgspec.msgpack.encode(names)
        unit.put(layout.EXPIRING + pack(due_ms, sha256(encoded).digest()[:16]), encoded)
    return min(by_time, default=None)


def _rounded(due_ms: int, ttl_ms: int) -> int:
    step = 1 << max(0, (ttl_ms // _SHARE).bit_length())
    return -(-due_ms // step) * step


def _grouped(by_time: Mapping[int, Sequence[str]]) -> Iterator[tuple[int, Sequence[str]]]:
    """Yield groups of names. Many different times are joined into few groups, each at its latest time."""
    waiting: list[str] = []
    single = len(by_time) <= _NAMES
    times = sorted(by_time)
    for due_ms in times:
        waiting += by_time[due_ms]
        if single or len(waiting) >= _NAMES or due_ms == times[-1]:
            for begin in range(0, len(waiting), _NAMES):
                yield due_ms, waiting[begin : begin + _NAMES]
            waiting = []


class Due(msgspec.Struct, frozen=True):
    """The due entries of the index.

    Attributes:
        gone: Expired documents, by key.
        next_ms: The time to read the index again; None for never.
    """

    gone: dict[bytes, str]
    next_ms: int | None


async def take_due(unit: Unit, now_ms: int) -> Due:
    """Return the expired documents, and remove the entries that were read from the index."""
    names: list[str] = []
    next_ms: int | None = None
    async for entry in scan_entries(unit.store, unit.space, layout.EXPIRING, limit=64):
        due_ms = _due_ms(entry)
        if due_ms > now_ms or len(names) >= _AT_ONCE:
            next_ms = due_ms
            break
        names += decode_stored(entry.value, list[str], entry.key)
        unit.delete(entry.key)
    keys = {layout.named_key(layout.DOCUMENTS, name): name for name in names}
    found = dict(zip(keys, await unit.read(*keys), strict=True))
    left_ms = {
        keys[key]: max(1, entry.expires_at_ms - now_ms)
        for key, entry in found.items()
        if entry is not None and entry.expires_at_ms is not None
    }
    again_ms = note(unit, now_ms, left_ms)
    gone = {key: name for key, name in keys.items() if found[key] is None}
    return Due(gone, earlier(next_ms, again_ms))


def earlier(one: int | None, other: int | None) -> int | None:
    """Return the earlier of two times, either of which may be None."""
    return min((time for time in (one, other) if time is not None), default=None)


def _due_ms(entry: Entry) -> int:
    try:
        due_ms, _ = unpack(entry.key[len(layout.EXPIRING) :])
    except (CorruptError, ValueError) as error:
        raise corrupt_error(describe(entry.key), error) from error
    if not isinstance(due_ms, int):
        raise corrupt_error(describe(entry.key), "it does not begin with a time")
    return due_ms
