"""When recorded documents expire: the store removes them by itself, and the record learns of it here.

An index says from when on a document may be gone. It is looked at when the first of its times has come, with
the next change. Times are rounded up, by at most an eighth of what a document has to live, so that one whose
time is put off again and again has a few entries, and not one for each time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Final

import msgspec

from keepstate.engine.kernel import layout
from keepstate.engine.kernel.key_text import describe
from keepstate.engine.kernel.stored import corrupt_error, decode_stored
from keepstate.engine.kernel.unit import Unit
from keepstate.errors import CorruptError
from keepstate.stores.protocol import Entry
from keepstate.values.key import pack, unpack

_SHARE: Final = 16
_NAMES: Final = 100
"""In one entry."""
_AT_ONCE: Final = 200


def note(unit: Unit, now_ms: int, left_ms: Mapping[str, int]) -> int | None:
    """Note when documents expire, and return when the first of them does."""
    by_time: dict[int, list[str]] = {}
    for name, ttl_ms in left_ms.items():
        by_time.setdefault(_rounded(now_ms + ttl_ms, ttl_ms), []).append(name)
    for due_ms, names in _grouped(by_time):
        digest = sha256("\0".join(names).encode()).digest()
        unit.put(layout.EXPIRING + pack(due_ms, digest[:16]), msgspec.msgpack.encode(names))
    return min(by_time, default=None)


def _rounded(due_ms: int, ttl_ms: int) -> int:
    step = 1 << max(0, (ttl_ms // _SHARE).bit_length())
    return -(-due_ms // step) * step


def _grouped(by_time: Mapping[int, Sequence[str]]) -> Iterator[tuple[int, Sequence[str]]]:
    """Yield few groups of names where there are many times: each at the last of its times."""
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
    """What the index tells at a moment.

    Attributes:
        gone: Documents that have expired, by key.
        next_ms: When to look again, if ever.
    """

    gone: dict[bytes, str]
    next_ms: int | None


async def take_due(unit: Unit, now_ms: int) -> Due:
    """Return what has expired, and take what was looked at out of the index."""
    names: list[str] = []
    next_ms: int | None = None
    async for entry in _entries(unit):
        due_ms = _due_ms(entry)
        if due_ms > now_ms or len(names) >= _AT_ONCE:
            next_ms = due_ms
            break
        names += decode_stored(entry.value, list[str], describe(entry.key))
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
    """Return the earlier of two times, either of which may be none."""
    return min((time for time in (one, other) if time is not None), default=None)


async def _entries(unit: Unit) -> AsyncIterator[Entry]:
    after: bytes | None = None
    while True:
        page = await unit.store.scan(unit.space, layout.EXPIRING, after=after, limit=64)
        for entry in page.entries:
            yield entry
        after = page.next
        if after is None:
            return


def _due_ms(entry: Entry) -> int:
    try:
        due_ms, _ = unpack(entry.key[len(layout.EXPIRING) :])
    except (CorruptError, ValueError) as error:
        raise corrupt_error(describe(entry.key), error) from error
    if not isinstance(due_ms, int):
        raise corrupt_error(describe(entry.key), "it begins with no time")
    return due_ms
