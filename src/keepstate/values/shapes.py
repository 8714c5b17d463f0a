"""Conversion of objects to named fields and back, for each kind of class.

A stored field that the class does not have, or a missing one without a default, is an error of the reader:
the class changed without a new version.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
from collections.abc import Callable, Collection, Mapping
from operator import attrgetter
from typing import Any, Final, Protocol

import msgspec

from keepstate.errors import InvalidError
from keepstate.values import standard

Restore = Callable[[Any, str, Any], None]
"""Sets an attribute past `frozen` and past validators."""

_BUILTINS: Final = (str, int, float, complex, bytes, bytearray, list, dict, set, frozenset, tuple)


class Shape(Protocol):
    """Converts objects of one class to fields and back."""

    def fields(self, value: Any) -> dict[str, Any]:
        """Return the object's fields by name.

        Raises:
            InvalidError: The object would not come back equal.
        """
        ...

    def unset(self, value: Any) -> list[str]:
        """Return the fields that hold a default because they were never set, if the class tracks that."""
        return []

    def build(self, fields: Mapping[str, Any], unset: Collection[str]) -> Any:
        """Return an object of the class with exactly these fields; any error of the class is raised."""
        ...


def shape_of(kind: Any) -> Shape:
    """Return the shape of a class.

    Raises:
        InvalidError: Its objects cannot be created from their fields alone, or the kind of class is not
            supported.
    """
    name = f"{kind.__module__}.{kind.__qualname__}"
    if issubclass(kind, enum.Enum):
        return _FlagShape(kind) if issubclass(kind, enum.Flag) else _EnumShape(kind)
    if hasattr(kind, "_fields") and issubclass(kind, tuple):
        return _NamedTupleShape(kind)
    if issubclass(kind, _BUILTINS):
        raise InvalidError(
            f"{name} is a builtin container or scalar with a new name; give it fields to register it"
        )
    if issubclass(kind, msgspec.Struct):
        return _StructShape(kind)
    if hasattr(kind, "__pydantic_fields__") and hasattr(kind, "model_construct"):
        return _PydanticShape(kind)
    if hasattr(kind, "__attrs_attrs__"):
        return _attrs_shape(kind)
    if dataclasses.is_dataclass(kind):
        return _dataclass_shape(kind)
    if issubclass(kind, BaseException):
        return ExceptionShape(kind)
    raise InvalidError(
        f"{name} cannot be registered; make it a dataclass, NamedTuple, Enum, msgspec Struct, attrs or "
        "pydantic class, or an exception"
    )


class _EnumShape(Shape):
    """An enum. A member is stored by name, because `auto()` values change when a member is added."""

    def __init__(self, kind: type[enum.Enum]) -> None:
        self._kind = kind

    def fields(self, value: enum.Enum) -> dict[str, Any]:
        return {"name": value.name}

    def build(self, fields: Mapping[str, Any], unset: Collection[str]) -> enum.Enum:
        _check_known(fields, ("name",))
        return self._kind[fields["name"]]


class _FlagShape(Shape):
    """A flag. A combination is stored by the names of its members."""

    def __init__(self, kind: type[enum.Flag]) -> None:
        self._kind = kind

    def fields(self, value: enum.Flag) -> dict[str, Any]:
        names = [member.name for member in self._kind if member in value and member.value]
        if self._combined(names) != value:
            raise InvalidError(f"{value!r} has bits without a name; name them in the class")
        return {"names": names}

    def build(self, fields: Mapping[str, Any], unset: Collection[str]) -> enum.Flag:
        _check_known(fields, ("names",))
        return self._combined(fields["names"])

    def _combined(self, names: Collection[Any]) -> enum.Flag:
        combined = self._kind(0)
        for name in names:
            combined |= self._kind[name]
        return combined


class ExceptionShape(Shape):
    """An exception, stored as its arguments and attributes; a custom `__init__` does not run again."""

    def __init__(self, kind: type[BaseException]) -> None:
        self._kind = kind

    def fields(self, value: BaseException) -> dict[str, Any]:
        """Return arguments and attributes."""
        return standard.exception_fields(value)

    def build(self, fields: Mapping[str, Any], unset: Collection[str]) -> BaseException:
        """Return the exception."""
        _check_known(fields, ("args", "attributes"))
        return standard.exception_of(self._kind, fields["args"], fields["attributes"])


class _FieldsShape(Shape):
    """A class with a fixed set of attributes."""

    def __init__(
        self, kind: type, names: Collection[str], arguments: Mapping[str, str], restore: Restore | None
    ) -> None:
        self._kind = kind
        self._names = tuple(names)
        self._known = frozenset(names)
        self._arguments = arguments
        self._renamed = any(name != argument for name, argument in arguments.items())
        self._restore = restore
        self._values: Callable[[Any], Any] = attrgetter(*names) if len(self._names) > 1 else self._few

    def fields(self, value: Any) -> dict[str, Any]:
        try:
            return dict(zip(self._names, self._values(value), strict=True))
        except AttributeError:
            held = {name: getattr(value, name) for name in self._names if hasattr(value, name)}
            _check_complete(self._arguments, held)
            return held

    def build(self, fields: Mapping[str, Any], unset: Collection[str]) -> Any:
        if not self._known >= fields.keys():
            _check_known(fields, self._names)
        if self._restore is None:
            arguments = (
                {self._arguments[name]: value for name, value in fields.items()} if self._renamed else fields
            )
            return self._kind(**arguments)
        given = {argument: fields[name] for name, argument in self._arguments.items() if name in fields}
        made = self._kind(**given)
        for name, value in fields.items():
            self._restore(made, name, value)
        return made

    def _few(self, value: Any) -> tuple[Any, ...]:
        return tuple(getattr(value, name) for name in self._names)


class _NamedTupleShape(_FieldsShape):
    def __init__(self, kind: Any) -> None:
        super().__init__(kind, kind._fields, {name: name for name in kind._fields}, None)


class _StructShape(_FieldsShape):
    def __init__(self, kind: type[msgspec.Struct]) -> None:
        names = kind.__struct_fields__
        restore = msgspec.structs.force_setattr if hasattr(kind, "__post_init__") else None
        super().__init__(kind, names, {name: name for name in names}, restore)

    def fields(self, value: Any) -> dict[str, Any]:
        fields = super().fields(value)
        return {name: held for name, held in fields.items() if held is not msgspec.UNSET}


class _PydanticShape(Shape):
    """A pydantic model, created without validation, because the stored value was validated on write."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self._names = frozenset(kind.model_fields)
        self._open = kind.model_config.get("extra") == "allow"

    def fields(self, value: Any) -> dict[str, Any]:
        fields = {name: value.__dict__[name] for name in self._kind.model_fields if name in value.__dict__}
        _check_complete(self._names, fields)
        return {**fields, **(value.__pydantic_extra__ or {}), **(value.__pydantic_private__ or {})}

    def unset(self, value: Any) -> list[str]:
        return sorted(self._names - value.__pydantic_fields_set__)

    def build(self, fields: Mapping[str, Any], unset: Collection[str]) -> Any:
        private = {name: value for name, value in fields.items() if name in self._kind.__private_attributes__}
        public = {name: value for name, value in fields.items() if name not in private}
        if not self._open:
            _check_known(public, self._names)
        required = [name for name, field in self._kind.model_fields.items() if field.is_required()]
        if missing := [name for name in required if name not in public]:
            raise ValueError(f"the fields {missing} are not stored and have no default")
        given = set(public) - set(unset)
        made = self._kind.model_construct(_fields_set=given, **public)
        # What `model_post_init` did is done again; what is stored came after it.
        made.__dict__.update((name, value) for name, value in public.items() if name in self._names)
        object.__setattr__(made, "__pydantic_fields_set__", given)
        for name, value in private.items():
            made.__pydantic_private__[name] = value
        return made


def _dataclass_shape(kind: Any) -> Shape:
    fields = dataclasses.fields(kind)
    arguments = {field.name: field.name for field in fields if field.init}
    generated = "__dataclass_params__" in vars(kind) and kind.__dataclass_params__.init
    plain = generated and not hasattr(kind, "__post_init__") and len(arguments) == len(fields)
    _check_constructor(kind, arguments)
    return _FieldsShape(
        kind, [field.name for field in fields], arguments, None if plain else object.__setattr__
    )


def _attrs_shape(kind: Any) -> Shape:
    fields = kind.__attrs_attrs__
    arguments = {field.name: field.alias for field in fields if field.init}
    hooks = hasattr(kind, "__attrs_post_init__") or hasattr(kind, "__attrs_pre_init__")
    plain = not hooks and len(arguments) == len(fields) and not any(field.converter for field in fields)
    _check_constructor(kind, arguments)
    return _FieldsShape(
        kind, [field.name for field in fields], arguments, None if plain else object.__setattr__
    )


def _check_constructor(kind: type, arguments: Mapping[str, str]) -> None:
    for parameter in inspect.signature(kind).parameters.values():
        open_ended = parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        if (
            not open_ended
            and parameter.default is parameter.empty
            and parameter.name not in arguments.values()
        ):
            raise InvalidError(
                f"{kind.__module__}.{kind.__qualname__} cannot be made from its fields alone: its argument "
                f"{parameter.name!r} is not a field and has no default"
            )


def _check_complete(needed: Collection[str], held: Mapping[str, Any]) -> None:
    if missing := [name for name in needed if name not in held]:
        raise InvalidError(f"its fields {missing} are not set; set them before storing it")


def _check_known(fields: Mapping[str, Any], known: Collection[str]) -> None:
    if unknown := sorted(fields.keys() - known):
        raise ValueError(f"the fields {unknown} are stored and the class has {sorted(known)}")
