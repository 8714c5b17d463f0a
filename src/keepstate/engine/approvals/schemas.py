"""Schemas of answers: a part of JSON Schema, stored with the approval and checked where it is answered.

A schema is data, because another process checks the answer, which knows no class of the asker. A word that is
not supported is refused when the approval is asked: no rule of a schema is ignored. Patterns are not
supported, and a check takes time in proportion to the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from keepstate.errors import InvalidError

_DEPTH: Final = 20
_NOTES: Final = ("title", "description", "default", "examples")
_SHOWN: Final = 60


def _is_number(value: object) -> bool:
    return type(value) in (int, float)


def _is_size(value: object) -> bool:
    return type(value) is int and value >= 0


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(type(each) is str for each in cast("list[object]", value))


def _is_list(value: object) -> bool:
    return isinstance(value, list) and bool(cast("list[object]", value))


def _is_flag(value: object) -> bool:
    return type(value) is bool


_TYPES: Final[Mapping[str, Callable[[object], bool]]] = {
    "string": lambda value: type(value) is str,
    "integer": lambda value: type(value) is int,
    "number": _is_number,
    "boolean": _is_flag,
    "null": lambda value: value is None,
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}
_WORDS: Final[Mapping[str, tuple[str, Callable[[object], bool]]]] = {
    "enum": ("", _is_list),
    "const": ("", lambda _: True),
    "minLength": ("string", _is_size),
    "maxLength": ("string", _is_size),
    "minimum": ("number", _is_number),
    "maximum": ("number", _is_number),
    "minItems": ("array", _is_size),
    "maxItems": ("array", _is_size),
    "items": ("array", lambda _: True),
    "properties": ("object", lambda value: isinstance(value, dict)),
    "required": ("object", _are_texts),
    "additionalProperties": ("object", _is_flag),
}
"""The words of a schema, with the type of values that each is for, and the check of what it says."""


def check_schema(schema: object) -> dict[str, Any]:
    """Return a schema as plain data.

    Raises:
        InvalidError: It is not a schema, or has a word that is not supported.
    """
    return _checked(schema, "schema", 0)


def _checked(schema: object, path: str, depth: int) -> dict[str, Any]:
    if not isinstance(schema, Mapping):
        raise InvalidError(
            f"`{path}` is {_format(schema)}; give a JSON Schema as a dict, such as {{'type': 'string'}}"
        )
    if depth > _DEPTH:
        raise InvalidError(f"`{path}` is over {_DEPTH} levels deep; give a flatter schema")
    given: dict[Any, Any] = {**cast("Any", schema)}
    kind = given.get("type")
    if kind not in _TYPES and not ("type" not in given and ("enum" in given or "const" in given)):
        raise InvalidError(f"`{path}` has the type {_format(kind)}; it is one of {', '.join(_TYPES)}")
    for word, said in given.items():
        if word == "type" or word in _NOTES:
            continue
        wanted, is_fit = _WORDS.get(word, ("", None))
        if is_fit is None or (wanted and wanted != kind and (wanted, kind) != ("number", "integer")):
            known = ", ".join(("type", *_WORDS, *_NOTES))
            raise InvalidError(f"`{path}` has {_format(word)}, which is not supported here; known: {known}")
        if not is_fit(said):
            raise InvalidError(
                f"`{path}` has {word!r} with {_format(said)}, which JSON Schema does not allow"
            )
    if "items" in given:
        given["items"] = _checked(given["items"], f"{path}.items", depth + 1)
    if "properties" in given:
        parts: dict[object, object] = given["properties"]
        for name in parts:
            if type(name) is not str:
                raise InvalidError(f"`{path}.properties` has the name {_format(name)}; give a str")
        given["properties"] = {
            name: _checked(part, f"{path}.properties.{name}"[:200], depth + 1) for name, part in parts.items()
        }
    return given


def check_answer(value: object, schema: Mapping[str, Any]) -> None:
    """Raise `InvalidError`, with the path of the part at fault, unless a value fits a schema."""
    try:
        _fit(value, schema, "value", {})
    except RecursionError:
        raise InvalidError("`value` has too many levels; give a flatter one", path="value") from None


_Enums = dict[int, frozenset[object]]
"""The values of each enum, by the identity of its schema: items of a list share one."""


def _fit(value: object, schema: Mapping[str, Any], path: str, enums: _Enums) -> None:
    kind = schema.get("type")
    if kind is not None and not _TYPES[kind](value):
        raise _error(path, value, f"the approval asks for {kind}")
    if "enum" in schema:
        known = enums.get(id(schema))
        if known is None:
            known = enums[id(schema)] = frozenset(map(_comparable, schema["enum"]))
        if _comparable(value) not in known:
            raise _error(path, value, f"it is one of {_format(schema['enum'])}")
    if "const" in schema and _comparable(value) != _comparable(schema["const"]):
        raise _error(path, value, f"it has to be {_format(schema['const'])}")
    if type(value) is str:
        _fit_size(len(value), schema, "minLength", "maxLength", path, "characters")
    elif _is_number(value):
        number = cast("float", value)
        low, high = schema.get("minimum"), schema.get("maximum")
        # A comparison with NaN is false, so it fits no bound.
        if (low is not None and not number >= low) or (high is not None and not number <= high):
            bounds = [f"at least {low}"] * (low is not None) + [f"at most {high}"] * (high is not None)
            raise _error(path, value, f"it has to be {' and '.join(bounds)}")
    elif isinstance(value, list):
        rows = cast("list[object]", value)
        _fit_size(len(rows), schema, "minItems", "maxItems", path, "items")
        if "items" in schema:
            for index, each in enumerate(rows):
                _fit(each, schema["items"], f"{path}[{index}]", enums)
    elif isinstance(value, dict):
        _fit_fields(cast("dict[object, object]", value), schema, path, enums)


def _fit_fields(value: dict[object, object], schema: Mapping[str, Any], path: str, enums: _Enums) -> None:
    known = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            raise InvalidError(f"`{path}` lacks {name!r}, which the approval asks for", path=path)
    for name, each in value.items():
        if type(name) is not str:
            raise InvalidError(f"`{path}` has the name {_format(name)}; give a str", path=path)
        if name in known:
            _fit(each, known[name], f"{path}.{name[:_SHOWN]}", enums)
        elif not schema.get("additionalProperties", True):
            raise InvalidError(f"`{path}` has {_format(name)}, which the approval does not know", path=path)


def _fit_size(size: int, schema: Mapping[str, Any], least: str, most: str, path: str, what: str) -> None:
    low, high = schema.get(least, 0), schema.get(most)
    if size < low or (high is not None and size > high):
        raise InvalidError(
            f"`{path}` has {size} {what}; it has {low} to {'any number' if high is None else high}", path=path
        )


def _comparable(value: object) -> object:
    """Return a hashable object that is equal for values that are equal in JSON, where True is not 1."""
    if isinstance(value, bool):
        return bool, value
    if isinstance(value, list):
        return list, tuple(map(_comparable, cast("list[object]", value)))
    if isinstance(value, dict):
        fields = cast("dict[object, object]", value)
        return dict, frozenset((name, _comparable(each)) for name, each in fields.items())
    try:
        hash(value)
    except TypeError:  # a value that only Python has, such as a set in a schema
        return type(value), repr(value)
    return value


def _error(path: str, value: object, told: str) -> InvalidError:
    return InvalidError(f"`{path}` is {_format(value)}; {told}", path=path)


def _format(value: object) -> str:
    text = repr(cast("list[object]", value)[:_SHOWN] if isinstance(value, list) else value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
