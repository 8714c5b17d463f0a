"""Encoding of a model's values as plain fields, and validation in both directions.

A model is a dataclass, msgspec Struct or pydantic class; ranges in its annotations are enforced. The stored
form is a dict of its fields, so the class need not be registered, and a field added later gets its default.
For a registered class the object itself is stored, so that `upcast` updates older versions and `keepstate
migrate` finds them. A value that would not come back equal is rejected.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Generic, TypeVar, cast

import msgspec

from keepstate.errors import InvalidError, NotFoundError
from keepstate.values.schema import CLASSES

M = TypeVar("M")
_MARKS = ("model_validate", "__struct_fields__", "__dataclass_fields__")


class Model(Generic[M]):
    """Encodes and decodes values of a model.

    Args:
        kind: The class.
    """

    def __init__(self, kind: type[M]) -> None:
        marks = [mark for mark in _MARKS if hasattr(kind, mark)]
        if not marks or not hasattr(kind, "__mro__") or _is_array(kind):
            raise InvalidError(
                f"{kind!r} is not a model with named fields. Pass a dataclass, a msgspec Struct or a "
                "pydantic class."
            )
        self.kind, self._is_pydantic = kind, marks[0] == "model_validate"
        self._names = _names_of(kind)
        self._by_alias = _aliases_of(kind, self._names)

    @property
    def name(self) -> str:
        """The name of the model's class."""
        return self.kind.__name__

    def encode_value(self, value: object, label: str, stored: object = None) -> tuple[M, Any]:
        """Return the validated value of an object or a dict of fields, and its stored form.

        Args:
            value: The object, or fields by name or alias.
            label: Name of the value in error messages.
            stored: The stored value before. It supplies fields that are not given, and its unknown fields are
                preserved.

        Raises:
            InvalidError: The value is invalid, has an unknown field, or would not come back equal. The
                message names the difference.
        """
        before = {} if stored is None else self._fields_in(stored)
        given: object = value
        if isinstance(value, self.kind):
            given = self._to_fields(value)
        elif isinstance(value, Mapping):
            given = {**before, **self._resolve_aliases(cast("Mapping[str, Any]", value), label)}
        made = self._construct(given, label)
        whole = value if isinstance(value, self.kind) else made
        if self._is_registered:
            return whole, whole
        encoded = self._to_fields(made)
        again = self._construct(encoded, label)
        if lost := [name for name in self._names if not _is_same(getattr(whole, name), getattr(again, name))]:
            raise InvalidError(
                f"Invalid {label}: field {lost[0]!r} of {self.name} would not come back equal. Register the "
                "class, or use plain values in the field."
            )
        unknown = {name: field for name, field in before.items() if name not in self._names}
        return again, {**unknown, **encoded}

    def decode_value(self, stored: object, label: str) -> M:
        """Return the value of a stored form; without one, the value with all fields at their defaults.

        Raises:
            InvalidError: The stored form is not a valid value. The message names the difference.
            NotFoundError: There is no stored form, and the model has fields without a default.
        """
        if stored is None:
            return self._empty_value(label)
        if isinstance(stored, self.kind):
            self._construct(self._to_fields(stored), label)
            return stored
        return self._construct(stored, label)

    def _empty_value(self, label: str) -> M:
        try:
            return self._construct({}, label)
        except InvalidError as error:
            raise NotFoundError(
                f"{label} does not exist, and {self.name} has fields without a default. Call put() first."
            ) from error

    @property
    def _is_registered(self) -> bool:
        return CLASSES.of(self.kind) is not None

    def _fields_in(self, stored: object) -> dict[str, Any]:
        if isinstance(stored, self.kind):
            return self._to_fields(stored)
        return dict(cast("Mapping[str, Any]", stored)) if isinstance(stored, Mapping) else {}

    def _resolve_aliases(self, given: Mapping[str, Any], label: str) -> dict[str, Any]:
        named = {self._by_alias.get(name, name): value for name, value in given.items()}
        has_more = self._is_pydantic and cast("Any", self.kind).model_config.get("extra") == "allow"
        if not has_more and (more := sorted(map(str, named.keys() - set(self._names)))):
            raise InvalidError(f"Invalid {label}: {self.name} has no field {', '.join(map(repr, more))}")
        return named

    def _construct(self, given: object, label: str) -> M:
        kind: Any = self.kind
        try:
            if self._is_pydantic:
                made: M = kind.model_validate(given, by_alias=True, by_name=True)
            else:
                made = msgspec.convert(self._with_encoded_names(given), kind)
            return made
        except (
            ValueError,
            TypeError,
        ) as error:  # from msgspec, from pydantic, or from a check of the class itself
            reason = " ".join(str(error).split())
            raise InvalidError(f"Invalid {label}: not a valid {self.name}: {reason}") from error

    def _with_encoded_names(self, given: object) -> object:
        """Return fields by the names that msgspec expects."""
        if not self._by_alias or not isinstance(given, Mapping):
            return given
        plain = cast("Mapping[str, Any]", given)
        encoded = {name: alias for alias, name in self._by_alias.items()}
        return {encoded.get(name, name): value for name, value in plain.items()}

    def _to_fields(self, value: Any) -> dict[str, Any]:
        if self._is_pydantic:
            taken: dict[str, Any] = value.model_dump(mode="json", by_alias=False, round_trip=True)
            return taken
        found = {name: getattr(value, name) for name in self._names}
        return {
            name: msgspec.to_builtins(field) for name, field in found.items() if field is not msgspec.UNSET
        }


class PlainModel(Model[M]):
    """A model whose fields are stored unchanged: dicts in them come back equal, with the same types."""

    def _to_fields(self, value: Any) -> dict[str, Any]:
        return {name: getattr(value, name) for name in self._names}


def to_plain_fields(stored: object) -> object:
    """Return a stored state as fields by name, also for an object of a registered class."""
    is_object = CLASSES.of(type(stored)) is not None
    return Model(type(stored))._fields_in(stored) if is_object else stored  # pyright: ignore[reportPrivateUsage]


def _is_array(kind: Any) -> bool:
    return hasattr(kind, "__struct_config__") and kind.__struct_config__.array_like


def _names_of(kind: Any) -> list[str]:
    if hasattr(kind, "model_validate"):
        return list(kind.model_fields)
    return (
        list(kind.__struct_fields__) if hasattr(kind, "__struct_fields__") else [f.name for f in fields(kind)]
    )


def _aliases_of(kind: Any, names: list[str]) -> dict[str, str]:
    """Return the field of each alias."""
    if hasattr(kind, "__struct_fields__"):
        pairs = list(zip(kind.__struct_encode_fields__, names, strict=True))
    elif hasattr(kind, "model_validate"):
        pairs = [
            (alias, name)
            for name, field in kind.model_fields.items()
            for alias in (field.alias, field.validation_alias)
            if isinstance(alias, str)
        ]
    else:
        return {}
    return {alias: name for alias, name in pairs if alias not in names}


def _is_same(one: Any, other: Any) -> bool:
    """Compare two values part by part, because a class of the caller may define no equality."""
    if one is other or (one != one and other != other):  # such as NaN
        return True
    kind = one.__class__
    if kind is other.__class__:
        if any(hasattr(kind, mark) for mark in _MARKS):
            return all(_is_same(getattr(one, name), getattr(other, name)) for name in _names_of(kind))
        if issubclass(kind, dict):
            return one.keys() == other.keys() and all(_is_same(one[key], other[key]) for key in one)
        if issubclass(kind, list | tuple):
            return len(one) == len(other) and all(map(_is_same, one, other))
    return bool(one == other)
