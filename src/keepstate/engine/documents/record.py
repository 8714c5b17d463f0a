"""Stored form of a document: the encoded value, preceded by the full name if the key is cut."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from keepstate.engine.kernel import layout
from keepstate.engine.kernel.stored import corrupt_error, decode_text, describe
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.kernel.unreadable import UNREADABLE, IfUnreadable, Unreadable, stand_in
from keepstate.errors import CorruptError, InvalidError, UnsupportedError
from keepstate.stores.protocol import Entry
from keepstate.values import limits

if TYPE_CHECKING:
    from keepstate.engine.kernel.executor import Executor

NAME_BYTE: Final = b"\xd8"
"""The first byte of a record whose key is cut. `values.codec` does not use it."""


@dataclass(frozen=True, slots=True)
class DocumentRecord:
    """A document's full name and decoded value."""

    name: str
    value: Any


def write_record(executor: Executor, key: bytes, name: str, value: object) -> bytes:
    """Encode a document for storing under `key`.

    Raises:
        InvalidError: The value would not come back equal.
    """
    return join_record(key, name, executor.encode(value, key))


def join_record(key: bytes, name: str, encoded: bytes) -> bytes:
    """Return the record of an encoded value for storing under `key`."""
    if not layout.is_cut(layout.DOCUMENTS, key):
        return encoded
    text = name.encode()
    return NAME_BYTE + len(text).to_bytes(2, "big") + text + encoded


def split_record(key: bytes, stored: bytes) -> tuple[str, bytes]:
    """Split a record into the document's name and its encoded value.

    Raises:
        CorruptError: The name in the record does not match the cut key.
    """
    if not layout.is_cut(layout.DOCUMENTS, key):
        return layout.name_of(layout.DOCUMENTS, key), stored
    end = 3 + int.from_bytes(stored[1:3])
    name = decode_text(stored[3:end], describe(key))
    size = len(stored[3:end])
    begins = stored[:1] == NAME_BYTE and 0 < size <= limits.KEY_BYTES and 3 + size == end
    if not begins or layout.named_key(layout.DOCUMENTS, name) != key:
        raise corrupt_error(describe(key), "its name does not match its key")
    return name, stored[end:]


async def read_record(executor: Executor, unit: Unit, entry: Entry, type: Any = None) -> DocumentRecord:
    """Decode the document in an entry.

    Raises:
        CorruptError: The entry is not a document. The error names it.
        InvalidError: The value is not a `type`.
    """
    return decode_record(executor, entry.key, await unit.value(entry), type)


def decode_record(executor: Executor, key: bytes, stored: bytes, type: Any = None) -> DocumentRecord:
    """Decode a complete stored document; see `read_record`."""
    name, encoded = split_record(key, stored)
    return DocumentRecord(name, decode_value(executor, key, encoded, type, name=name))


async def read_listed_record(
    executor: Executor, unit: Unit, entry: Entry, unreadable: IfUnreadable
) -> DocumentRecord | None:
    """Decode the document in an entry for a listing; None if it is unreadable and left out.

    Raises:
        ConflictError: Its large value was replaced during the read.
    """
    encoded: bytes | None = None
    name = entry.key[len(layout.DOCUMENTS) :].decode("utf-8", "replace")
    try:
        name, encoded = split_record(entry.key, await unit.value(entry))
        return DocumentRecord(name, decode_value(executor, entry.key, encoded, name=name))
    except UNREADABLE as error:
        value = stand_in(unreadable, encoded, error)
        return DocumentRecord(name, value) if isinstance(value, Unreadable) else None


def decode_value(
    executor: Executor, key: bytes, encoded: bytes, type: Any = None, *, name: str | None = None
) -> Any:
    """Decode a value. Errors name the entry, and have the document's `name` as `key`."""
    try:
        return executor.decode(encoded, key, type)
    except CorruptError as error:
        what = f"{describe(key)} of {executor.name!r}"
        raise CorruptError(
            f"{what} is damaged: {error}", space=executor.name, place=what, key=name
        ) from error
    except UnsupportedError as error:
        what = f"{describe(key)} of {executor.name!r}"
        raise UnsupportedError(f"{what}: {error}", key=name) from error
    except InvalidError as error:
        what = f"{describe(key)} of {executor.name!r}"
        how = "cannot be read" if type is None else "cannot be read as this type"
        raise InvalidError(f"{what} {how}: {error}", path=error.path, key=name) from error
