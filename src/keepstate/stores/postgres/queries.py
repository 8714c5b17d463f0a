"""Decoding of the answers of reading functions, and the settings that decide durability. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Final, NamedTuple

from keepstate.stores.admission import check_read_size, require_logged
from keepstate.stores.postgres.wire import from_array, from_byteas, from_expiries, from_int8, from_int8s
from keepstate.stores.protocol import Change, Changes, Entry, Mark, Page, PartSize, Reading, Setting, Sizes
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
"""The start of an answer: a space's revision, floor and nonce, and its log's nonce for the caller's mark."""


def one_entry(key: bytes, answer: bytes, at_ms: int | None) -> tuple[Reading, State, int]:
    """Decode the answer of `get_1`, with expiry judged at `at_ms`, or at the space's present time.

    The third result is the time of the space's last revision.
    """
    revision, floor, nonce, marked, now_ms, clock_ms, version, created, expires_at_ms = _FOUND.unpack_from(
        answer
    )
    entry = None
    if version and not 0 < expires_at_ms <= (now_ms if at_ms is None else at_ms):
        entry = Entry(key, answer[_FOUND.size :], version, created, expires_at_ms or None)
    return Reading((entry,), revision, now_ms), (revision, floor, nonce, marked), clock_ms


def entries(space: str, keys: Sequence[bytes], fields: Fields) -> Reading:
    """Decode the answer of `read_2`; raise `InvalidError` if the values are too large."""
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
    """Decode the answer of `scan_1`."""
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


def sizes(fields: Fields) -> Sizes:
    """Decode the answer of `sizes_1`."""
    counts = from_int8s(fields[7])
    parts = {
        part: PartSize(entries, size_bytes)
        for part, entries, size_bytes in zip(from_byteas(fields[6]), counts[::2], counts[1::2], strict=True)
        if entries
    }
    return Sizes(parts, from_int8(fields[0]), from_int8(fields[4]))


def changes(space: str, after: int, fields: Fields) -> Changes:
    """Decode the answer of `changes_1`.

    Raises:
        CompactedError: The log starts above `after`.
        HistoryLostError: The space ends below `after`.
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
    first, last, *others = from_byteas(fields[11])
    nonces = {after: first, upto: last}
    nonces |= {change.revision: nonce for change, nonce in zip(items, others, strict=True)}
    return Changes(items, upto, floor, nonces)


def scan_range(prefix: bytes, after: bytes | None, *, reverse: bool) -> tuple[bytes, bytes]:
    """Return the first key of a scan's range, and the first key after the range."""
    above = successor(prefix)
    assert above is not None  # a prefix begins with a section, which is never FF
    if after is None:
        return prefix, above
    return (prefix, after) if reverse else (after + b"\0", above)


_NO_SYNC: Final = {
    "fsync": "nothing is forced to the disk: a power cut may lose anything, and destroy the rest",
    "full_page_writes": "a page torn by a power cut cannot be repaired, unless the file system prevents it",
    "synchronous_commit": "acknowledged commits just before a crash of the server are gone",
}
_RELOAD: Final = "; SELECT pg_reload_conf();"


class StoredSetting(NamedTuple):
    """A setting's value, and its source: a file, a database, a user, a connection."""

    value: str
    source: str


def judge_settings(stored: Mapping[str, StoredSetting], *, has_standby: bool) -> list[Setting]:
    """Return the settings, each with the writes that it can lose."""
    found: list[Setting] = []
    for name, loses in _NO_SYNC.items():
        if name in stored:
            setting = stored[name]
            is_off = setting.value == "off"
            found.append(Setting(name, setting.value, loses if is_off else None, _on(name, setting)))
    if has_standby and "synchronous_standby_names" in stored:
        found.append(_of_standbys(stored["synchronous_standby_names"], stored.get("synchronous_commit")))
    return found


def _of_standbys(names: StoredSetting, commit: StoredSetting | None) -> Setting:
    if not names.value:
        loses = "a standby that missed acknowledged writes may take over"
    elif commit is not None and commit.value in ("local", "off"):
        loses = f"synchronous_commit = {commit.value} does not wait for the standby, which may take over"
    else:
        return Setting("synchronous_standby_names", names.value, None, "")
    mend = "name a standby: ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (*)'" + _RELOAD
    if names.value:
        mend = "let commits wait for it: ALTER SYSTEM SET synchronous_commit = 'on'" + _RELOAD
    return Setting("synchronous_standby_names", names.value, loses, mend)


def _on(name: str, stored: StoredSetting) -> str:
    """Return the instruction for turning a setting on at the source that turned it off."""
    match stored.source:
        case "command line":
            return f"start the server without {name} = {stored.value} on its command line"
        case "database" | "database user" | "user" | "global":
            return f"run ALTER ROLE or ALTER DATABASE … SET {name} = on where it is {stored.value}"
        case "client" | "session" | "environment variable":
            return f"connect without {name} = {stored.value}"
        case _:
            return f"run ALTER SYSTEM SET {name} = 'on'{_RELOAD}"
