"""Answers of the reading functions as the protocol's values. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

from keepstate.stores.admission import check_read_size, require_logged
from keepstate.stores.postgres.wire import from_array, from_byteas, from_expiries, from_int8, from_int8s
from keepstate.stores.protocol import Change, Changes, Entry, Mark, Page, Reading
from keepstate.values.key import successor

Fields = Sequence[bytes | None]
_TRUE = b"\x01"
_FOUND = Struct("!qq8s8sqqqqq")


def still_holds(mark: Mark, revision: int, floor: int, nonce: bytes | None, marked: bytes | None) -> bool:
    """Return whether a space still has a mark; `marked` is its nonce for the mark's revision."""
    if mark.revision == revision:
        return nonce == mark.nonce
    return mark.revision < revision and (mark.revision < floor or marked == mark.nonce)


State = tuple[int, int, bytes, bytes]
"""What answers begin with: a space's revision, floor, nonce, and what its log has for the caller's mark."""


def one_entry(key: bytes, answer: bytes, at_ms: int | None) -> tuple[Reading, State, int]:
    """Return the answer of `get_1`, with expiry judged at a time, or at the space's present one.

    The last of the three is the space's last time.
    """
    revision, floor, nonce, marked, now_ms, clock_ms, version, created, expires_at_ms = _FOUND.unpack_from(
        answer
    )
    entry = None
    if version and not 0 < expires_at_ms <= (now_ms if at_ms is None else at_ms):
        entry = Entry(key, answer[_FOUND.size :], version, created, expires_at_ms or None)
    return Reading((entry,), revision, now_ms), (revision, floor, nonce, marked), clock_ms


def entries(space: str, keys: Sequence[bytes], fields: Fields) -> Reading:
    """Return the answer of `read_2`, or raise `InvalidError` if the values are too many bytes."""
    check_read_size(space, from_int8(fields[5]))
    found: list[Entry | None] = [None] * len(keys)
    columns = zip(
        from_int8s(fields[6]), from_byteas(fields[7]), from_int8s(fields[8]), from_int8s(fields[9]),
        from_expiries(fields[10]), strict=True,
    )  # fmt: skip
    for place, value, version, created, expires_at_ms in columns:
        found[place - 1] = Entry(keys[place - 1], value, version, created, expires_at_ms)
    return Reading(found, from_int8(fields[0]), from_int8(fields[4]))


def page(fields: Fields) -> Page:
    """Return the answer of `scan_1`."""
    columns = zip(
        from_byteas(fields[5]), from_byteas(fields[6]), from_int8s(fields[7]), from_int8s(fields[8]),
        from_expiries(fields[9]), strict=True,
    )  # fmt: skip
    return Page(
        [Entry(*column) for column in columns],
        fields[4],
        from_int8(fields[0]),
        from_int8(fields[10]),
        fields[2] or b"",
    )


def changes(space: str, after: int, fields: Fields) -> Changes:
    """Return the answer of `changes_1`.

    Raises:
        CompactedError: The log begins above `after`.
        HistoryLostError: The space ends below it.
    """
    revision, floor = from_int8(fields[0]), from_int8(fields[1])
    require_logged(space, after, floor=floor, revision=revision)
    columns = zip(
        from_int8s(fields[5]), from_byteas(fields[6]), from_array(fields[7]), from_array(fields[8]),
        from_array(fields[9]), from_array(fields[10]), strict=True,
    )  # fmt: skip
    items = [
        Change(number, key, deleted == _TRUE, old, new, expired == _TRUE)
        for number, key, deleted, old, new, expired in columns
    ]
    upto = from_int8(fields[4])
    first, last, *told = from_byteas(fields[11])
    nonces = {after: first, upto: last}
    nonces |= {change.revision: nonce for change, nonce in zip(items, told, strict=True)}
    return Changes(items, upto, floor, nonces)


def scanned(prefix: bytes, after: bytes | None, *, reverse: bool) -> tuple[bytes, bytes]:
    """Return the first key of a scan's range and the first one behind it."""
    above = successor(prefix)
    assert above is not None  # a prefix begins with a section, which is no FF
    if after is None:
        return prefix, above
    return (prefix, after) if reverse else (after + b"\0", above)
