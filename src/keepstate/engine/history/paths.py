"""Paths into a state: `"messages"` for a key of its own, `("messages", 3, "meta")` for a value inside.

Where a commit is read, a text that is not one of its keys may be a printed path too: `"messages[3].meta"`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, Final, TypeAlias

from keepstate.errors import CorruptError, InvalidError, NotFoundError
from keepstate.values import limits
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

_BARE: Final = re.compile(r"[^.\[\]\s'\"]+")
_ANY: Final = "*"


def steps_of(path: Path) -> Steps:
    """Return a path's steps.

    Raises:
        InvalidError: It is none.
    """
    _admit(path)
    return (path,) if isinstance(path, str) else path


def _admit(path: object) -> None:
    if not isinstance(path, str | tuple) or path == ():
        raise InvalidError(f"{path!r} is no path; give a key, or a tuple of keys and places")


def parse_path(text: str, *, has_any: bool = False) -> tuple[Any, ...]:
    """Return the steps of a printed path: `messages[3].meta`, `['a.b'][0]`.

    A path begins with a key. After it stand `.key`, and `[…]` with a place or key as Python writes it: `[3]`,
    `[-1]`, `['a.b']`. A key stands bare if it is a text without `.`, `[`, `]`, quotes and spaces; any other
    key is written in brackets, also as the first.

    Args:
        text: The path; at most `limits.PATTERN_BYTES` characters.
        has_any: Take `*` for any step, which is None then; `*` alone is for the whole state.

    Raises:
        InvalidError: It is not a path; the message shows where it ceases to be one.
    """
    if len(text) > limits.PATTERN_BYTES:
        raise InvalidError(
            f"a path has {len(text):,} characters, beginning {text[:40]!r}; "
            f"it may have {limits.PATTERN_BYTES:,}"
        )
    if has_any and text == _ANY:
        return ()
    steps: list[Any] = []
    place = 0
    while place < len(text) or not steps:
        if text[place : place + 1] == "[":
            place, step = _bracketed(text, place, has_any=has_any)
        else:
            if steps and text[place] != ".":
                raise _wrong(text, place)
            begin = place + bool(steps)
            bare = _BARE.match(text, begin)
            if bare is None:
                raise _wrong(text, begin)
            place, step = bare.end(), None if has_any and bare[0] == _ANY else bare[0]
        steps.append(step)
    return tuple(steps)


def _bracketed(text: str, begin: int, *, has_any: bool) -> tuple[int, Any]:
    """Return the place behind a bracket and the step in it, the shortest that is one."""
    end = text.find("]", begin)
    while end >= 0:
        inside = text[begin + 1 : end]
        if has_any and inside == _ANY:
            return end + 1, None
        try:
            step = ast.literal_eval(inside)
            hash(step)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            end = text.find("]", end + 1)
            continue
        return end + 1, step
    raise _wrong(text, begin)


def _wrong(text: str, place: int) -> InvalidError:
    here = f"{text[:place]}⟨here⟩{text[place:]}"
    return InvalidError(
        f"{here} is not a path; write it as messages[3].meta, and a key with dots or spaces as ['a.b']"
    )


def shown(steps: Sequence[object]) -> str:
    """Return a path as people read it: `messages[3].meta`."""
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
    """Return the steps of an encoded path, its keys decoded."""
    return tuple(CODEC.assemble(step, {}) if isinstance(step, bytes) else step for step in path)


def find(encoding: bytes, steps: Steps) -> Fetching[tuple[tuple[Step, ...], bytes]]:
    """Return where a path leads, its keys encoded, and the encoding there.

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


def find_path(encoding: bytes, path: Path) -> Fetching[tuple[tuple[Step, ...], bytes]]:
    """Return the same as `find` for a path; a text that is not a key of the state is read as a printed path.

    Raises:
        NotFoundError: It leads nowhere; the message says how far it goes.
        InvalidError: It is not a path.
    """
    steps = steps_of(path)
    try:
        return (yield from find(encoding, steps))
    except NotFoundError:
        try:
            printed = parse_path(path) if isinstance(path, str) else steps
        except InvalidError:
            printed = steps
        if printed == steps:
            raise
    return (yield from find(encoding, printed))


def patterns(rules: Mapping[Any, Rule] | None) -> dict[Pattern, Rule]:
    """Return merge rules by encoded pattern.

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
    """Return the value of an encoding, None for nothing."""
    if encoding is None:
        return None
    try:
        return states.assemble(encoding, objects)
    except KeyError as error:
        raise CorruptError(f"object {error.args[0].hex()} is missing") from error
