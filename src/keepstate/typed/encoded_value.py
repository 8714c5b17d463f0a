"""A value as it is kept: encoded once, decoded for each reader, so that it can be shared by all."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from keepstate.errors import KeepstateError, StateError
from keepstate.typed.forms import admit_json
from keepstate.typed.key import Json, TypedKey, opened
from keepstate.values import codec

Value = TypeVar("Value")

ATOMS: Final = frozenset({str, int, float, bool, bytes, type(None)})
"""What cannot be changed, and needs no copy."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A value in its JSON form, encoded.

    Attributes:
        encoded: The JSON form, as the codec writes it.
        version: The version of the key's class that made it.
        revision: The revision of the state that wrote it.
    """

    encoded: bytes
    version: int
    revision: int = 0

    @property
    def raw(self) -> Json:
        """The JSON form, a copy."""
        return codec.decode(self.encoded)


def kept(key: type[TypedKey[Value]], value: Value, revision: int = 0) -> Kept:
    """Return a value as it is kept.

    Raises:
        StateError: It is no value of the key, or would not come back equal; names the path.
    """
    try:
        raw = key.encode(value)
    except KeepstateError:
        raise
    except Exception as error:
        raise StateError(
            f"{key.KEY!r} is not written: its `encode` failed: {error!r}", state_key=key.KEY
        ) from error
    if not key.is_plain():
        admit_json(raw, key.KEY)
        opened(key, raw, key.VERSION)
    return Kept(codec.encode(raw), key.VERSION, revision)


def value_of(key: type[TypedKey[Value]], stored: Kept) -> Value:
    """Return what is kept, as a copy of the caller's own.

    Raises:
        StateError: It cannot be read; names the key, the path and the stored version.
    """
    return opened(key, stored.raw, stored.version)


def fresh(key: type[TypedKey[Value]]) -> Value:
    """Return the default of a key, as a copy of the caller's own.

    Raises:
        StateError: It cannot be copied.
    """
    value: Value = copied(key.default(), f"the default of {key.KEY!r}")
    return value


def copied(thing: Any, what: str) -> Any:
    """Return a copy that shares nothing that can change.

    Raises:
        StateError: It cannot be copied.
    """
    if type(thing) in ATOMS:
        return thing
    try:
        return deepcopy(thing)
    except Exception as error:
        raise StateError(f"{what} cannot be copied ({error!r}); give plain data") from error
