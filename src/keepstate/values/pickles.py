"""Values of unregistered classes, pickled on request: signed for their location, and allow-listed.

Invariant: no byte of a pickle is read before its signature is verified, and no object is created of a class
outside the allow-list. A signed value is the byte `SIGNED`, then HMAC-SHA256 of the location and the rest (32
bytes), then the rest: an ordinary stored value, in which each pickle is tagged and follows the name of its
class. So a reader without the key can still read everything else in builtin form.
"""

from __future__ import annotations

import hmac
import io
import pickle
import pickletools
from collections.abc import Callable, Collection
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from keepstate.errors import CorruptError, InvalidError, KeepstateError
from keepstate.values import codec
from keepstate.values.decode import ObjectReader, Reader
from keepstate.values.encode import Writer
from keepstate.values.encode_ext import Pickling
from keepstate.values.fit import fit, fit_fields
from keepstate.values.refs import TAG
from keepstate.values.schema import CLASSES
from keepstate.values.types import LEAF_READERS, PICKLE, join_pickle, split_pickle

_PROTOCOL: Final = 5
_MAC_BYTES: Final = 32
_LEAST_KEY_BYTES: Final = 32
_HARMLESS: Final = (complex, date, datetime, time, timedelta, timezone, Decimal, UUID)
"""Classes that are always allowed: creating an object has no side effect and takes no more than its bytes."""
_REFUSED: Final = frozenset({
    "EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID", "NEXT_BUFFER", "READONLY_BUFFER", "INST", "OBJ",
})  # fmt: skip
"""Steps that bypass `find_class`, or that no pickle made here has."""
_IN_HISTORY: Final = b"in a history"
"""The location of all values in histories; no stored value has this location."""
_MEMO_STEPS: Final = frozenset({"PUT", "BINPUT", "LONG_BINPUT", "GET", "BINGET", "LONG_BINGET"})


class SignedPickle:
    """Lets a handle store objects of these classes by pickling them: `open(url, pickle=SignedPickle(…))`.

    A holder of the key can make every reader create objects of the listed classes with any fields, so store
    the key apart from the data. Register a class instead where you can, because a pickle cannot be read after
    its class is gone.

    Args:
        key: At least 32 random bytes, used to sign and verify.
        allow: The classes to pickle and create, without their subclasses.

    Raises:
        InvalidError: The key is too short, or an item of the list is not a class.
    """

    def __init__(self, key: bytes, allow: Collection[type]) -> None:
        if type(key) is not bytes or len(key) < _LEAST_KEY_BYTES:
            raise InvalidError(f"a key that signs pickles has at least {_LEAST_KEY_BYTES} bytes, random ones")
        for kind in allow:
            if not isinstance(kind, type):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise InvalidError(f"{kind!r} is not a class. Pass a list of classes as `allow`.")
        self._key, self._allowed = key, frozenset(allow)
        self._classes = {(kind.__module__, kind.__qualname__): kind for kind in (*allow, *_HARMLESS)}
        leaves = {**LEAF_READERS, PICKLE: self._load}
        self._write = Writer(CLASSES, pickling=self._dump).write
        self._read = ObjectReader(CLASSES, Reader(leaves), leaves=leaves).read
        self._read_fitted = ObjectReader(CLASSES, Reader(leaves), fit_fields, leaves).read
        self._states = _StatePickles(self._dump_signed, self._load_signed)

    def __repr__(self) -> str:
        return (
            f"<SignedPickle of {', '.join(sorted(kind.__qualname__ for kind in self._allowed)) or 'nothing'}>"
        )

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError(
            "a SignedPickle cannot be pickled, because its key would be exposed; create it where it is used"
        )

    @property
    def states(self) -> codec.Codec:
        """Return the codec for histories: each pickle is signed individually."""
        return self._states

    # ---- stored values

    def encode(self, value: object, location: bytes) -> bytes:
        """Return the bytes to store at a location; they are signed only if they contain a pickle.

        Raises:
            InvalidError: The value would not come back equal and with the same type; `path` names the part.
        """
        try:
            return codec.encode(value)
        except InvalidError:
            stored = codec.pack_body(self._write(value))
        return codec.SIGNED + self._signature(stored, location) + stored

    def decode(self, data: bytes, location: bytes, type: Any = None) -> Any:
        """Return the value stored at a location.

        Raises:
            CorruptError: It was not signed by this key for this location, or is not a stored value.
            InvalidError: It contains an object of a class that is not allowed, or does not fit `type`.
        """
        if not data.startswith(codec.SIGNED):
            return codec.decode(data) if type is None else codec.decode(data, type=type)
        signature, stored = data[1 : 1 + _MAC_BYTES], data[1 + _MAC_BYTES :]
        if not hmac.compare_digest(signature, self._signature(stored, location)):
            raise CorruptError("a signed value was not signed by this key for this place")
        body = codec.body_of(stored)
        return self._read(body) if type is None else fit(self._read_fitted(body), type)

    def _signature(self, stored: bytes, location: bytes) -> bytes:
        head = b"keepstate signed 1\x00" + len(location).to_bytes(4)
        return hmac.digest(self._key, head + location + stored, "sha256")

    # ---- objects

    def _dump(self, value: object) -> bytes | None:
        """Return the encoded pickle of an object, or None if its class is not allowed."""
        if type(value) not in self._allowed:
            return None
        name = f"{type(value).__module__}.{type(value).__qualname__}"
        try:
            dumped = pickle.dumps(value, _PROTOCOL)
        except Exception as error:
            raise InvalidError(f"{name} cannot be pickled: {error}") from error
        if type(self._loaded(name, dumped)) is not type(value):
            raise InvalidError(f"{name} does not come back as one from its pickle")
        return join_pickle(name, dumped)

    def _load(self, data: bytes) -> object:
        return self._loaded(*split_pickle(data))

    def _dump_signed(self, value: object) -> bytes | None:
        dumped = self._dump(value)
        if dumped is None:
            return None
        name, plain = split_pickle(dumped)
        return join_pickle(name, self._signature(dumped, _IN_HISTORY) + plain)

    def _load_signed(self, data: bytes) -> object:
        name, signed = split_pickle(data)
        signature, plain = signed[:_MAC_BYTES], signed[_MAC_BYTES:]
        if not hmac.compare_digest(signature, self._signature(join_pickle(name, plain), _IN_HISTORY)):
            raise CorruptError(f"a pickle of {name} in a history was not signed by this key")
        return self._loaded(name, plain)

    def _loaded(self, name: str, dumped: bytes) -> object:
        try:
            _check_steps(name, dumped)
            return _Unpickler(dumped, self._classes).load()
        except KeepstateError:
            raise
        except Exception as error:
            raise InvalidError(f"a pickle of {name} cannot be read: {error!r}") from error


class _StatePickles(codec.Codec):
    """The codec for histories, whose values are shared by commits, so that a pickle has no one location.

    Each pickle has a signature of its own, for histories only: it does not verify as part of a document, nor
    a document's pickle as part of a history.
    """

    def __init__(self, dump: Pickling, load: Callable[[bytes], object]) -> None:
        super().__init__()
        plain, signing = self._write, Writer(CLASSES, pickling=dump).write
        self._leaves = {**LEAF_READERS, PICKLE: load}

        def write(value: object) -> bytes:
            try:
                return plain(value)
            except InvalidError:
                return signing(value)

        self._write = write

    def _reader(self, resolve: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
        leaves = {**self._leaves, TAG: resolve}
        return ObjectReader(CLASSES, Reader(leaves), leaves=leaves).read


class _Unpickler(pickle.Unpickler):
    def __init__(self, dumped: bytes, classes: dict[tuple[str, str], type]) -> None:
        super().__init__(io.BytesIO(dumped))
        self._classes = classes

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        try:
            return self._classes[module_name, global_name]
        except KeyError:
            wanted = f"{module_name}.{global_name}"
            raise InvalidError(
                f"a pickle asks for {wanted}, which is not allowed; list it, if it is a class"
            ) from None


def _check_steps(name: str, dumped: bytes) -> None:
    """Raise `InvalidError` unless each step may occur in a pickle made here; runs none of them."""
    end = 0
    try:
        for step, argument, at in pickletools.genops(dumped):
            end = (at or 0) + 1
            if step.name in _REFUSED:
                raise InvalidError(f"a pickle of {name} has a step {step.name}, which none made here has")
            # An index far off in the memo makes the memo that large.
            index: Any = argument
            if step.name in _MEMO_STEPS and not 0 <= int(index) <= len(dumped):
                raise InvalidError(f"a pickle of {name} has a memo index beyond its bytes")
    except (ValueError, IndexError, OverflowError, MemoryError) as error:
        if isinstance(error, InvalidError):
            raise
        raise InvalidError(f"a pickle of {name} is damaged: {error}") from error
    if end != len(dumped):
        raise InvalidError(f"a pickle of {name} is followed by other bytes")
