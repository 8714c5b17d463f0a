"""Encodes and decodes channel values: by keepstate's codec, or by a serializer of LangGraph.

The codec creates objects of known classes only (`classes`), and raises for all others. With a serializer,
each value and each item of a list is stored as the serializer's bytes; with an encrypting one, nothing else.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import Any, Final, cast

import msgspec
import ormsgpack
from langchain_core.messages import BaseMessage
from langgraph.checkpoint.serde.base import CipherProtocol, SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from keepstate.adapters.langgraph.classes import Classes
from keepstate.adapters.langgraph.shapes import MESSAGES, PlainShape
from keepstate.engine.history.objects import pack_object, unpack_object
from keepstate.errors import CorruptError, InvalidError
from keepstate.values import merkle
from keepstate.values.codec import Codec
from keepstate.values.contents import close_contents, split_objects
from keepstate.values.decode import ObjectReader, Reader
from keepstate.values.merkle import MerkleValue, Read
from keepstate.values.nodes import LIST_STYLE, item
from keepstate.values.refs import TAG, Fetching
from keepstate.values.types import LEAF_READERS, OBJECT

_SEALED: Final = "langgraph.serialized"
SAID: Final = 0x92
"""The first byte of the encoding of a serializer's output: an array of two."""
_THREE: Final = 0x93
_SHORT_TEXT: Final = 0x1F
"""The first bytes of an object's parts: an array of three, and a name of up to 31 bytes."""
_FORMS: Final = Reader()
_FIXED: Final = frozenset({str, int, float, bool, bytes, type(None)})
_MANY: Final = 4_096
"""The number of leaves of lists to cache, of about 16 items each."""

Copy = Callable[[], Any]
_set: Final = object.__setattr__


class Serialized:
    """A serializer's output for a value.

    Args:
        type: The serializer's name of the format.
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
    """Encoder and decoder of the values in checkpoints.

    Args:
        classes: The classes whose objects may come back.
        serde: A serializer to use instead of keepstate's codec.
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
        """Return an encoder with more allowed classes."""
        return Values(self.classes.allowing(more), serde)

    # ---- whole values

    def dump(self, value: Any) -> bytes:
        """Return the stored bytes of a value that is not split.

        Raises:
            InvalidError: It would not come back; the error names its path.
        """
        return pack_object(self.codec.canonical(value if self.serde is None else self._seal(value)))

    def load(self, stored: bytes, where: str) -> Any:
        """Return the value of stored bytes.

        Raises:
            InvalidError: It contains an object of a class that is not allowed.
            CorruptError: The bytes are damaged.
        """
        return self.opened(self.codec.assemble(unpack_object(stored, where), {}))

    def called(self, channel: str) -> str:
        """Return the stored name of a channel: a digest, if the serializer encrypts."""
        return sha256(channel.encode()).hexdigest()[:16] if self.is_encrypted else channel

    # ---- marks

    def mark(self, value: Any) -> bytes:
        """Return an encoding that is different for different values; a serializer's output, if there is one.

        For `EncryptedSerializer` it is the output before encryption, which differs each time.

        Raises:
            InvalidError: The value would not come back; the error names its path.
        """
        if self._says is None:
            return self.codec.canonical(value)
        kind, data = self._says.dumps_typed(value)
        return self.codec.canonical([kind, bytes(data)])

    def mark_message(self, message: Any) -> bytes:
        """Return the mark of a message: the encoding of its attributes, or a serializer's output."""
        return self.codec.canonical(message.__dict__) if self.serde is None else self.mark(message)

    def serialized(self, mark: bytes) -> Serialized:
        """Return a serializer's output from the mark of the value."""
        return Serialized(*msgspec.msgpack.decode(mark, type=tuple[str, bytes]))

    # ---- split values

    def mark_to_merkle(self, mark: bytes) -> MerkleValue:
        """Return the Merkle form of a value from its mark."""
        return split_objects(mark) if self.serde is None else self.to_merkle(self.serialized(mark))

    def to_merkle(self, value: Any) -> MerkleValue:
        """Return the Merkle form of a value, or of an item of a list."""
        if self.serde is None:
            return self.codec.to_merkle(value)
        return MerkleValue(self.codec.canonical(self._seal(value)), {})

    def list_to_merkle(self, items: list[Any]) -> MerkleValue:
        """Return the Merkle form of a channel's list; a serializer's items are encoded one by one."""
        if self.serde is None:
            return self.to_merkle(items)
        return _finish(close_contents(LIST_STYLE, [item(self.to_merkle(one).encoding) for one in items]))

    def assemble(
        self, encoding: bytes, objects: Mapping[bytes, bytes], copies: MessageCopies | None = None
    ) -> Any:
        """Return a channel's value. Cached messages are copied."""
        read_leaves = None if copies is None or self.serde is not None else copies.read
        value = merkle.assemble(encoding, objects, self._reader, read_leaves)
        if self.serde is not None and kind_of(value) is list:
            return [self.opened(one) for one in value]
        return self.opened(value)

    def _reader(self, resolve: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
        """Return a decoder with a short path for messages, because a state has thousands of them."""
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
        """Return the value that a serializer decoded.

        Raises:
            CorruptError: The serializer encrypts, and the value was not encrypted.
        """
        if type(value) is _Opened:
            return value.value
        if self.is_encrypted:
            raise CorruptError(
                "this value was never encrypted, but the serializer encrypts; another writer or an older "
                "configuration stored it: read it without the serializer"
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
            raise CorruptError(f"this value of {kind!r} was never encrypted")
        return _Opened(self.serde.loads_typed((kind, data)))


def _only_encrypts(kind: type[EncryptedSerializer]) -> bool:
    """Return whether a serializer only encrypts the output of its inner serializer."""
    return kind.dumps_typed is EncryptedSerializer.dumps_typed


def _object(data: bytes) -> bytes:
    """Return the encoding of an object from its parts."""
    return ormsgpack.packb(ormsgpack.Ext(OBJECT, data))


def kind_of(value: object) -> Any:
    """Return the class of a value."""
    return type(value)


def _parts_of(value: Serialized) -> dict[str, Any]:
    return {"type": value.type, "data": bytes(value.data)}


def _finish(work: Fetching[MerkleValue]) -> MerkleValue:
    """Return the result of work that fetches nothing."""
    try:
        next(work)
    except StopIteration as end:
        made: MerkleValue = end.value
        return made
    raise AssertionError("nothing of a new list is stored yet")


# ---- copies of messages


@contextmanager
def without_collection() -> Generator[None]:
    """Pause garbage collection while many objects are created.

    A thousand messages are 6,000 objects. Python searches for cycles after every 700 new objects, and after
    some rounds among all objects of the process, which took longer than decoding them. Only the thresholds
    are changed, because another thread may use `gc.disable` at the same time.
    """
    before = gc.get_threshold()
    if not gc.isenabled() or before[0] == 0:
        yield
        return
    gc.set_threshold(0)
    try:
        yield
    finally:
        if gc.get_threshold()[0] == 0:
            gc.set_threshold(*before)


class MessageCopies:
    """Cache of the decoded leaves of lists for one call, given out as copies.

    The checkpoints of a conversation share most messages. Decoding one takes several times as long as
    copying it, because most of its values are immutable.
    """

    def __init__(self) -> None:
        self._by_leaf: dict[bytes, list[Copy] | None] = {}

    def read(self, read: Read, leaves: Sequence[bytes]) -> list[Any]:
        """Return the items of a list, as objects that no other caller has."""
        items: list[Any] = []
        for leaf in leaves:
            if leaf not in self._by_leaf:
                if len(self._by_leaf) >= _MANY:
                    self._by_leaf = {}
                self._by_leaf[leaf] = _copies(read(leaf))
            copies = self._by_leaf[leaf]
            items += read(leaf) if copies is None else [copy() for copy in copies]
        return items


def _copies(items: Sequence[Any]) -> list[Copy] | None:
    """Return a copying function for each item; None if one of them cannot be copied."""
    copies: list[Copy] = []
    for one in items:
        copy = _message(one) if type(one) in MESSAGES() else _plain(one)
        if copy is None:
            return None
        copies.append(copy)
    return copies


def _message(one: BaseMessage) -> Copy | None:
    kind, held = cast("Any", type(one)), one.__dict__
    groups = {name: _plain(value) for name, value in held.items() if type(value) not in _FIXED}
    extra = _plain(one.__pydantic_extra__ or {})
    makers = [(name, copy) for name, copy in groups.items() if copy is not None]
    if extra is None or len(makers) < len(groups):
        return None
    names, new = one.__pydantic_fields_set__, kind.__new__

    def copy() -> Any:
        made, own = new(kind), held.copy()
        for name, make in makers:
            own[name] = make()
        _set(made, "__dict__", own)
        _set(made, "__pydantic_fields_set__", names.copy())
        _set(made, "__pydantic_extra__", extra())
        _set(made, "__pydantic_private__", None)
        return made

    return copy


def _plain(value: Any) -> Copy | None:
    """Return a copying function for a value of texts, numbers, lists and dicts; None for other values."""
    kind = cast("Any", type(value))
    if kind in _FIXED:
        return lambda: value
    if kind is not list and kind is not dict:
        return None
    if not value:
        return cast("Copy", kind)
    parts = [_plain(one) for one in (value if kind is list else value.values())]
    makers = [part for part in parts if part is not None]
    if len(makers) < len(parts):
        return None
    if kind is list:
        return lambda: [make() for make in makers]
    pairs = [*zip(value, makers, strict=True)]
    return lambda: {name: make() for name, make in pairs}
