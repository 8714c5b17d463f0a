"""Values of a model: what is stored of them is plain, and what is no such value is refused on both ways.

A model is a dataclass, msgspec Struct or pydantic class; ranges in its annotations count. What is stored are
its fields by name, so that no class need be registered, and a field added later gets its default. Of a class
that is registered the object is stored, so that `upcast` brings older versions up to date and
`keepstate migrate` finds them. What would not come back equal is refused.
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
    """Takes values of a model apart and puts them together.

    Args:
        kind: The class.
    """

    def __init__(self, kind: type[M]) -> None:
        marks = [mark for mark in _MARKS if hasattr(kind, mark)]
        if not marks or not hasattr(kind, "__mro__") or _is_array(kind):
            raise InvalidError(
                f"{kind!r} is no model with named fields; give a dataclass, a msgspec Struct or a pydantic "
                "class"
            )
        self.kind, self._is_pydantic = kind, marks[0] == "model_validate"
        self._names = _names_of(kind)
        self._by_alias = _aliases_of(kind, self._names)

    @property
    def name(self) -> str:
        """Return what the model is called."""
        return self.kind.__name__

    def taken(self, value: object, what: str, stored: object = None) -> tuple[M, Any]:
        """Return the value that an object of the model or a dict of fields makes, and what is stored of it.

        Args:
            value: The object, or fields by name or alias.
            what: What it is called in refusals.
            stored: What has been stored of it: it stands in place of fields that are not given, and what it
                has beside is kept.

        Raises:
            InvalidError: It is no such value, has a field more, or would not come back equal; it names what
                differs.
        """
        before = {} if stored is None else self._fields_in(stored)
        given: object = value
        if isinstance(value, self.kind):
            given = self._taken_apart(value)
        elif isinstance(value, Mapping):
            given = {**before, **self._named(cast("Mapping[str, Any]", value), what)}
        made = self._made(given, what)
        whole = value if isinstance(value, self.kind) else made
        if self._is_registered:
            return whole, whole
        taken = self._taken_apart(made)
        again = self._made(taken, what)
        if lost := [name for name in self._names if not _is_same(getattr(whole, name), getattr(again, name))]:
            raise InvalidError(
                f"Invalid {what}: {lost[0]!r} of {self.name} would not come back as it is; register the "
                "class, or let the field be plain"
            )
        beside = {name: kept for name, kept in before.items() if name not in self._names}
        return again, {**beside, **taken}

    def value(self, stored: object, what: str) -> M:
        """Return the value that something stored is.

        Raises:
            InvalidError: It is none; it names what differs.
        """
        if isinstance(stored, self.kind):
            self._made(self._taken_apart(stored), what)
            return stored
        return self._made(stored, what)

    def empty(self, what: str) -> M:
        """Return the value without any field given.

        Raises:
            NotFoundError: The model has fields without a default.
        """
        try:
            return self._made({}, what)
        except InvalidError as error:
            raise NotFoundError(
                f"{what} is absent, and {self.name} has no value without fields; put one"
            ) from error

    @property
    def _is_registered(self) -> bool:
        return CLASSES.of(self.kind) is not None

    def _fields_in(self, stored: object) -> dict[str, Any]:
        if isinstance(stored, self.kind):
            return self._taken_apart(stored)
        return dict(cast("Mapping[str, Any]", stored)) if isinstance(stored, Mapping) else {}

    def _named(self, given: Mapping[str, Any], what: str) -> dict[str, Any]:
        named = {self._by_alias.get(name, name): value for name, value in given.items()}
        has_more = self._is_pydantic and cast("Any", self.kind).model_config.get("extra") == "allow"
        if not has_more and (more := sorted(map(str, named.keys() - set(self._names)))):
            raise InvalidError(f"Invalid {what}: {self.name} has no field {', '.join(map(repr, more))}")
        return named

    def _made(self, given: object, what: str) -> M:
        kind: Any = self.kind
        try:
            if self._is_pydantic:
                made: M = kind.model_validate(given, by_alias=True, by_name=True)
            else:
                made = msgspec.convert(self._encoded(given), kind)
            return made
        except (
            ValueError,
            TypeError,
        ) as error:  # of msgspec, of pydantic, and of what a class itself asks for
            told = " ".join(str(error).split())
            raise InvalidError(f"Invalid {what}: it is no {self.name}: {told}") from error

    def _encoded(self, given: object) -> object:
        """Return fields by the names that msgspec asks for."""
        if not self._by_alias or not isinstance(given, Mapping):
            return given
        plain = cast("Mapping[str, Any]", given)
        encoded = {name: alias for alias, name in self._by_alias.items()}
        return {encoded.get(name, name): value for name, value in plain.items()}

    def _taken_apart(self, value: Any) -> dict[str, Any]:
        if self._is_pydantic:
            taken: dict[str, Any] = value.model_dump(mode="json", by_alias=False, round_trip=True)
            return taken
        found = {name: getattr(value, name) for name in self._names}
        return {
            name: msgspec.to_builtins(field) for name, field in found.items() if field is not msgspec.UNSET
        }


class PlainModel(Model[M]):
    """A model whose fields are stored as they are: dicts in them come back equal, and of the same types."""

    def _taken_apart(self, value: Any) -> dict[str, Any]:
        return {name: getattr(value, name) for name in self._names}


def plain(stored: object) -> object:
    """Return what is stored of a state as fields by name, also of an object of a registered class."""
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
    """Return the field by each other name that it goes by."""
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
    """Whether two values are equal, part by part: a class of the caller may define no equality."""
    if one is other or (one != one and other != other):  # as what is no number
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
