"""Values of a model: what is stored of them is plain, and what is no such value is refused on both ways.

A model is a dataclass, msgspec Struct or pydantic class; ranges in its annotations count. What is stored are
its fields by name, so that no class need be registered, and a field added later gets its default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Generic, TypeVar, cast

import msgspec

from keepstate.errors import InvalidError, NotFoundError

M = TypeVar("M")


class Model(Generic[M]):
    """Takes values of a model apart and puts them together.

    Args:
        kind: The class.
    """

    def __init__(self, kind: type[M]) -> None:
        marks = {"model_validate", "__struct_fields__", "__dataclass_fields__"}.intersection(dir(kind))
        self._is_pydantic = "model_validate" in marks
        if not marks or not hasattr(kind, "__mro__"):
            raise InvalidError(
                f"{kind!r} is no model; give a dataclass, a msgspec Struct or a pydantic class"
            )
        self.kind = kind

    @property
    def name(self) -> str:
        """Returns what the model is called."""
        return self.kind.__name__

    def fields(self, value: object, what: str, stored: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Returns what is stored of a value: an object of the model, or a dict of its fields.

        Args:
            value: The object, or fields.
            what: What it is called in refusals.
            stored: What stands in place of the fields that are not given; what it has beside is kept.

        Raises:
            InvalidError: It is no such value, or has a field more; it names what differs.
        """
        given: Any = self._taken_apart(value) if isinstance(value, self.kind) else value
        if isinstance(given, Mapping):
            plain = dict(cast("Mapping[str, Any]", given))
            if more := sorted(map(str, plain.keys() - self._names())):
                raise InvalidError(f"Invalid {what}: {self.name} has no field {', '.join(map(repr, more))}")
            given = {**(stored or {}), **plain}
        taken: dict[str, Any] = self._taken_apart(self.value(given, what))
        return {**(stored or {}), **taken}

    def value(self, fields: object, what: str) -> M:
        """Returns the value with these fields.

        Raises:
            InvalidError: They make none; it names what differs.
        """
        kind: Any = self.kind
        try:
            made: M = kind.model_validate(fields) if self._is_pydantic else msgspec.convert(fields, kind)
            return made
        except (
            ValueError,
            TypeError,
        ) as error:  # of msgspec, of pydantic, and of what a class itself asks for
            told = " ".join(str(error).split())
            raise InvalidError(f"Invalid {what}: it is no {self.name}: {told}") from error

    def empty(self, what: str) -> M:
        """Returns the value without any field given.

        Raises:
            NotFoundError: The model has fields without a default.
        """
        try:
            return self.value({}, what)
        except InvalidError as error:
            raise NotFoundError(
                f"{what} is absent, and {self.name} has no value without fields; put one"
            ) from error

    def _taken_apart(self, value: Any) -> Any:
        return value.model_dump(mode="json") if self._is_pydantic else msgspec.to_builtins(value)

    def _names(self) -> set[str]:
        kind: Any = self.kind
        if self._is_pydantic:
            return set(kind.model_fields)
        return (
            set(kind.__struct_fields__)
            if hasattr(kind, "__struct_fields__")
            else {f.name for f in fields(kind)}
        )


class PlainModel(Model[M]):
    """A model whose fields are stored as they are: dicts in them come back equal, and of the same types."""

    def _taken_apart(self, value: Any) -> Any:
        return {field.name: getattr(value, field.name) for field in fields(value)}
