"""What a function does, as text that differs when it does something else, as far as that can be seen.

Seen are Python code with its constants, defaults and closures, and what that code names: functions, classes
with their bases, plain values and containers of them, names of modules; of an object its class and what it
holds. Of an installed package not the function's own, the code counts and not what that code names; of the
standard library and keepstate the names alone. The same program has the same traits in each process: neither
an address nor the order of a set is in them.
"""

from __future__ import annotations

import dis
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, time, timedelta, tzinfo
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import cached_property, lru_cache, partial, partialmethod
from hashlib import sha256
from pathlib import PurePath
from re import Pattern
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any, Final, cast
from uuid import UUID

_PLAIN: Final = (bool, int, float, complex, str, bytes, bytearray, range, slice, type(None), type(...))
_REPR_IS_COMPLETE: Final = (date, time, timedelta, tzinfo, Decimal, Fraction, PurePath, UUID)
"""Classes of the standard library whose `repr` says all of a value."""
_TRUSTED: Final = frozenset({*sys.stdlib_module_names, "builtins", "keepstate"})
_INSTALLED: Final = ("site-packages", "dist-packages")
_LOADS: Final = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})
_ATTRIBUTE: Final = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_IGNORED: Final = frozenset({"CACHE", "PRECALL", "EXTENDED_ARG"})
_FIELDS: Final = ("__annotations__", "__struct_defaults__")
"""What a class says of its fields by names that are otherwise Python's own."""


def qualified_name(thing: object) -> str:
    """Return the name of a function or class, or of an object's class, with its module."""
    inner = thing.func if isinstance(thing, partial) else thing
    kind: Any = inner if hasattr(inner, "__qualname__") else type(inner)
    return f"{kind.__module__}.{getattr(kind, '__qualname__', kind)}"


def fingerprint(function: object, *, unseen: Callable[[object], str] | None = None) -> Iterator[str]:
    """Yield what tells this function, or object that can be called, from others.

    Args:
        function: The function.
        unseen: Says more of an object of another package, or of keepstate's, than its class.
    """
    return _Walk(function, unseen).parts()


class _Walk:
    """Goes through all that a function uses, each thing once; what is named stands by its number."""

    def __init__(self, function: object, unseen: Callable[[object], str] | None) -> None:
        self._unseen = unseen
        self._own_package = _package(qualified_name(function))
        self._numbers: dict[int, int] = {}
        self._pending: list[object] = []
        """Held, for the place in memory of what is gone may become another's."""
        self._function = function

    def parts(self) -> Iterator[str]:
        if isinstance(self._function, FunctionType):  # also keepstate's own, if that is what folds
            yield from self._of_function(self._function)
        else:
            yield self._describe(self._function)
        number = 0
        while number < len(self._pending):
            yield f"#{number}"
            yield from self._visit(self._pending[number])
            number += 1

    def _describe(self, thing: object) -> str:
        """Return a plain value, or the number of anything else, which is gone through later."""
        if _is_a(thing, Enum):
            member = cast("Enum", thing)
            return f"{self._describe(type(member))} {member.name} {self._describe(member.value)}"
        if _has_complete_repr(thing):
            return f"{type(thing).__qualname__} {thing!r}"
        if id(thing) not in self._numbers:
            self._numbers[id(thing)] = len(self._pending)
            self._pending.append(thing)
        return f"#{self._numbers[id(thing)]}"

    def _visit(self, thing: object) -> list[str]:
        try:
            return list(self._of(thing))
        except Exception:  # noqa: BLE001 - whatever a caller's object does then, as a proxy of nothing yet
            return [qualified_name(type(thing))]

    def _of(self, thing: object) -> Iterator[str]:
        if isinstance(thing, type):
            yield from self._of_class(thing)
        elif isinstance(thing, FunctionType):
            yield qualified_name(thing)
            if not _is_trusted(thing):
                yield from self._of_function(thing)
        elif isinstance(thing, MethodType):
            yield from self._all((thing.__func__, thing.__self__))
        elif isinstance(thing, partial | partialmethod):
            part = cast("partial[Any]", thing)
            yield from self._all((part.func, *part.args, *part.keywords.items()))
        elif isinstance(thing, Mapping):
            attribute = cast("Mapping[object, object]", thing)
            yield f"mapping of {len(attribute)}"
            for key, value in attribute.items():
                yield from self._all((key, value))
        elif isinstance(thing, set | frozenset):
            yield from sorted(map(_member, cast("set[object]", thing)))
        elif isinstance(thing, tuple | list | deque):
            items = cast("Iterable[object]", thing)
            yield type(items).__qualname__
            yield from self._all(items)
        else:
            yield from self._of_object(thing)

    def _all(self, things: Iterable[object]) -> Iterator[str]:
        return map(self._describe, things)

    # ---- code

    def _of_function(self, function: FunctionType) -> Iterator[str]:
        yield _code_text(function.__code__)
        if self._is_foreign(function):
            return
        yield from self._all((function.__defaults__, *(function.__kwdefaults__ or {}).items()))
        for cell in function.__closure__ or ():
            try:
                yield self._describe(cell.cell_contents)
            except ValueError:  # nothing was put into it yet
                yield "empty"
        for chain in _names_read(function.__code__):
            yield from self._named(function.__globals__, chain)

    def _named(self, names: Mapping[str, Any], chain: Sequence[str]) -> Iterator[str]:
        """Yield what a name of a module stands for; of another module, what the name asked of it does."""
        if (name := chain[0]) not in names:
            return  # Python's own, or nothing: the code holds the name
        found = names[name]
        if not _is_a(found, ModuleType):
            yield f"{name} {self._describe(found)}"
        elif len(chain) > 1 and not _is_trusted(found):
            yield from self._named(vars(cast("ModuleType", found)), chain[1:])
        else:
            yield f"{name} {found.__name__}"

    # ---- classes and objects

    def _of_class(self, kind: type) -> Iterator[str]:
        yield qualified_name(kind)
        if _is_trusted(kind):
            return
        if self._is_foreign(kind):
            yield _code_of_class(kind)
            return
        yield from self._all(kind.__bases__)
        for name, attribute in sorted(vars(kind).items()):
            for function in _functions(attribute):
                yield f"{name} {self._describe(function)}"
            if name in _FIELDS or not (name.startswith("__") or _is_descriptor(attribute)):
                yield f"{name} {self._describe(attribute)}"

    def _of_object(self, thing: Any) -> Iterator[str]:
        kind = cast("type[object]", type(thing))
        yield self._describe(kind)
        if isinstance(thing, Pattern):
            yield repr((cast("Pattern[str]", thing).pattern, thing.flags))  # its own repr is cut
        elif isinstance(thing, BuiltinFunctionType):
            yield qualified_name(thing)
            if not isinstance(thing.__self__, ModuleType | type(None)):
                yield self._describe(thing.__self__)
        elif kind.__module__ == "operator":  # itemgetter and its like
            yield repr(thing)
        elif kind.__module__ in ("types", "typing") and hasattr(thing, "__args__"):
            yield from self._all((getattr(thing, "__origin__", None), *thing.__args__))
            yield from self._all(getattr(thing, "__metadata__", ()))
        elif _is_trusted(kind) and hasattr(thing, "__wrapped__"):  # as functools.lru_cache makes it
            yield self._describe(thing.__wrapped__)
        elif isinstance(thing, SimpleNamespace) or not (_is_trusted(kind) or self._is_foreign(kind)):
            for name, attribute in sorted(_attributes(thing).items()):
                yield f"{name} {self._describe(attribute)}"
        elif self._unseen is not None and _package(kind.__module__) not in sys.stdlib_module_names:
            yield self._unseen(thing)

    def _is_foreign(self, thing: FunctionType | type) -> bool:
        """Whether something is of an installed package that is not the one of what is gone through."""
        package = _package(thing.__module__)
        return package != self._own_package and _is_installed(package)


def _member(item: Any) -> str:
    """Return what tells one of a set: no number, for that follows from an order, another one each time."""
    if isinstance(item, tuple):
        return f"({', '.join(map(_member, cast('Iterable[object]', item)))})"
    return f"{qualified_name(item)} {item!r}" if _has_complete_repr(item) else qualified_name(item)


def _has_complete_repr(thing: object) -> bool:
    """Whether the `repr` of something says all of it, and the same in each process."""
    return _is_a(thing, *_PLAIN) or (_is_a(thing, *_REPR_IS_COMPLETE) and _is_trusted(type(thing)))


def _is_a(thing: object, *kinds: type) -> bool:
    """Whether something is of one of these classes itself: a proxy, asked by `isinstance`, may raise."""
    return issubclass(type(thing), kinds)


def _package(name: str) -> str:
    return name.partition(".")[0]


def _is_trusted(thing: FunctionType | type | ModuleType) -> bool:
    name = thing.__name__ if isinstance(thing, ModuleType) else thing.__module__
    return _package(name or "builtins") in _TRUSTED  # what is made in C may have none


@lru_cache(maxsize=256)
def _is_installed(package: str) -> bool:
    found = sys.modules.get(package)
    paths = [getattr(found, "__file__", None) or "", *getattr(found, "__path__", ())]
    return any(part in path for path in paths for part in _INSTALLED)


def _functions(attribute: object) -> Iterator[object]:
    """Yield the functions in what stands in a class."""
    if isinstance(attribute, FunctionType):
        yield attribute
    elif isinstance(attribute, staticmethod | classmethod):
        yield cast("staticmethod[..., Any]", attribute).__func__
    elif isinstance(attribute, property):
        yield from (item for item in (attribute.fget, attribute.fset, attribute.fdel) if item is not None)
    elif isinstance(attribute, cached_property):
        yield cast("Any", attribute).func


def _is_descriptor(attribute: Any) -> bool:
    return hasattr(attribute.__class__, "__get__")


def _attributes(thing: object) -> dict[str, object]:
    """Return what an object holds, by name."""
    attribute: dict[str, object] = dict(getattr(thing, "__dict__", {}))
    for item in type(thing).__mro__:
        slots: Any = vars(item).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if not name.startswith("__") and hasattr(thing, name):
                attribute[name] = getattr(thing, name)
    return attribute


@lru_cache(maxsize=4_096)
def _code_text(code: CodeType) -> str:
    constants: list[str] = []
    for item in cast("Iterable[object]", code.co_consts):
        if isinstance(item, CodeType):
            constants.append(_code_text(item))
        elif isinstance(item, frozenset):  # its order is another one in each process
            constants.append(repr(sorted(map(repr, cast("frozenset[object]", item)))))
        else:
            constants.append(repr(item))
    return repr((code.co_code, code.co_names, code.co_varnames, code.co_freevars, constants))


@lru_cache(maxsize=1_024)
def _code_of_class(kind: type) -> str:
    """Return the code of a class of an installed package, and of its bases."""
    found = [
        f"{name} {_code_text(function.__code__)}"
        for item in kind.__mro__
        if not _is_trusted(item)
        for name, attribute in sorted(vars(item).items())
        for function in _functions(attribute)
        if isinstance(function, FunctionType)
    ]
    return sha256("".join(found).encode("utf-8", "surrogatepass")).hexdigest()


@lru_cache(maxsize=4_096)
def _names_read(code: CodeType) -> tuple[tuple[str, ...], ...]:
    """Return the global names that code reads, each with the attributes that it asks of it."""
    chains: list[tuple[str, ...]] = []
    is_chain = False
    for step in dis.get_instructions(code):
        if step.opname in _LOADS:
            chains.append((str(step.argval),))
            is_chain = True
        elif is_chain and step.opname in _ATTRIBUTE:
            chains[-1] = (*chains[-1], str(step.argval))
        elif step.opname not in _IGNORED:
            is_chain = False
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            chains += _names_read(constant)
    return tuple(dict.fromkeys(chains))
