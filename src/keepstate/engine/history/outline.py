"""Parts of a state: the outline of a list or dict, and ranges of lists, reading little else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import msgspec

from keepstate.engine.history.paths import CODEC, Path, find_path, format_path, steps_of
from keepstate.errors import InvalidError
from keepstate.values import types
from keepstate.values.codec import Codec
from keepstate.values.contents import Contents, fields, is_container, is_plain_list, open_contents, whole
from keepstate.values.encode_ext import array_count
from keepstate.values.merkle import STYLES, TREE_BYTES
from keepstate.values.nodes import LIST_STYLE, Entry, ref_of
from keepstate.values.refs import Fetching

_READ_BYTES: Final = TREE_BYTES + 16
"""The size of the largest list or dict that is not a tree. A larger value is not read for an outline."""
_EXT_KINDS: Final = {types.TUPLE: "tuple", types.SET: "set", types.FROZENSET: "frozenset"}
_EXT_HEADS: Final = 0xC7, 0xC8, 0xC9, 0xD4, 0xD5, 0xD6, 0xD7, 0xD8
_ext: Final = msgspec.msgpack.Decoder(msgspec.msgpack.Ext).decode

StatePath: TypeAlias = Path | tuple[()]
"""A path, or `()` for the whole state."""


@dataclass(frozen=True, slots=True)
class ValueSummary:
    """A value in an outline that is not shown itself.

    Attributes:
        kind: `list`, `dict`, `tuple`, `set` or `frozenset`; `object` for any other value made of parts, and
            `large` for a text or other value of more than 4 KiB, which was not read.
        count: The number of its items; the size in bytes of an `object` or `large` value.
    """

    kind: str
    count: int


@dataclass(frozen=True, slots=True)
class Outline:
    """A page of the items of a list or dict.

    Attributes:
        kind: The kind of container.
        count: The number of all its items.
        children: The items of the page in order, by dict key or list index: a plain value of up to 4 KiB, or
            a summary.
        next: The place of the last item of the page, to pass as `after`; None on the last page.
    """

    kind: Literal["list", "dict"]
    count: int
    children: Mapping[Any, Any]
    next: int | None


def outline_at(
    root: bytes, path: StatePath, after: int | None, limit: int, codec: Codec
) -> Fetching[Outline]:
    """Return a page of the items of the list or dict at a path.

    Raises:
        InvalidError: The value at the path is not a list or dict.
        NotFoundError: The path does not exist.
    """
    contents = yield from _open(root, path, "a list or dict; `fetch` returns its value")
    begin = 0 if after is None else after + 1
    entries = yield from contents.between(begin, begin + limit)
    small = [entry for entry in entries if entry.value_bytes <= _READ_BYTES]
    encodings = dict(zip((entry.name for entry in small), (yield from whole(small)), strict=True))
    steps: Sequence[Any] = range(begin, begin + len(entries))
    if contents.style.has_keys:
        steps = [CODEC.assemble(entry.key, {}) for entry in entries]
    children = {
        step: _summarize(entry, encodings.get(entry.name), codec)
        for step, entry in zip(steps, entries, strict=True)
    }
    end = begin + len(entries)
    kind: Literal["list", "dict"] = "dict" if contents.style.has_keys else "list"
    return Outline(kind, contents.count, children, end - 1 if entries and end < contents.count else None)


def range_at(root: bytes, path: Path, start: int | None, stop: int | None) -> Fetching[list[bytes]]:
    """Return the encodings of a range of the list at a path.

    Raises:
        InvalidError: The value at the path is not a list.
        NotFoundError: The path does not exist.
    """
    contents = yield from _open(root, path, "a list; `fetch` returns its value")
    if contents.style is not LIST_STYLE:
        raise InvalidError(f"{format_path(steps_of(path))} is a dict; only a list has ranges")
    begin, end, _ = slice(start, stop).indices(contents.count)
    return (yield from whole((yield from contents.between(begin, max(begin, end)))))


def _open(root: bytes, path: StatePath, what: str) -> Fetching[Contents]:
    encoding = root if path == () else (yield from find_path(root, path))[1]
    if not is_container(encoding):
        raise InvalidError(f"{format_path(steps_of(path))} is not {what}")
    return (yield from open_contents(encoding))


def _summarize(entry: Entry, encoding: bytes | None, codec: Codec) -> Any:
    """Return a plain value, or the summary of another one; None as encoding is for a large value."""
    if encoding is None:
        return ValueSummary("large", entry.value_bytes)
    ref = ref_of(encoding)
    if ref is not None:
        return ValueSummary("dict" if STYLES[ref.kind].has_keys else "list", ref.count)
    if is_container(encoding):
        if is_plain_list(encoding):
            return ValueSummary("list", array_count(encoding))
        return ValueSummary("dict", len(fields(encoding)))
    if encoding[0] in _EXT_HEADS:
        ext = _ext(encoding)
        if ext.code in _EXT_KINDS:
            return ValueSummary(_EXT_KINDS[ext.code], array_count(bytes(ext.data)))
        if ext.code in types.CONTAINERS or ext.code == types.PICKLE:
            return ValueSummary("object", len(encoding))
    return codec.assemble(encoding, {})
