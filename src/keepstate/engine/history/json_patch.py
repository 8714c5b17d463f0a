"""Differences as a JSON Patch, RFC 6902, for JSON states."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from typing import Any, Final, cast

from keepstate.engine.history.commits import Difference
from keepstate.engine.history.paths import Steps, format_path
from keepstate.errors import InvalidError
from keepstate.values.notebooks import Table

_SCALARS: Final = frozenset({type(None), bool, int, str})


class Differences(Table[Difference]):
    """The differences between two states: a list, which a notebook shows as a table."""

    __slots__ = ()

    def to_json_patch(self) -> list[dict[str, Any]]:
        """Return the differences as a JSON Patch; see `keepstate.to_json_patch`."""
        return to_json_patch(self)


def to_json_patch(differences: Iterable[Difference]) -> list[dict[str, Any]]:
    """Return all differences between two states as the operations of a JSON Patch, in order.

    Applied to the old state as JSON, they give the new one. A JSON object has no order, so `reordered` gives
    no operation. Int keys of a dict become text, as in JSON.

    Args:
        differences: The result of `History.diff`; with a `limit` that it reached, the patch is incomplete.

    Raises:
        InvalidError: A key or value has no form in JSON, such as bytes. The error names its path.
    """
    found = list(differences)
    removed = sorted((one for one in found if one.kind == "removed"), key=_old_place, reverse=True)
    added = sorted((one for one in found if one.kind == "added"), key=_new_place)
    # Removals come first, from the end, so that no path of a later one moves. The items before an added one
    # are all there when it is added. Replacements come last, when every item has its new path.
    return [
        *({"op": "remove", "path": _pointer(one.old_path)} for one in removed),
        *(_with_value("add", one) for one in added),
        *(_with_value("replace", one) for one in found if one.kind == "changed"),
    ]


def _with_value(operation: str, one: Difference) -> dict[str, Any]:
    _check_json(one.new, one.path)
    return {"op": operation, "path": _pointer(one.path), "value": one.new}


def _old_place(one: Difference) -> list[tuple[bool, Any]]:
    return _place(one.old_path)


def _new_place(one: Difference) -> list[tuple[bool, Any]]:
    return _place(one.path)


def _place(path: Steps) -> list[tuple[bool, Any]]:
    """Return a sort key of a path, by which the indexes of a list rise."""
    return [(isinstance(step, str), step) for step in map(_check_step, path, [path] * len(path))]


def _check_step(step: object, path: Steps) -> int | str:
    if type(step) is not int and type(step) is not str:
        raise InvalidError(f"{format_path(path)} has the key {step!r}, and JSON has text keys only")
    return step


def _pointer(path: Steps) -> str:
    """Return a path as a JSON Pointer, RFC 6901."""
    steps = [str(_check_step(step, path)) for step in path]
    return "".join([f"/{step.replace('~', '~0').replace('/', '~1')}" for step in steps])


def _check_json(value: object, path: Steps) -> None:
    kind = type(value)
    if kind is dict:
        for key, item in cast("dict[object, object]", value).items():
            _check_step(key, (*path, key))
            _check_json(item, (*path, key))
    elif kind is list:
        for index, item in enumerate(cast("list[object]", value)):
            _check_json(item, (*path, index))
    elif kind not in _SCALARS and not (isinstance(value, float) and kind is float and isfinite(value)):
        raise InvalidError(
            f"{format_path(path)} is {kind.__name__}, which has no form in JSON; convert it first"
        )
