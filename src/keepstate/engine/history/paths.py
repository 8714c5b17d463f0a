"""Paths into a state: `"messages"` for a key, `("messages", 3, "meta")` for a value inside.

Where a commit is read, text that is not a key of the state may also be a printed path: `"messages[3].meta"`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, Final, TypeAlias, cast

from keepstate.errors import CorruptError, InvalidError, NotFoundError
from keepstate.values import limits
from keepstate.values.codec import STATES, Codec
from keepstate.values.contents import is_container, open_contents, whole
from keepstate.values.diff import Step
from keepstate.values.merge import Pattern, Rule
from keepstate.values.refs import Fetching

Path: TypeAlias = str | tuple[Any, ...]
"""One key of the state, including its dots, or the keys and list indexes from the state down."""
Steps: TypeAlias = tuple[Any, ...]

CODEC = STATES
"""The codec of keys, which contain no objects of classes."""

_BARE: Final = re.compile(r"[^.\[\]\s'\"]+")
_ANY: Final = "*"


def steps_of(path: Path) -> Steps:
    """Return the steps of a path.

    Raises:
        InvalidError: The value is not a path.
    """
    given = cast("object", path)
    if not isinstance(given, str | tuple) or given == ():
        raise InvalidError(f"{given!r} is not a path; pass a key, or a tuple of keys and indexes")
    return (path,) if isinstance(path, str) else path


def parse_path(text: str, *, has_any: bool = False) -> tuple[Any, ...]:
    """Return the steps of a printed path: `messages[3].meta`, `['a.b'][0]`.

    A path begins with a key. It continues with `.key`, and with `[…]` around an index or key as Python writes
    it: `[3]`, `[-1]`, `['a.b']`. A key is written without brackets if it is text without `.`, `[`, `]`,
    quotes and spaces.

    Args:
        text: The path; at most `limits.PATTERN_BYTES` characters.
        has_any: Accept `*` for any step, which is returned as None; `*` alone is the whole state.

    Raises:
        InvalidError: The text is not a path. The error shows the wrong character.
    """
    if len(text) > limits.PATTERN_BYTES:
        raise InvalidError(
            f"a path has {len(text):,} characters, beginning {text[:40]!r}; "
            f"it may have {limits.PATTERN_BYTES:,}"
        )
    if has_any and text == _ANY:
        return ()
    steps: list[Any] = []
    at = 0
    while at < len(text) or not steps:
        if text[at : at + 1] == "[":
            at, step = _parse_bracket(text, at, has_any=has_any)
        else:
            if steps and text[at] != ".":
                raise _parse_error(text, at)
            begin = at + bool(steps)
            bare = _BARE.match(text, begin)
            if bare is None:
                raise _parse_error(text, begin)
            at, step = bare.end(), None if has_any and bare[0] == _ANY else bare[0]
        steps.append(step)
    return tuple(steps)


def _parse_bracket(text: str, begin: int, *, has_any: bool) -> tuple[int, Any]:
    """Return the offset after a bracket and the step in it, the shortest that parses."""
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
    raise _parse_error(text, begin)


def _parse_error(text: str, at: int) -> InvalidError:
    here = f"{text[:at]}⟨here⟩{text[at:]}"
    return InvalidError(
        f"{here} is not a path; write it as messages[3].meta, and a key with dots or spaces as ['a.b']"
    )


def format_path(steps: Sequence[object]) -> str:
    """Return a path as text for people: `messages[3].meta`."""
    text = ""
    for step in steps:
        if isinstance(step, str) and step.isidentifier():
            text += f".{step}" if text else step
        else:
            text += f"[{_format_step(step)}]"
    return text or "."


def _format_step(step: object) -> str:
    try:
        return repr(step)
    except ValueError:  # Python does not print an int of more than 4,300 digits, even inside a tuple
        return hex(step) if isinstance(step, int) else f"a {type(step).__name__} with a large int"


def decode_steps(path: Sequence[Step]) -> Steps:
    """Return the steps of an encoded path."""
    return tuple(CODEC.assemble(step, {}) if isinstance(step, bytes) else step for step in path)


def find(encoding: bytes, steps: Steps) -> Fetching[tuple[tuple[Step, ...], bytes]]:
    """Return the encoded path of these steps, and the encoding of the value there.

    Raises:
        NotFoundError: The path does not exist. The error shows how much of it does.
    """
    path: list[Step] = []
    for depth, step in enumerate(steps):
        if not is_container(encoding):
            raise _absent_error(steps, depth, "is not a list or dict")
        contents = yield from open_contents(encoding)
        encoded: Step
        if contents.style.has_keys:
            encoded = CODEC.canonical(step)
        elif type(step) is int:
            encoded = step + contents.count if step < 0 else step
        else:
            raise _absent_error(steps, depth, "is a list")
        entry = yield from contents.find(encoded)
        if entry is None:
            raise NotFoundError(f"there is no {format_path(steps[: depth + 1])}")
        (encoding,) = yield from whole((entry,))
        path.append(encoded)
    return tuple(path), encoding


def _absent_error(steps: Steps, depth: int, what: str) -> NotFoundError:
    return NotFoundError(f"{format_path(steps[:depth])} {what}, and has no {_format_step(steps[depth])}")


def find_path(encoding: bytes, path: Path) -> Fetching[tuple[tuple[Step, ...], bytes]]:
    """Return the same as `find` for a path. Text that is not a key of the state is read as a printed path.

    Raises:
        NotFoundError: The path does not exist. The error shows how much of it does.
        InvalidError: The value is not a path.
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


def locate(encoding: bytes, path: Path) -> Fetching[tuple[Step, ...]]:
    """Return the encoded path, which need not exist in this state.

    Below the part that exists, a non-negative int is a list index, and any other step a key of a dict.

    Raises:
        InvalidError: The value is not a path.
    """
    try:
        return (yield from find_path(encoding, path))[0]
    except NotFoundError:
        steps = steps_of(path)
    if isinstance(path, str):
        try:
            steps = parse_path(path)
        except InvalidError:
            steps = (path,)
    for length in range(len(steps) - 1, -1, -1):
        try:
            found = (yield from find(encoding, steps[:length]))[0]
        except NotFoundError:
            continue
        rest = steps[length:]
        return (
            *found,
            *(step if type(step) is int and step >= 0 else CODEC.canonical(step) for step in rest),
        )
    return ()


def value_at(encoding: bytes, path: Sequence[Step]) -> Fetching[bytes | None]:
    """Return the encoding of the value at an encoded path, or None if there is none."""
    for step in path:
        if not is_container(encoding):
            return None
        contents = yield from open_contents(encoding)
        if contents.style.has_keys == isinstance(step, int):
            return None
        entry = yield from contents.find(step)
        if entry is None:
            return None
        (encoding,) = yield from whole((entry,))
    return encoding


def encode_patterns(rules: Mapping[Any, Rule] | None) -> dict[Pattern, Rule]:
    """Return merge rules by encoded pattern.

    An int in a path may be a list index or a dict key, so the rule applies to both.

    Raises:
        InvalidError: A pattern is not a path.
    """
    return {
        pattern: rule
        for path, rule in (rules or {}).items()
        for pattern in product(*(_encode_step(step) for step in (() if path == () else steps_of(path))))
    }


def _encode_step(step: object) -> Iterator[Step | None]:
    if step is None:
        yield None
        return
    if type(step) is int:
        yield step
    yield CODEC.canonical(step)


def decode_or(default: object, encoding: bytes | None, objects: Mapping[bytes, bytes], states: Codec) -> Any:
    """Return the value of an encoding, or the default for None."""
    if encoding is None:
        return default
    try:
        return states.assemble(encoding, objects)
    except KeyError as error:
        raise CorruptError(f"object {error.args[0].hex()} is missing") from error
