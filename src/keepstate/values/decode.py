"""Bytes to values. Only registered classes are ever called; damaged bytes raise only `CorruptError`."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Final

import msgspec

from keepstate.errors import CorruptError, InvalidError, KeepstateError
from keepstate.values import limits, standard, types
from keepstate.values.builtin import TYPE, UNSET, Record, object_form, parts_form
from keepstate.values.guards import decoder, is_crowded, nests_deeper
from keepstate.values.schema import Registration, Registry
from keepstate.values.types import kind_of

_DAMAGE: Final = (ValueError, TypeError, LookupError, ArithmeticError, struct.error, msgspec.MsgspecError)
"""The errors of decoders for bytes that were never written."""
_SETS: Final = frozenset({types.SET, types.FROZENSET})
_KEYED: Final = _SETS | {types.MAP, types.ORDERED, types.COUNTER, types.DEFAULT}
"""The containers that cannot hold two equal forms, as members or keys."""
_MAP_HEADS: Final = frozenset(bytes((head,)) for head in (*range(0x80, 0x90), 0xDE, 0xDF))
"""The first byte of fields whose names are UTF-8."""
_GROUPS: Final = frozenset({list, tuple, set, frozenset})
_DEEPEST: Final = 2 * limits.PLAIN_DEPTH + limits.INNER_DEPTH

LeafReaders = Mapping[int, Callable[[bytes], object]]
Fitting = Callable[[Registration, dict[str, Any]], dict[str, Any]]
"""Checks the fields of each object before it is created, and returns those to create it from."""


class _Stored(msgspec.Struct, array_like=True, frozen=True):
    """A stored object. Its fields are decoded once their version is known."""

    name: str
    version: int
    fields: msgspec.Raw
    unset: list[str] = []


_stored: Final = msgspec.msgpack.Decoder(_Stored)


class Reader:
    """Decodes one level of tagged values; `_inner` decodes the next one. Holds no state of any value.

    Objects of classes come back in builtin form, so this reader needs no class.
    """

    def __init__(self, leaves: LeafReaders = types.LEAF_READERS, depth: int = 0) -> None:
        self._leaves, self._depth = leaves, depth
        self.decode = decoder(self._tagged)

    @cached_property
    def _inner(self) -> Reader | None:
        return Reader(self._leaves, self._depth + 1) if self._depth < limits.TAG_DEPTH else None

    def read(self, data: bytes) -> Any:
        """Return the value of an encoding.

        Raises:
            CorruptError: The bytes are not an encoding.
            InvalidError: A class is not registered, or rejects the stored fields.
            UnsupportedError: A class is stored in a newer version than the registered one.
            MissingExtraError: A required package is not installed.
        """
        try:
            return self.decode(data)
        except KeepstateError:
            raise
        except RecursionError:
            if nests_deeper(data, _DEEPEST):
                raise CorruptError("a stored value nests deeper than any that is written") from None
            raise InvalidError("a stored value nests too deep for the room left on the call stack") from None
        except _DAMAGE as error:
            raise CorruptError(f"a stored value is damaged: {error}") from error

    def _tagged(self, tag: int, data: memoryview) -> object:
        leaf = self._leaves.get(tag)
        if leaf is not None:
            return leaf(bytes(data))
        inner = self._inner
        if inner is None:
            raise CorruptError("a stored value nests deeper than any that is written")
        if tag == types.OBJECT:
            return self._object(inner, _stored.decode(data))
        items = inner.decode(data)
        if kind_of(items) is not list:
            raise CorruptError(f"a stored value is damaged: what is tagged {tag} does not contain an array")
        return self._made_of(tag, items)

    def _made_of(self, tag: int, items: list[Any]) -> object:
        """Return a container of these parts, or its parts if members or keys have equal forms."""
        if tag not in _KEYED:
            return _container(tag, items)
        keys = items if tag in _SETS else items[tag == types.DEFAULT :: 2]
        if any(kind_of(key) is Record for key in keys) and is_crowded(keys, as_set=tag in _SETS):
            return parts_form(tag, items)
        made: Any = _container(tag, items)
        return made if len(made) == len(keys) else parts_form(tag, items)

    def _object(self, inner: Reader, stored: _Stored) -> object:
        is_plain = bytes(stored.fields)[:1] in _MAP_HEADS
        return object_form(
            stored.name, stored.version, _fields(inner, stored), stored.unset, is_plain=is_plain
        )


class ObjectReader(Reader):
    """Creates the objects of registered classes.

    `forms` reads the same level in builtin form, which upcasters get.
    """

    def __init__(
        self,
        registry: Registry,
        forms: Reader,
        fitting: Fitting | None = None,
        leaves: LeafReaders = types.LEAF_READERS,
    ) -> None:
        super().__init__(leaves)
        self._registry = registry
        self._forms = forms
        self._fitting = fitting

    @cached_property
    def _inner(self) -> Reader | None:
        forms = self._forms._inner
        return None if forms is None else ObjectReader(self._registry, forms, self._fitting, self._leaves)

    def _made_of(self, tag: int, items: list[Any]) -> object:
        return _container(tag, items)

    def _object(self, inner: Reader, stored: _Stored) -> object:
        known = self._registry.named(stored.name, stored.version)
        if stored.version == known.version:
            return self._build(known, _fields(inner, stored), stored.unset)
        assert self._forms._inner is not None
        return self._revived(known, stored.version, _fields(self._forms._inner, stored), stored.unset)

    def _build(self, known: Registration, fields: dict[str, Any], unset: list[str]) -> object:
        if self._fitting is not None:
            fields = self._fitting(known, fields)
        return known.build(fields, unset)

    def _revived(self, known: Registration, version: int, fields: dict[str, Any], unset: list[str]) -> object:
        upcasted = self._registry.upcast_fields(fields, known, version)
        fields = {name: self._revive(field) for name, field in upcasted.items() if name not in (TYPE, UNSET)}
        return self._build(known, fields, unset)

    def _revive(self, value: Any) -> Any:
        """Return the value with objects in place of their builtin forms."""
        kind = kind_of(value)
        if kind in _GROUPS:
            return kind([self._revive(item) for item in value])
        if kind is dict:
            return {self._revive(key): self._revive(item) for key, item in value.items()}
        if standard.is_standard(kind):
            tag, fixed, items, pairs = standard.parts_of(value)
            revived = [self._revive(part) for part in standard.Parts(tag, fixed, items, pairs).listed()]
            return standard.made_of(tag, revived)
        if kind is Record:
            return self._revive_form(value)
        return value

    def _revive_form(self, form: Record) -> Any:
        listed = form.parts()
        if listed is not None and listed[0] != types.OBJECT:
            tag, parts = listed
            return _container(tag, [self._revive(part) for part in parts])
        if listed is not None:
            name, version, fields, *rest = listed[1]
            unset: list[str] = rest[0] if rest else []
        else:
            (name, version), fields, unset = form.named(), form.fields(), form.unset()
        return self._revived(self._registry.named(name, version), version, fields, unset)


def _container(tag: int, items: list[Any]) -> object:
    if tag == types.TUPLE:
        return tuple(items)
    if tag in types.STANDARD:
        return standard.made_of(tag, items)
    keys = items[::2] if tag == types.MAP else items
    if is_crowded(keys, as_set=tag != types.MAP):
        raise CorruptError("a stored value is damaged: the hashes of its keys were chosen to collide")
    if tag == types.SET:
        return set(items)
    if tag == types.FROZENSET:
        return frozenset(items)
    if tag == types.MAP:
        return dict(zip(keys, items[1::2], strict=True))
    raise CorruptError(f"a stored value is damaged, or newer than this keepstate: nothing is tagged {tag}")


def _fields(inner: Reader, stored: _Stored) -> dict[str, Any]:
    fields: dict[str, Any] = inner.decode(stored.fields)
    if kind_of(fields) is not dict or not all(type(name) is str for name in fields):
        raise CorruptError(f"a stored value is damaged: {stored.name}@{stored.version} has no fields")
    return fields
