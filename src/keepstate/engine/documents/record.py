"""How a document stands in its entry: its encoded value, behind its name where the key is cut."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from keepstate.engine.kernel import layout
from keepstate.engine.kernel.key_text import describe
from keepstate.engine.kernel.stored import corrupt_error, decode_text
from keepstate.engine.kernel.unit import Unit
from keepstate.errors import CorruptError, InvalidError, UnsupportedError
from keepstate.stores.protocol import Entry
from keepstate.values import limits

if TYPE_CHECKING:
    from keepstate.engine.kernel.executor import Executor

NAME_BYTE: Final = b"\xd8"
"""Begins a record whose key is cut. It is no format of `values.codec`."""


@dataclass(frozen=True, slots=True)
class DocumentRecord:
    """A document's full name and decoded value."""

    name: str
    value: Any


def write_record(executor: Executor, place: bytes, name: str, value: object) -> bytes:
    """Return what to store under the key `place`.

    Raises:
        InvalidError: The value would not come back equal.
    """
    return joined_record(place, name, executor.encode(value, place))


def joined_record(place: bytes, name: str, encoded: bytes) -> bytes:
    """Return what to store under the key `place` of a value that is encoded already."""
    if not layout.is_cut(layout.DOCUMENTS, place):
        return encoded
    text = name.encode()
    return NAME_BYTE + len(text).to_bytes(2, "big") + text + encoded


def name_and_value(place: bytes, stored: bytes) -> tuple[str, bytes]:
    """Return a document's name, and its value still encoded.

    Raises:
        CorruptError: The name that stands in the value is not the one that the key was cut from.
    """
    if not layout.is_cut(layout.DOCUMENTS, place):
        return layout.name_of(layout.DOCUMENTS, place), stored
    end = 3 + int.from_bytes(stored[1:3])
    name = decode_text(stored[3:end], describe(place))
    size = len(stored[3:end])
    begins = stored[:1] == NAME_BYTE and 0 < size <= limits.KEY_BYTES and 3 + size == end
    if not begins or layout.named_key(layout.DOCUMENTS, name) != place:
        raise corrupt_error(describe(place), "it does not begin with its name")
    return name, stored[end:]


async def read_record(executor: Executor, unit: Unit, entry: Entry, type: Any = None) -> DocumentRecord:
    """Return the document in an entry.

    Raises:
        CorruptError: The entry holds no document; it is named.
        InvalidError: The value is no `type`.
    """
    name, encoded = name_and_value(entry.key, await unit.value(entry))
    return DocumentRecord(name, decoded(executor, entry.key, encoded, type, name=name))


def decoded(
    executor: Executor, place: bytes, encoded: bytes, type: Any = None, *, name: str | None = None
) -> Any:
    """Return a decoded value; an error names what the value is in, and has a document's `name` as `key`."""
    try:
        return executor.decode(encoded, place, type)
    except CorruptError as error:
        what = f"{describe(place)} of {executor.name!r}"
        raise CorruptError(
            f"{what} is damaged: {error}", space=executor.name, place=what, key=name
        ) from error
    except UnsupportedError as error:
        what = f"{describe(place)} of {executor.name!r}"
        raise UnsupportedError(f"{what}: {error}", key=name) from error
    except InvalidError as error:
        what = f"{describe(place)} of {executor.name!r}"
        raise InvalidError(f"{what} cannot be read as asked: {error}", path=error.path) from error
