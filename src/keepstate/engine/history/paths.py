"""Paths into a state: `"messages"` for a key of its own, `("messages", 3, "meta")` for what lies deeper."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, TypeAlias

from keepstate.errors import CorruptError, InvalidError, NotFoundError
from keepstate.values.codec import STATES, Codec
from keepstate.values.contents import is_container, open_contents, whole
from keepstate.values.diff import Step
from keepstate.values.merge_rules import Pattern, Rule
from keepstate.values.refs import Fetching

Path: TypeAlias = str | tuple[Any, ...]
"""One key of the state, dots included, or keys and places of lists from the state down."""
Steps: TypeAlias = tuple[Any, ...]

CODEC = STATES
"""For keys, which hold no objects of classes."""


def steps_of(path: Path) -> Steps:
    """Returns a path's steps.

    Raises:
        InvalidError: It is none.
    """
    _admit(path)
    return (path,) if isinstance(path, str) else path


def _admit(path: object) -> None:
    if not isinstance(path, str | tuple) or path == ():
        raise InvalidError(f"{path!r} is no path; give a key, or a tuple of keys and places")


def shown(steps: Sequence[object]) -> str:
    """Returns a path as people read it: `messages[3].meta`."""
    text = ""
    for step in steps:
        if isinstance(step, str) and step.isidentifier():
            text += f".{step}" if text else step
        else:
            text += f"[{_step_shown(step)}]"
    return text or "."


def _step_shown(step: object) -> str:
    try:
        return repr(step)
    except ValueError:  # Python shows no int of more than 4,300 digits, be it within a tuple
        return hex(step) if isinstance(step, int) else f"a {type(step).__name__} with a large int"


def steps_shown(path: Sequence[Step]) -> Steps:
    """Returns the steps of an encoded path, its keys decoded."""
    return tuple(CODEC.assemble(step, {}) if isinstance(step, bytes) else step for step in path)


def find(encoding: bytes, steps: Steps) -> Fetching[tuple[tuple[Step, ...], bytes]]:
    """Returns where a path leads, its keys encoded, and the encoding there.

    Raises:
        NotFoundError: It leads nowhere; says how far it goes.
    """
    way: list[Step] = []
    for depth, step in enumerate(steps):
        if not is_container(encoding):
            raise NotFoundError(f"{shown(steps[:depth])} is no list or dict, and has no {_step_shown(step)}")
        contents = yield from open_contents(encoding)
        place: Step
        if contents.style.has_keys:
            place = CODEC.canonical(step)
        elif type(step) is int:
            place = step + contents.count if step < 0 else step
        else:
            raise NotFoundError(f"{shown(steps[:depth])} is a list, and has no {_step_shown(step)}")
        entry = yield from contents.find(place)
        if entry is None:
            raise NotFoundError(f"there is no {shown(steps[: depth + 1])}")
        (encoding,) = yield from whole((entry,))
        way.append(place)
    return tuple(way), encoding


def patterns(rules: Mapping[Any, Rule] | None) -> dict[Pattern, Rule]:
    """Returns merge rules by encoded pattern.

    An int may be a place of a list or a dict's key; it is taken for either.

    Raises:
        InvalidError: A pattern is no path.
    """
    return {
        pattern: rule
        for path, rule in (rules or {}).items()
        for pattern in product(*(_meant(step) for step in (() if path == () else steps_of(path))))
    }


def _meant(step: object) -> Iterator[Step | None]:
    if step is None:
        yield None
        return
    if type(step) is int:
        yield step
    yield CODEC.canonical(step)


def decoded_or_none(encoding: bytes | None, objects: Mapping[bytes, bytes], states: Codec) -> Any:
    """Returns the value of an encoding, None for nothing."""
    if encoding is None:
        return None
    try:
        return states.assemble(encoding, objects)
    except KeyError as error:
        raise CorruptError(f"object {error.args[0].hex()} is missing") from error
