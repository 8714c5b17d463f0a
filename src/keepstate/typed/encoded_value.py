"""An encoded value: encoded once, decoded for each reader, so that all readers can share it."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from keepstate.errors import KeepstateError, StateError
from keepstate.typed.forms import require_json
from keepstate.typed.key import Json, TypedKey, decode_stored
from keepstate.values import codec

Value = TypeVar("Value")

ATOMS: Final = frozenset({str, int, float, bool, bytes, type(None)})
"""Immutable types, whose values need no copy."""


@dataclass(frozen=True, slots=True)
class EncodedValue:
    """A value in its JSON form, encoded.

    Attributes:
        encoded: The JSON form as encoded by the codec.
        version: The version of the key's class that encoded it.
        revision: The state revision that wrote it.
    """

    encoded: bytes
    version: int
    revision: int = 0

    @property
    def raw(self) -> Json:
        """A copy of the JSON form."""
        return codec.decode(self.encoded)


def encode_value(key: type[TypedKey[Value]], value: Value, revision: int = 0) -> EncodedValue:
    """Return the encoded form of a value.

    Raises:
        StateError: The value does not fit the key, or would not come back equal; the error names the path.
    """
    try:
        raw = key.encode(value)
    except KeepstateError:
        raise
    except Exception as error:
        raise StateError(
            f"Key {key.KEY!r} was not written because its encode() failed: {error!r}", state_key=key.KEY
        ) from error
    if not key.is_plain():
        require_json(raw, key.KEY)
        decode_stored(key, raw, key.VERSION)
    return EncodedValue(codec.encode(raw), key.VERSION, revision)


def decode_value(key: type[TypedKey[Value]], stored: EncodedValue) -> Value:
    """Return the value as an independent copy.

    Raises:
        StateError: The value cannot be read; the error names the key, the path and the stored version.
    """
    return decode_stored(key, stored.raw, stored.version)


def default_value(key: type[TypedKey[Value]]) -> Value:
    """Return an independent copy of a key's default.

    Raises:
        StateError: The default cannot be copied.
    """
    value: Value = copy_value(key.default(), f"the default of {key.KEY!r}")
    return value


def copy_value(thing: Any, what: str) -> Any:
    """Return a copy that shares no mutable object.

    Raises:
        StateError: The value cannot be copied.
    """
    if type(thing) in ATOMS:
        return thing
    try:
        return deepcopy(thing)
    except Exception as error:
        raise StateError(f"Cannot copy {what} ({error!r}). Use plain data.") from error
