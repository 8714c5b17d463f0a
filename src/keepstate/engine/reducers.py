"""What tells one reducer from another: a digest of what it does, as far as that can be seen.

Python's own code, its constants, defaults and closures count, and the functions that it calls by a global
name. What it reaches otherwise does not: `version` says that it changed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from types import CodeType, FunctionType, MethodType
from typing import Any, TypeAlias, cast

from keepstate.engine.admission import admit_name
from keepstate.engine.event_record import Event
from keepstate.errors import InvalidError
from keepstate.values import codec, limits

Reducer: TypeAlias = Callable[[Any, Event], Any | Awaitable[Any]]

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...))


@dataclass(frozen=True)
class Fold:
    """How the events of a stream become a state.

    Attributes:
        reducer: Called with the state so far and an event; returns the state after it.
        initial: The state before the first event.
        cache_every: After how many events the state is kept, so that no later fold reads these again. None
            keeps nothing; the state may then be anything.
        name: What the kept state is called; the reducer's own name if it is not given.
        version: Goes up when the reducer does something else and its code does not show it.
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
        if len(admit_name("name", self.title).encode()) > limits.SPACE_BYTES // 2:
            raise InvalidError(f"`name` is {self.title!r}; it has at most {limits.SPACE_BYTES // 2} bytes")

    @property
    def title(self) -> str:
        """Returns what the kept state is called."""
        return _title(self.reducer)[-limits.SPACE_BYTES // 2 :] if self.name is None else self.name

    def digest(self) -> bytes:
        """Returns what differs when the reducer or the initial state does."""
        hashed = sha256(codec.canonical([self.version, codec.canonical(self.initial)]))
        for part in _traits(self.reducer, set()):
            hashed.update(part.encode("utf-8", "surrogatepass") + b"\0")
        return hashed.digest()[:20]


def _title(reducer: object) -> str:
    inner = reducer.func if isinstance(reducer, partial) else reducer
    kind = inner if hasattr(inner, "__qualname__") else type(inner)
    return f"{kind.__module__}.{getattr(kind, '__qualname__', kind)}"


def _traits(thing: object, seen: set[int]) -> Iterator[str]:
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, partial):
        yield from _traits(thing.func, seen)
        for value in (*thing.args, *thing.keywords.items()):
            yield from _value(value, seen)
    elif isinstance(thing, MethodType):
        yield from _traits(thing.__func__, seen)
    elif isinstance(thing, FunctionType):
        yield from _function(thing, seen)
    else:
        yield _title(thing)
        if callable(thing) and isinstance(own := getattr(type(thing), "__call__", None), FunctionType):  # noqa: B004
            yield from _function(own, seen)


def _function(function: FunctionType, seen: set[int]) -> Iterator[str]:
    yield from _code(function.__code__)
    for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).items()):
        yield from _value(value, seen)
    for cell in function.__closure__ or ():
        yield from _value(cell.cell_contents, seen)
    for name in _names(function.__code__):
        called = function.__globals__.get(name)
        if isinstance(called, FunctionType):
            yield from _traits(called, seen)


def _code(code: CodeType) -> Iterator[str]:
    yield code.co_code.hex()
    yield repr((code.co_names, code.co_varnames, code.co_freevars))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code(constant)
        else:  # a frozenset's order is another one in each process
            items = cast("frozenset[object]", constant)
            yield repr(sorted(map(repr, items))) if isinstance(constant, frozenset) else repr(constant)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _value(value: object, seen: set[int]) -> Iterator[str]:
    if isinstance(value, _PLAIN):
        yield repr(value)
    elif isinstance(value, tuple):
        for item in cast("tuple[object, ...]", value):
            yield from _value(item, seen)
    else:
        yield from _traits(value, seen)
