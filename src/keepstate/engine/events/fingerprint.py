"""Fingerprint of a function: text that changes when the function's visible behavior changes.

It covers Python code with its constants, defaults and closures, and everything that the code names:
functions, classes with their bases, plain values and containers of them, names of modules, and the class and
attributes of objects. Of other installed packages it covers the code, but not what that code names. Of the
standard library and keepstate it covers only the names. The fingerprint is the same in every process: it
contains no address, and does not depend on the order of a set.
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
"""Classes of the standard library whose `repr` is a complete description of a value."""
_TRUSTED: Final = frozenset({*sys.stdlib_module_names, "builtins", "keepstate"})
_INSTALLED: Final = ("site-packages", "dist-packages")
_LOADS: Final = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})
_ATTRIBUTE: Final = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_IGNORED: Final = frozenset({"CACHE", "PRECALL", "EXTENDED_ARG"})
_FIELDS: Final = ("__annotations__", "__struct_defaults__")
"""Dunder attributes of a class that describe its fields."""


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
        self._unseen = unseen
        self._own_package = _package(qualified_name(function))
        self._numbers: dict[int, int] = {}
        self._pending: list[object] = []
        """Visited objects are kept alive, because `id` of a deleted object may be reused."""
        self._function = function

    def parts(self) -> Iterator[str]:
        if isinstance(
            self._function, FunctionType
        ):  # also a function of keepstate, if it is the reducer itself
            yield from self._of_function(self._function)
        else:
            yield self._describe(self._function)
        number = 0
        while number < len(self._pending):
            yield f"#{number}"
            yield from self._visit(self._pending[number])
            number += 1

    def _describe(self, thing: object) -> str:
        """Describe a plain value by its `repr`, and any other object by its number, to be visited later."""
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
        except Exception:  # noqa: BLE001 - an object of the caller may raise anything, such as an unbound proxy
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
            except ValueError:  # the cell is empty
                yield "empty"
        for chain in _names_read(function.__code__):
            yield from self._named(function.__globals__, chain)

    def _named(self, names: Mapping[str, Any], chain: Sequence[str]) -> Iterator[str]:
        """Describe the object of a global name. In a module, follow the attributes that are read from it."""
        if (name := chain[0]) not in names:
            return  # a builtin, or undefined: the code contains the name
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
            yield repr((cast("Pattern[str]", thing).pattern, thing.flags))  # its repr is truncated
        elif isinstance(thing, BuiltinFunctionType):
            yield qualified_name(thing)
            if not isinstance(thing.__self__, ModuleType | type(None)):
                yield self._describe(thing.__self__)
        elif kind.__module__ == "operator":  # such as itemgetter
            yield repr(thing)
        elif kind.__module__ in ("types", "typing") and hasattr(thing, "__args__"):
            yield from self._all((getattr(thing, "__origin__", None), *thing.__args__))
            yield from self._all(getattr(thing, "__metadata__", ()))
        elif _is_trusted(kind) and hasattr(
            thing, "__wrapped__"
        ):  # such as a function with functools.lru_cache
            yield self._describe(thing.__wrapped__)
        elif isinstance(thing, SimpleNamespace) or not (_is_trusted(kind) or self._is_foreign(kind)):
            for name, attribute in sorted(_attributes(thing).items()):
                yield f"{name} {self._describe(attribute)}"
        elif self._unseen is not None and _package(kind.__module__) not in sys.stdlib_module_names:
            yield self._unseen(thing)

    def _is_foreign(self, thing: FunctionType | type) -> bool:
        """Return whether a function or class belongs to another installed package."""
        package = _package(thing.__module__)
        return package != self._own_package and _is_installed(package)


def _member(item: Any) -> str:
    """Describe a member of a set, without numbers, because those depend on the order of the set."""
    if isinstance(item, tuple):
        return f"({', '.join(map(_member, cast('Iterable[object]', item)))})"
    return f"{qualified_name(item)} {item!r}" if _has_complete_repr(item) else qualified_name(item)


def _has_complete_repr(thing: object) -> bool:
    """Return whether the `repr` of an object is complete, and the same in each process."""
    return _is_a(thing, *_PLAIN) or (_is_a(thing, *_REPR_IS_COMPLETE) and _is_trusted(type(thing)))


def _is_a(thing: object, *kinds: type) -> bool:
    """Return whether the type of an object is one of these classes. `isinstance` may raise for a proxy."""
    return issubclass(type(thing), kinds)


def _package(name: str) -> str:
    return name.partition(".")[0]


def _is_trusted(thing: FunctionType | type | ModuleType) -> bool:
    name = thing.__name__ if isinstance(thing, ModuleType) else thing.__module__
    return _package(name or "builtins") in _TRUSTED  # an object made in C may not have a module


@lru_cache(maxsize=256)
def _is_installed(package: str) -> bool:
    found = sys.modules.get(package)
    paths = [getattr(found, "__file__", None) or "", *getattr(found, "__path__", ())]
    return any(part in path for path in paths for part in _INSTALLED)


def _functions(attribute: object) -> Iterator[object]:
    """Yield the functions in an attribute of a class."""
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
    """Return the attributes of an object, by name."""
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
        elif isinstance(item, frozenset):  # its order differs between processes
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
    """Return the global names that code reads, each with the chain of attributes read from it."""
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
