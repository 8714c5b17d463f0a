"""Containers and other values of the standard library, converted to parts and back.

Only exact types are supported, because a subclass may behave differently. Decoding creates only the types
listed here, with checked constructor arguments, so it runs no code that the bytes choose.
"""

from __future__ import annotations

import builtins
import re
import warnings
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from itertools import chain
from typing import Any, Final, NamedTuple

from keepstate.errors import InvalidError
from keepstate.values import limits, types
from keepstate.values.guards import is_crowded
from keepstate.values.types import kind_of


class Parts(NamedTuple):
    """The parts of a value.

    Attributes:
        tag: The tag of its type.
        fixed: Its named parts, in a fixed order.
        items: The items of a sequence, in order.
        pairs: The keys and values of a mapping, in order.
    """

    tag: int
    fixed: Mapping[str, object]
    items: Sequence[Any] = ()
    pairs: Mapping[Any, Any] = {}

    def listed(self) -> list[Any]:
        """Return all parts in one list, the stored form."""
        return [*self.fixed.values(), *self.items, *chain.from_iterable(self.pairs.items())]


FACTORIES: Final[Mapping[str, Callable[[], Any]]] = {
    kind.__name__: kind
    for kind in (
        *(list, dict, set, frozenset, tuple, int, float, complex, bool, str, bytes),
        *(Counter, OrderedDict, deque, defaultdict, Decimal, Fraction),
    )
}
"""Factories of a stored `defaultdict`, by name: types whose default is empty or zero."""
_FACTORY_NAMES: Final = {factory: name for name, factory in FACTORIES.items()}

EXCEPTIONS: Final[Mapping[str, type[BaseException]]] = {
    name: kind
    for name, kind in vars(builtins).items()
    if isinstance(kind, type) and issubclass(kind, BaseException) and kind.__name__ == name
}
"""The exceptions of the interpreter, by name."""
_EXCEPTION_KINDS: Final = frozenset(EXCEPTIONS.values())

_KEPT_FLAGS: Final = re.ASCII | re.IGNORECASE | re.LOCALE | re.MULTILINE | re.DOTALL | re.UNICODE | re.VERBOSE
_CHECKED_FLAGS: Final = int(_KEPT_FLAGS)

_TOKENS: Final = re.compile(
    r"\\N\{[^}]*\}|\\x[0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\U[0-9a-fA-F]{8}|\\[0-7]{3}|\\.|.", re.DOTALL
)
"""Matches one character of a pattern; a lone backslash at the end does not compile."""
_INLINE_FOLD: Final = re.compile(r"\(\?[a-zA-Z]*i")
_TABLE: Final = 0x10000
_FOLDED: Final = 640
"""Characters in ranges per character of a pattern that ignores case: 130 us of compiling."""
_UNFOLDED: Final = 2048
"""The same for other patterns."""
_SLACK: Final = 32
"""Additional characters, so that a short pattern may have one wide range."""


def is_standard(kind: type) -> bool:
    """Return whether values of exactly this type are supported here."""
    return kind in _PARTS or kind in _EXCEPTION_KINDS


def parts_of(value: Any) -> Parts:
    """Return the parts of a value whose type `is_standard`.

    Raises:
        InvalidError: The value would not come back equal.
    """
    kind = kind_of(value)
    take: Callable[[Any], Parts] = _PARTS.get(kind, _exception_parts)
    return take(value)


def made_of(tag: int, parts: list[Any]) -> object:
    """Return the value of these parts; for invalid parts, raise an error that `decode` treats as damage."""
    return MAKERS[tag](parts)


# ---- containers


def _deque(parts: list[Any]) -> deque[Any]:
    most, *items = parts
    if most is not None and (type(most) is not int or len(items) > most):
        raise ValueError("a deque has more items than it may have")
    return deque(items, most)


def _default_parts(value: defaultdict[Any, Any]) -> Parts:
    factory: Any = value.default_factory
    name = None if factory is None else _FACTORY_NAMES.get(factory)
    if factory is not None and name is None:
        shown = getattr(factory, "__qualname__", type(factory).__name__)
        raise InvalidError(
            f"the factory of this defaultdict is {shown}, which cannot be stored; use one of "
            f"{', '.join(FACTORIES)}, or a dict and its setdefault"
        )
    return Parts(types.DEFAULT, {"default_factory": name}, pairs=value)


def _default(parts: list[Any]) -> defaultdict[Any, Any]:
    return defaultdict(None if parts[0] is None else FACTORIES[parts[0]], _pairs(parts[1:]))


def _pairs(parts: list[Any]) -> dict[Any, Any]:
    if is_crowded(parts[::2]):
        raise ValueError("the hashes of its keys were chosen to collide")
    return dict(zip(parts[::2], parts[1::2], strict=True))


# ---- values


def _fraction_parts(value: Fraction) -> Parts:
    both = value.numerator, value.denominator
    if max(map(_size_bytes, both)) > limits.FRACTION_BYTES:
        raise InvalidError(
            f"the numerator or denominator has more than {limits.FRACTION_BYTES} bytes; store the two "
            "ints in a tuple"
        )
    return Parts(types.FRACTION, {"numerator": int(both[0]), "denominator": int(both[1])})


def _fraction(parts: list[Any]) -> Fraction:
    numerator, denominator = _ints(parts, 2)
    # The constructor finds a common divisor, in time quadratic in the size.
    if max(map(_size_bytes, parts)) > limits.FRACTION_BYTES:
        raise ValueError("a fraction is larger than any that is stored")
    made = Fraction(numerator, denominator)
    if made.denominator != denominator:
        raise ValueError("a fraction is not in lowest terms")
    return made


def _size_bytes(number: int) -> int:
    return number.bit_length() // 8


def _ints(parts: list[Any], count: int) -> list[int]:
    if len(parts) != count or any(type(part) is not int for part in parts):
        raise TypeError("a part that is a number holds something else")
    return parts


def pattern_fields(value: re.Pattern[Any]) -> dict[str, Any]:
    """Return the text and flags of a pattern.

    Raises:
        InvalidError: The pattern would not come back equal, or takes long to compile.
    """
    text: object = value.pattern
    if type(text) is not str and type(text) is not bytes:
        raise InvalidError(f"the pattern was compiled from a {type(text).__name__}; use str or bytes")
    if len(text) > limits.PATTERN_LENGTH:
        raise InvalidError(
            f"the pattern has {len(text)} characters, and at most {limits.PATTERN_LENGTH} are stored; "
            "store its text and compile that where it is used"
        )
    if _is_laborious(text, value.flags):
        raise InvalidError(
            "the pattern has character ranges that take long to compile; make them narrower, leave out "
            "IGNORECASE, or store its text and compile that where it is used"
        )
    if value.flags & ~_CHECKED_FLAGS:
        raise InvalidError(
            f"the pattern has the flag {re.RegexFlag(value.flags & ~_CHECKED_FLAGS)!r}, which would act "
            "whenever it is read; compile it without"
        )
    return {"pattern": text, "flags": value.flags}


def pattern_of(text: Any, flags: Any) -> re.Pattern[Any]:
    """Return the pattern with these fields, compiled in bounded time.

    Raises:
        ValueError: No stored pattern can have these fields.
    """
    if type(text) not in (str, bytes) or len(text) > limits.PATTERN_LENGTH:
        raise ValueError("a pattern is longer than any that is stored")
    if _is_laborious(text, flags):
        raise ValueError("a pattern takes longer to compile than any that is stored")
    if type(flags) is not int or flags & ~_CHECKED_FLAGS:
        raise ValueError("a pattern has flags that are not stored")
    try:
        return _compile(text, flags)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"this Python does not compile a pattern: {error}") from error


def _compile(text: Any, flags: int) -> re.Pattern[Any]:
    try:
        return re.compile(text, flags)
    except Warning:  # its author was warned when it was compiled before
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return re.compile(text, flags)


def _is_laborious(text: str | bytes, flags: int) -> bool:
    """Return whether compiling takes long for the length, because `re` enters each character of a range."""
    if not isinstance(text, str) or "-" not in text:
        return False
    share = _FOLDED if flags & re.IGNORECASE or _INLINE_FOLD.search(text) else _UNFOLDED
    tokens: list[str] = _TOKENS.findall(text)
    ranges = [(tokens[at - 1], tokens[at + 1]) for at in range(1, len(tokens) - 1) if tokens[at] == "-"]
    work = sum(min(_code(last, _TABLE), _TABLE) - min(_code(first, 0), _TABLE) for first, last in ranges)
    return work > share * (len(text) + _SLACK)


def _code(token: str, unknown: int) -> int:
    """Return the character of a pattern's token."""
    if token.startswith("\\N{"):
        return unknown
    if token[1:2] in ("x", "u", "U") and len(token) > 2:
        return int.from_bytes(bytes.fromhex(token[2:]))
    if token[1:].isdecimal():
        return int(token[1:], 8)
    return ord(token[-1])


# ---- exceptions


def exception_fields(value: BaseException) -> dict[str, Any]:
    """Return the arguments of an exception, and its attributes by name, including its notes.

    Traceback, cause and context are not included.

    Raises:
        InvalidError: The exception would not come back equal.
    """
    kind = type(value)
    reduced: Any = value.__reduce__()
    if kind_of(reduced) is not tuple or len(reduced) not in (2, 3) or reduced[0] is not kind:
        raise InvalidError(f"{kind.__qualname__} has a __reduce__ of its own; store str() of the exception")
    args: list[Any] = [*reduced[1]]
    attributes: dict[Any, Any] = {**reduced[2]} if len(reduced) == 3 and reduced[2] else {}
    attributes.pop("args", None)
    if isinstance(value, NameError | AttributeError) and value.name is not None:
        attributes["name"] = value.name
    try:
        exception_of(kind, args, attributes)
    except (TypeError, ValueError) as error:
        raise InvalidError(f"{kind.__qualname__} cannot be made again: {error}; store its text") from error
    return {"args": args, "attributes": attributes}


def exception_of(kind: type[BaseException], args: Any, attributes: Any) -> BaseException:
    """Return an exception with such arguments and attributes; an `__init__` of its class does not run.

    Raises:
        TypeError: No exception of this class has them.
        ValueError: Likewise.
    """
    if kind_of(args) is not list or kind_of(attributes) is not dict:
        raise ValueError("an exception has no arguments or no attributes")
    made = kind(*args) if kind in _EXCEPTION_KINDS else kind.__new__(kind, *args)
    if type(made) is not kind:  # an OSError becomes a subclass by its number
        raise ValueError(f"these are not arguments of {kind.__name__}")
    for name, value in attributes.items():
        is_hidden = type(name) is not str or (name.startswith("__") and name != "__notes__")
        if is_hidden or callable(getattr(kind, name, None)):
            raise ValueError(f"an exception has an attribute {name!r}")
        try:
            setattr(made, name, value)
        except AttributeError as error:
            raise ValueError(str(error)) from error
    return made


def _exception_parts(value: BaseException) -> Parts:
    return Parts(types.EXCEPTION, {"kind": type(value).__name__, **exception_fields(value)})


def _exception(parts: list[Any]) -> BaseException:
    name, args, attributes = parts
    return exception_of(EXCEPTIONS[name], args, attributes)


_PARTS: Final[Mapping[type, Callable[[Any], Parts]]] = {
    deque: lambda value: Parts(types.DEQUE, {"maxlen": value.maxlen}, items=[*value]),
    OrderedDict: lambda value: Parts(types.ORDERED, {}, pairs=value),
    Counter: lambda value: Parts(types.COUNTER, {}, pairs=value),
    defaultdict: _default_parts,
    range: lambda value: Parts(types.RANGE, {"start": value.start, "stop": value.stop, "step": value.step}),
    Fraction: _fraction_parts,
    re.Pattern: lambda value: Parts(types.PATTERN, pattern_fields(value)),
}
MAKERS: Final[Mapping[int, Callable[[list[Any]], object]]] = {
    types.DEQUE: _deque,
    types.ORDERED: lambda parts: OrderedDict(_pairs(parts)),
    types.COUNTER: lambda parts: Counter(_pairs(parts)),
    types.DEFAULT: _default,
    types.RANGE: lambda parts: range(*_ints(parts, 3)),
    types.FRACTION: _fraction,
    types.PATTERN: lambda parts: pattern_of(*parts),
    types.EXCEPTION: _exception,
}
"""By tag: the function that creates a value from its parts."""
