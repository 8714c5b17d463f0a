"""Values to stored bytes and back: lossless, or an error that names the path.

The first byte of a stored value names its encoding: the format in the low four bits, the packing in the high
four. The rest is the canonical encoding (`encode`, `types`). It is the same for equal values of equal types;
the insertion order of a dict counts as part of its value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar, overload

from keepstate.errors import CorruptError, InvalidError
from keepstate.values import limits, merkle
from keepstate.values.builtin import FORM_READERS
from keepstate.values.compression import Expansion, compress, decompress
from keepstate.values.decode import ObjectReader, Reader
from keepstate.values.encode import Writer
from keepstate.values.fit import fit, fit_fields
from keepstate.values.merkle import MerkleValue
from keepstate.values.refs import TAG
from keepstate.values.schema import CLASSES, Registry
from keepstate.values.types import LEAF_READERS

FORMAT: Final = 1
"""The number of the encoding; it is part of digests, and the first byte."""
PLAIN: Final = bytes((FORMAT,))
COMPRESSED: Final = bytes((FORMAT | 0x10,))
"""zstd over the encoding."""
SEALED: Final = bytes((FORMAT | 0x20,))
"""Encrypted; also with the two highest bits. No codec reads it: `stores.wrappers.encrypted` does."""
SIGNED: Final = bytes((FORMAT | 0x40,))
"""A signature, then a stored value that holds pickles: `values.pickles` reads it."""
_SIGNATURE_BYTES: Final = 1 + 32

_T = TypeVar("_T")


class Codec:
    """Encodes and decodes with the classes of one registry.

    Args:
        registry: The classes.
        reads_forms: Whether `assemble` returns builtin forms in place of objects.
    """

    def __init__(self, registry: Registry = CLASSES, *, reads_forms: bool = False) -> None:
        self._reads_forms = reads_forms
        self._registry, self._forms = registry, Reader()
        writer = Writer(registry)
        self._write, self._write_long = writer.write, writer.write_long
        self._read = ObjectReader(registry, self._forms).read
        self._read_fitted = ObjectReader(registry, self._forms, fit_fields).read
        self._read_forms = Reader(FORM_READERS).read

    def encode(self, value: object) -> bytes:
        """Return the bytes to store.

        Raises:
            InvalidError: The value would not come back equal and with the same type; `path` names the part.
        """
        return pack_body(self._write(value))

    @overload
    def decode(self, data: bytes) -> Any: ...

    @overload
    def decode(self, data: bytes, type: type[_T]) -> _T: ...

    @overload
    def decode(self, data: bytes, type: Any) -> Any: ...

    def decode(self, data: bytes, type: Any = None) -> Any:
        """Return the stored value as a new object; with `type`, validated and converted to that type.

        Raises:
            CorruptError: The bytes are not a stored value.
            InvalidError: The value does not fit `type`, or its class is not registered or rejects it.
            UnsupportedError: A class is stored in a newer version than the registered one.
        """
        body = body_of(data)
        return self._read(body) if type is None else fit(self._read_fitted(body), type)

    def canonical(self, value: object) -> bytes:
        """Return the encoding that digests are made of: no first byte, never compressed, fixed for a format.

        Raises:
            InvalidError: As `encode`.
        """
        return self._write(value)

    def canonical_long(self, value: object) -> bytes:
        """Return the same as `canonical`, faster for a long value and slower for a short one.

        Raises:
            InvalidError: As `encode`.
        """
        long = self._write_long(value)
        return self._write(value) if long is None else long

    def to_builtin(self, data: bytes) -> Any:
        """Return the stored value with a dict, `{"@type": "profile@2", …}`, for each object of a class.

        Neither classes, nor numpy, nor time zone data are needed.

        Raises:
            CorruptError: The bytes are not a stored value.
        """
        return self._read_forms(body_of(data[_SIGNATURE_BYTES:] if data.startswith(SIGNED) else data))

    def to_merkle(self, value: object) -> MerkleValue:
        """Return a value's encoding, and an object for each large part.

        Raises:
            InvalidError: As `encode`.
        """
        return merkle.to_merkle(value, self._write)

    def assemble(
        self, encoding: bytes, objects: Mapping[bytes, bytes], expansion: Expansion | None = None
    ) -> Any:
        """Return the value of a Merkle encoding, from objects by name.

        Raises:
            CorruptError: An object is missing or damaged.
            InvalidError: As `decode`.
            UnsupportedError: As `decode`.
        """
        return merkle.assemble(encoding, objects, self._reader, expansion=expansion)

    def _reader(self, resolve: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
        if self._reads_forms:
            return Reader({**FORM_READERS, TAG: resolve}).read
        return ObjectReader(self._registry, self._forms, leaves={**LEAF_READERS, TAG: resolve}).read


def pack_body(body: bytes) -> bytes:
    """Return the stored form of an encoding."""
    if len(body) > limits.COMPRESSED_FROM_BYTES and (compressed := compress(body)) is not None:
        return COMPRESSED + compressed
    return PLAIN + body


def body_of(data: bytes) -> bytes:
    """Return the encoding in a stored form.

    Raises:
        CorruptError: The bytes are not a stored form.
        InvalidError: The stored form is signed, because it contains a pickle.
    """
    first = data[:1]
    if first == PLAIN:
        return data[1:]
    if first == COMPRESSED:
        return decompress(data[1:])
    if not first:
        raise CorruptError("a stored value has no bytes")
    if first == SIGNED:
        raise InvalidError(
            "a stored value contains a pickle; read it with a handle that has pickle=SignedPickle(…)"
        )
    if first[0] & 0x3F == SEALED[0]:
        raise CorruptError("a stored value is encrypted; open the store with its KeyRing")
    raise CorruptError(f"a stored value starts with {first.hex()}; it is damaged or of a newer keepstate")


_default: Final = Codec()
STATES: Final = _default
"""The codec of histories."""
FORMS: Final = Codec(reads_forms=True)
"""The codec of histories that returns objects in builtin form."""
encode = _default.encode
decode = _default.decode
canonical = _default.canonical
to_builtin = _default.to_builtin
