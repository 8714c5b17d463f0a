"""Folds: reducers of events to a state, recognized by a fingerprint of their code.

The fingerprint covers the code and constants of a function, its defaults and closure, and what the code
names: functions, classes, values and containers of them, and the attributes of objects. It contains no
address, so it is the same in every process. Of the standard library, keepstate and other installed packages
it covers only the names. A change that it does not see must be declared by a new `version`.
"""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, time, timedelta, tzinfo
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import lru_cache, partial, partialmethod
from hashlib import sha256
from operator import attrgetter, itemgetter, methodcaller
from pathlib import PurePath
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any, Final, TypeAlias, cast
from uuid import UUID

from keepstate.engine.events.record import Event
from keepstate.engine.kernel.arguments import check_name
from keepstate.errors import InvalidError
from keepstate.values import codec, limits

Reducer: TypeAlias = Callable[[Any, Event], Any | Awaitable[Any]]

_PLAIN: Final = (bool, int, float, complex, str, bytes, range, slice, type(None), type(...))
_OPERATORS: Final[tuple[type, ...]] = (attrgetter, itemgetter, methodcaller)
_NUMBERS_AND_TIMES: Final[tuple[type, ...]] = (Decimal, Fraction, date, time, timedelta, tzinfo)
_PRINTABLE: Final = (*_OPERATORS, *_NUMBERS_AND_TIMES, PurePath, UUID, bytearray)
"""Classes of the standard library whose `repr` is their value. That of others may tell a state, such as the
level of a logger, which differs between processes."""
_TRUSTED: Final = frozenset({*sys.stdlib_module_names, "builtins", "keepstate"})
_INSTALLED: Final = ("site-packages", "dist-packages")
_FIELDS: Final = ("__annotations__", "__struct_defaults__")
"""Dunder attributes of a class that describe its fields."""
_ADDRESS: Final = re.compile(r" at 0x[0-9a-fA-F]+")


@dataclass(frozen=True)
class Fold:
    """A reducer with its initial state and cache.

    Attributes:
        reducer: A function of the state and an event that returns the next state.
        initial: The state before the first event.
        cache_every: The number of events to read before the state is cached, so that later folds do not read
            these events again. None disables the cache, and then the state can be any object.
        name: The name of the cached state; by default, the name of the reducer.
        version: Increase it when the reducer's behavior changes without a visible change of its code.
    """

    reducer: Reducer
    initial: Any = None
    cache_every: int | None = 100
    name: str | None = None
    version: int = 1

    def __post_init__(self) -> None:
        if not callable(self.reducer):
            raise InvalidError(f"`reducer` is {self.reducer!r}; give a function of a state and an event")
        if self.cache_every is not None:
            limits.admit_count("cache_every", self.cache_every)
        limits.admit_count("version", self.version)
        if len(check_name("name", self.title).encode()) > limits.SPACE_BYTES // 2:
            raise InvalidError(f"`name` is {self.title!r}; it has at most {limits.SPACE_BYTES // 2} bytes")

    @property
    def title(self) -> str:
        """The name of the cached state."""
        return qualified_name(self.reducer)[-limits.SPACE_BYTES // 2 :] if self.name is None else self.name

    def digest(self) -> bytes:
        """Return a digest of the version, the initial state and the reducer's fingerprint."""
        hashed = sha256(codec.canonical([self.version, codec.canonical(self.initial)]))
        for part in fingerprint(self.reducer):
            hashed.update(part.encode("utf-8", "surrogatepass") + b"\0")
        return hashed.digest()[:20]


# ---- fingerprints


def qualified_name(thing: object) -> str:
    """Return the name of a function or class, or of an object's class, with its module."""
    inner = thing.func if isinstance(thing, partial) else thing
    kind: Any = inner if hasattr(inner, "__qualname__") else type(inner)
    return f"{kind.__module__}.{getattr(kind, '__qualname__', kind)}"


def fingerprint(function: object, *, unseen: Callable[[object], str] | None = None) -> Iterator[str]:
    """Yield the parts of the fingerprint of a function, or of a callable object.

    Args:
        function: The function.
        unseen: Describes an object of another package, or of keepstate, in more detail than its class does.
    """
    return _Walk(function, unseen).parts()


class _Walk:
    """Visits every object that a function uses, each once. Objects are referenced by their number."""

    def __init__(self, function: object, unseen: Callable[[object], str] | None) -> None:
        self._function, self._unseen = function, unseen
        self._package = _package(qualified_name(function))
        self._numbers: dict[int, int] = {}
        self._visited: list[object] = []
        """Objects are kept alive, because `id` of a deleted object may be reused."""

    def parts(self) -> Iterator[str]:
        yield self._describe(self._function)
        for thing in self._visited:  # which grows meanwhile
            try:
                yield "\n".join(self._of(thing))
            except Exception:  # noqa: BLE001 - an object of the caller may raise anything, such as an unbound proxy
                yield qualified_name(type(thing))

    def _describe(self, thing: object) -> str:
        """Describe a plain value by its `repr`, and any other object by its number, to be visited later."""
        if type(thing) in _PLAIN:
            return f"{type(thing).__name__} {thing!r}"
        if id(thing) not in self._numbers:
            self._numbers[id(thing)] = len(self._visited)
            self._visited.append(thing)
        return f"#{self._numbers[id(thing)]}"

    def _all(self, things: Iterable[object]) -> Iterator[str]:
        return map(self._describe, things)

    def _of(self, thing: Any) -> Iterator[str]:
        """Yield texts that describe an object which is not a plain value."""
        kind = cast("type[object]", type(thing))
        yield qualified_name(thing)
        if plain := _plain_text(thing):
            yield plain
        if isinstance(thing, FunctionType):
            if self._is_own(thing) or thing is self._function:
                yield from self._of_function(thing)
        elif isinstance(thing, type):
            if self._is_own(thing):
                yield from self._of_class(thing)
        elif isinstance(thing, MethodType | BuiltinFunctionType):
            yield from self._all((getattr(thing, "__func__", None), thing.__self__))
        elif isinstance(thing, partial | partialmethod):
            yield from self._all((thing.func, *thing.args, *thing.keywords.items()))
        elif isinstance(thing, ModuleType):
            yield thing.__name__
        elif isinstance(thing, Mapping):
            entries = cast("Mapping[object, object]", thing)
            yield from self._all(item for pair in entries.items() for item in pair)
        elif isinstance(thing, set | frozenset):  # their order differs between processes
            yield from sorted(map(_member, cast("set[Any]", thing)))
        elif isinstance(thing, list | tuple | deque):
            yield from self._all(cast("Iterable[object]", thing))
        elif self._is_own(kind) or isinstance(thing, SimpleNamespace):
            yield from self._all((kind, *_attributes(thing)))
        elif kind.__module__ in ("types", "typing") and hasattr(thing, "__args__"):  # such as list[Item]
            inner = (getattr(thing, "__origin__", None), *getattr(thing, "__metadata__", ()))
            yield from self._all((*inner, *thing.__args__))
        elif hasattr(thing, "__wrapped__"):  # such as a function with functools.lru_cache
            yield self._describe(thing.__wrapped__)
        elif self._unseen is not None and _package(kind.__module__) not in sys.stdlib_module_names:
            yield self._unseen(thing)

    def _of_function(self, function: FunctionType) -> Iterator[str]:
        yield _code_text(function.__code__)
        yield from self._all((function.__defaults__, function.__kwdefaults__))
        for cell in function.__closure__ or ():
            try:
                yield self._describe(cell.cell_contents)
            except ValueError:  # the cell is empty
                yield "empty"
        known, read = function.__globals__, _names_read(function.__code__)
        for name in filter(known.__contains__, read):
            found = known[name]
            yield f"{name} {self._describe(found)}"
            if type(found) is ModuleType and self._is_own(found):
                attributes = vars(found)
                yield from self._all(attributes[each] for each in read if each in attributes)

    def _of_class(self, kind: type) -> Iterator[str]:
        yield from self._all(kind.__bases__)
        for name, attribute in sorted(vars(kind).items()):
            inner = [getattr(attribute, each, None) for each in ("__func__", "fget", "fset", "fdel", "func")]
            if issubclass(type(attribute), (FunctionType, partial, partialmethod)):
                yield f"{name} {self._describe(attribute)}"
            elif any(inner):
                yield f"{name} {self._describe(inner)}"
            elif name in _FIELDS or not (name.startswith("__") or hasattr(attribute, "__get__")):
                yield f"{name} {self._describe(attribute)}"

    def _is_own(self, thing: FunctionType | type | ModuleType) -> bool:
        """Return whether a function, class or module belongs to the application."""
        name = thing.__name__ if isinstance(thing, ModuleType) else thing.__module__
        package = _package(name or "builtins")  # an object made in C may not have a module
        return package not in _TRUSTED and (package == self._package or not _is_installed(package))


def _package(name: str) -> str:
    return name.partition(".")[0]


@lru_cache(maxsize=256)
def _is_installed(package: str) -> bool:
    found = sys.modules.get(package)
    paths = [getattr(found, "__file__", None) or "", *getattr(found, "__path__", ())]
    return any(part in path for path in paths for part in _INSTALLED)


def _plain_text(thing: Any) -> str:
    """Return the value of a member of an enumeration, or of an object that is, or extends, a plain value."""
    kind = cast("type[object]", type(thing))
    if issubclass(kind, re.Pattern):
        return f"{thing.pattern!r} {thing.flags}"  # the repr of a long pattern is cut
    if issubclass(kind, _PRINTABLE) and _package(kind.__module__) in _TRUSTED:
        return _ADDRESS.sub("", repr(thing))
    base: Any = next((each for each in kind.__mro__ if each in _PLAIN), None)
    value: str = "" if base is None else base.__repr__(thing)  # its own may contain an address
    return f"{thing.name} {value}" if issubclass(kind, Enum) else value


def _member(item: Any) -> str:
    """Describe a member of a set without a number, because numbers would depend on the order of the set."""
    if not isinstance(item, tuple | frozenset):
        return f"{qualified_name(item)} {_plain_text(item)}"
    texts = list(map(_member, cast("tuple[object, ...] | frozenset[object]", item)))
    return f"tuple {texts}" if isinstance(item, tuple) else f"frozenset {sorted(texts)}"


def _attributes(thing: object) -> list[tuple[str, object]]:
    """Return the attributes of an object with their names, in order."""
    slots = (vars(kind).get("__slots__", ()) for kind in type(thing).__mro__)
    names = {name for each in slots for name in ((each,) if isinstance(each, str) else each)}
    found = dict(getattr(thing, "__dict__", {}))
    found.update((name, getattr(thing, name)) for name in names if hasattr(thing, name))
    return sorted((name, value) for name, value in found.items() if not name.startswith("__"))


@lru_cache(maxsize=4_096)
def _code_text(code: CodeType) -> str:
    constants = list(map(_constant, code.co_consts))
    return repr((code.co_code, code.co_names, code.co_varnames, code.co_freevars, constants))


def _constant(item: object) -> str:
    if isinstance(item, CodeType):
        return _code_text(item)
    if isinstance(item, frozenset):  # its order differs between processes
        return repr(sorted(map(repr, cast("frozenset[object]", item))))
    return repr(item)


@lru_cache(maxsize=4_096)
def _names_read(code: CodeType) -> tuple[str, ...]:
    """Return the names that code and the code in it read, of globals and of attributes."""
    inner = (name for item in code.co_consts if isinstance(item, CodeType) for name in _names_read(item))
    return tuple(dict.fromkeys((*code.co_names, *inner)))
