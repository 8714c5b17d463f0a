"""Values of Pydantic AI as plain data, and the batches in which they are stored.

For Pydantic AI and its harness, which may be of versions that do not fit each other: nothing here imports
either of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeVar

from pydantic import ConfigDict, TypeAdapter
from pydantic_core import PydanticSerializationError

from keepstate.errors import InvalidError
from keepstate.values import limits

T = TypeVar("T")

PLAIN: Final = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
"""The form of plain data: bytes are texts of base64."""
AT_ONCE: Final = 400
"""The largest number of messages in a batch. Each is up to two writes and a check."""
BATCH_BYTES: Final = 4 << 20


def dump(adapter: TypeAdapter[Any], values: Sequence[object], what: str) -> Any:
    """Return values as plain data.

    Raises:
        InvalidError: Pydantic AI cannot serialize one of them. The message begins with `what`.
    """
    try:
        return adapter.dump_python(values, mode="json")
    except PydanticSerializationError as error:
        raise unstorable(what, error) from error


def unstorable(what: str, error: Exception) -> InvalidError:
    """Return the error for values that Pydantic AI cannot serialize."""
    return InvalidError(f"{what} cannot be stored: {error}. Give values that Pydantic AI serializes")


def in_batches(sized: Iterable[tuple[T, int]]) -> list[list[T]]:
    """Divide values, each with its size in bytes, into batches that a store takes; the last may be empty."""
    batches: list[list[T]] = [[]]
    batch_bytes = 0
    for value, whole_bytes in sized:
        # A larger value is stored in parts, outside of the batch.
        size_bytes = min(whole_bytes, limits.VALUE_BYTES)
        if len(batches[-1]) == AT_ONCE or batch_bytes + size_bytes > BATCH_BYTES:
            batches.append([])
            batch_bytes = 0
        batches[-1].append(value)
        batch_bytes += size_bytes
    return batches
