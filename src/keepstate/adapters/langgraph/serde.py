"""Values of channels to bytes and back: by keepstate's codec, or by a serializer of LangGraph.

The codec makes objects of known classes alone (`classes`), and raises for all others. With a serializer each
value, and each item of a list, is what that makes of it; if it encrypts, nothing else is stored of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from hashlib import sha256
from typing import Any, Final

import msgspec
import ormsgpack
from langgraph.checkpoint.serde.base import CipherProtocol, SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from keepstate.adapters.langgraph.classes import Classes
from keepstate.adapters.langgraph.copies import Copies
from keepstate.adapters.langgraph.shapes import PlainShape
from keepstate.engine.history.objects import pack_object, unpack_object
from keepstate.errors import CorruptError, InvalidError
from keepstate.values import merkle
from keepstate.values.codec import Codec
from keepstate.values.contents import closed, replanted
from keepstate.values.decode import ObjectReader, Reader
from keepstate.values.merkle import MerkleValue
from keepstate.values.nodes import LIST_STYLE, item
from keepstate.values.refs import TAG, Fetching
from keepstate.values.types import LEAF_READERS, OBJECT

_SEALED: Final = "langgraph.serialized"
SAID: Final = 0x92
"""How the encoding begins of what a serializer has said: two things."""
_THREE: Final = 0x93
_SHORT_TEXT: Final = 0x1F
"""How an object's parts begin: three of them, of which the first is a name of up to so many bytes."""
_FORMS: Final = Reader()


class Serialized:
    """What a serializer has made of a value.

    Args:
        type: What it says that the bytes are.
        data: The bytes.
    """

    __slots__ = ("data", "type")

    def __init__(self, type: str, data: bytes) -> None:
        self.type, self.data = type, data


class _Opened:
    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class Values:
    """Encodes and decodes what checkpoints hold.

    Args:
        classes: What may come back.
        serde: Instead of keepstate's codec.
    """

    def __init__(self, classes: Classes, serde: SerializerProtocol | None = None) -> None:
        self.classes, self.serde = classes, serde
        self.is_encrypted = isinstance(serde, EncryptedSerializer)
        self._says = serde
        self._cipher: CipherProtocol | None = None
        if isinstance(serde, EncryptedSerializer) and _only_encrypts(type(serde)):
            self._says, self._cipher = serde.serde, serde.cipher
        classes.replaces(_SEALED, Serialized, PlainShape(_parts_of, self._open))
        self.codec = Codec(classes)
        self.messages = classes.messages

    def allowing(self, more: Collection[tuple[str, ...]], serde: SerializerProtocol | None) -> Values:
        """Return the same for more classes."""
        return Values(self.classes.allowing(more), serde)

    # ---- whole values

    def dump(self, value: Any) -> bytes:
        """Return the bytes to store of a value that is kept as one.

        Raises:
            InvalidError: It would not come back; its path is named.
        """
        return pack_object(self.codec.canonical(value if self.serde is None else self._seal(value)))

    def load(self, stored: bytes, place: str) -> Any:
        """Return the value.

        Raises:
            InvalidError: An object of a class that nobody allowed is in it.
            CorruptError: Nobody wrote it.
        """
        return self.opened(self.codec.assemble(unpack_object(stored, place), {}))

    def called(self, channel: str) -> str:
        """Return what a channel is called in the state: nothing readable, if a serializer encrypts."""
        return sha256(channel.encode()).hexdigest()[:16] if self.is_encrypted else channel

    # ---- what tells a value

    def told(self, value: Any) -> bytes:
        """Return an encoding that no two values share; with a serializer, all that it says of the value.

        What `EncryptedSerializer` encrypts is told before: it says something else each time.

        Raises:
            InvalidError: The value would not come back; its path is named.
        """
        if self._says is None:
            return self.codec.canonical(value)
        kind, data = self._says.dumps_typed(value)
        return self.codec.canonical([kind, bytes(data)])

    def told_message(self, message: Any) -> bytes:
        """Return what tells a message: its attributes; a serializer may say more."""
        return self.codec.canonical(message.__dict__) if self.serde is None else self.told(message)

    def said(self, told: bytes) -> Serialized:
        """Return what a serializer has said, of what tells the value."""
        return Serialized(*msgspec.msgpack.decode(told, type=tuple[str, bytes]))

    # ---- values in parts

    def planted(self, told: bytes) -> MerkleValue:
        """Return the Merkle form of a value, of what tells it."""
        return replanted(told) if self.serde is None else self.to_merkle(self.said(told))

    def to_merkle(self, value: Any) -> MerkleValue:
        """Return the Merkle form of a value that stands by itself, or in a list."""
        if self.serde is None:
            return self.codec.to_merkle(value)
        return MerkleValue(self.codec.canonical(self._seal(value)), {})

    def plant_whole(self, items: list[Any]) -> MerkleValue:
        """Return the Merkle form of a channel's list by its items, each for itself."""
        if self.serde is None:
            return self.to_merkle(items)
        return _at_hand(closed(LIST_STYLE, [item(self.to_merkle(one).encoding) for one in items]))

    def assemble(self, encoding: bytes, objects: Mapping[bytes, bytes], copies: Copies | None = None) -> Any:
        """Return a channel's value. Messages that were decoded before come as copies."""
        read_leaves = None if copies is None or self.serde is not None else copies.read
        value = merkle.assemble(encoding, objects, self._reader, read_leaves)
        if self.serde is not None and kind_of(value) is list:
            return [self.opened(one) for one in value]
        return self.opened(value)

    def _reader(self, resolve: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
        """Return what decodes, messages in the fewest steps: there are thousands of them in a state."""
        leaves = {**LEAF_READERS, TAG: resolve}
        others = ObjectReader(self.classes, _FORMS, leaves=leaves)

        def read_object(data: bytes) -> Any:
            build = builders.get(data[2 : 2 + (data[1] & _SHORT_TEXT)]) if data[0] == _THREE else None
            return others.read(_object(data)) if build is None else build(read(data)[2], ())

        builders = self.classes.builders
        reader = ObjectReader(self.classes, _FORMS, leaves={**leaves, OBJECT: read_object})
        read = reader.decode
        return reader.read

    def opened(self, value: Any) -> Any:
        """Return what a serializer has given; if that encrypts, nothing else passes.

        Raises:
            CorruptError: The value was not encrypted.
        """
        if type(value) is _Opened:
            return value.value
        if self.is_encrypted:
            raise CorruptError(
                "a value stands here that was never encrypted, under a serializer that encrypts; "
                "somebody else wrote it, or it is from before: read it without"
            )
        return value

    def _seal(self, value: Any) -> Serialized:
        assert self._says is not None
        said = value if type(value) is Serialized else Serialized(*self._says.dumps_typed(value))
        if self._cipher is None:
            return said
        name, data = self._cipher.encrypt(said.data)
        return Serialized(f"{said.type}+{name}", data)

    def _open(self, fields: Mapping[str, Any]) -> _Opened:
        kind, data = fields["type"], fields["data"]
        if self.serde is None:
            raise InvalidError(f"a serializer stored {kind!r} here; give the saver the same, serde=")
        if self.is_encrypted and "+" not in kind:
            raise CorruptError(f"a value of {kind!r} stands here that was never encrypted")
        return _Opened(self.serde.loads_typed((kind, data)))


def _only_encrypts(kind: type[EncryptedSerializer]) -> bool:
    """Whether it encrypts what its inner serializer says, and does nothing else."""
    return kind.dumps_typed is EncryptedSerializer.dumps_typed


def _object(data: bytes) -> bytes:
    """Return the encoding of an object whose parts these are."""
    return ormsgpack.packb(ormsgpack.Ext(OBJECT, data))


def kind_of(value: object) -> Any:
    """Return the class of a value."""
    return type(value)


def _parts_of(value: Serialized) -> dict[str, Any]:
    return {"type": value.type, "data": bytes(value.data)}


def _at_hand(work: Fetching[MerkleValue]) -> MerkleValue:
    """Return the result of work that has all it needs."""
    try:
        next(work)
    except StopIteration as end:
        made: MerkleValue = end.value
        return made
    raise AssertionError("nothing of a new list is stored yet")
