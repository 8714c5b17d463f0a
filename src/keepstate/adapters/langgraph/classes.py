"""Which classes come back from stored checkpoints: a closed list, and how their objects are taken apart.

What comes back: LangChain's messages and LangGraph's own types, what is registered with `keepstate.register`,
what is allowed by name, and classes whose objects this very process has stored. A name in stored bytes is
looked up and never imported, but for one that was allowed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from importlib import import_module
from typing import Any, Final, TypeAlias, cast

from keepstate.adapters.langgraph.shapes import BUILDERS, MESSAGES, framework, shape_of_class, stand_in_of
from keepstate.errors import InvalidError
from keepstate.values import limits
from keepstate.values.schema import CLASSES, Registration, Registry
from keepstate.values.shapes import Shape

Allowed: TypeAlias = type | tuple[str, ...]
"""A class, or its module and name."""

_VERSION: Final = 1
_TOLD: Final = set[str]()
"""The classes of which was said already, once in a process, that nobody has allowed them."""


class NotAllowedWarning(UserWarning):
    """Objects of a class are stored that nobody has allowed: another process will not read them."""


class Classes(Registry):
    """What stored objects may turn into.

    Args:
        allow: Classes of the application, or their modules and names.
        is_quiet: Whether to say nothing of classes that other processes will not read.
    """

    def __init__(self, allow: Iterable[Allowed] = (), *, is_quiet: bool = False) -> None:
        super().__init__()
        self._is_quiet = is_quiet
        for known in framework():
            self._by_name[known.name] = self._by_class[known.kind] = known
        self._allowed: dict[str, tuple[str, str]] = {}
        self._met_by_name: dict[str, Registration] = {}
        self._met_by_class: dict[type, Registration] = {}
        self.allow(allow)

    def allow(self, more: Iterable[Allowed]) -> None:
        """Let objects of more classes come back.

        Raises:
            InvalidError: One is neither a class nor a module and a name.
        """
        for one in _each(more):
            match one:
                case type():
                    self._allowed[_name(one)] = one.__module__, one.__qualname__
                    self.of(one)
                case (str() as module, str() as name):
                    self._allowed[f"{module}.{name}"] = module, name
                case _:
                    raise InvalidError(f"{one!r} allows nothing; give a class, or its module and name")

    def allowing(self, more: Collection[Allowed]) -> Classes:
        """Return these classes and more; what one of both has met, the other knows too."""
        other = Classes(is_quiet=self._is_quiet)
        other._met_by_name, other._met_by_class = self._met_by_name, self._met_by_class
        other._allowed = dict(self._allowed)
        other.allow(more)
        return other

    def replaces(self, name: str, kind: type, shape: Shape) -> None:
        """Take this for what is stored under a name."""
        self._by_name[name] = self._by_class[kind] = Registration(name, _VERSION, kind, shape)

    # ---- writing

    def of(self, kind: type) -> Registration | None:
        """Return how objects of a class are stored: what this process stores, it may read again."""
        return (
            self._by_class.get(kind) or CLASSES.of(kind) or self._met_by_class.get(kind) or self._meet(kind)
        )

    def _meet(self, kind: type) -> Registration | None:
        name = _name(kind)
        shape = shape_of_class(kind)
        if shape is None:
            stand_in = stand_in_of(kind)
            if stand_in is not None:
                self._met_by_class[kind] = stand_in
            return stand_in
        found = Registration(name, _VERSION, kind, shape)
        self._met_by_name[name] = self._met_by_class[kind] = found
        if not self._is_quiet and name not in self._allowed and name not in _TOLD:
            _TOLD.add(name)
            warnings.warn(
                f"objects of {name} are stored in checkpoints; other processes read them only if they allow "
                f"it: KeepstateSaver(..., allow=[{kind.__qualname__}])",
                NotAllowedWarning,
                stacklevel=2,
            )
        return found

    # ---- reading

    def named(self, name: str, version: int) -> Registration:
        """Return the class that objects stored under a name turn into.

        Raises:
            InvalidError: Nobody has allowed it.
            UnsupportedError: It is registered in an older version.
        """
        found = self._by_name.get(name) or self._met_by_name.get(name)
        if found is not None and version <= found.version:
            return found
        if CLASSES.knows(name, version):
            return CLASSES.named(name, version)
        if name in self._allowed:
            return self._imported(name)
        if found is not None or CLASSES.knows(name, 1):
            return CLASSES.named(name, version)
        raise InvalidError(
            f"an object of {name} is stored here, and nobody allowed it to be made; if it is a class of "
            "yours, name it: KeepstateSaver(..., allow=[...]), or register it with keepstate.register"
        )

    def upcasted(self, fields: dict[str, Any], known: Registration, version: int) -> dict[str, Any]:
        """Return the fields of a stored version as those of the registered one."""
        return CLASSES.upcasted(fields, known, version)

    def knows(self, name: str, version: int) -> bool:
        """Return whether objects stored under a name can be made here."""
        known = self._by_name.keys() | self._met_by_name.keys() | self._allowed.keys()
        return name in known or CLASSES.knows(name, version)

    def _imported(self, name: str) -> Registration:
        kind = class_of(self._allowed[name])
        made = self.of(kind)
        if made is None:
            raise InvalidError(f"{_name(kind)} is allowed, and its objects cannot be made again")
        return made

    def made(self, kind: type, attributes: dict[str, Any]) -> Any:
        """Return the object of a known class that has these attributes."""
        return self._by_class[kind].build(attributes)

    @property
    def builders(self) -> Mapping[bytes, Callable[[Mapping[str, Any], Collection[str]], Any]]:
        """Return what makes messages of their attributes, by the names that they are stored under."""
        return BUILDERS()

    @property
    def messages(self) -> frozenset[type]:
        """The classes of messages whose objects are nothing but their attributes."""
        return MESSAGES()


def class_of(allowed: Allowed) -> type:
    """Return the class that is allowed, imported if it is named; nothing else is looked for or called.

    Raises:
        InvalidError: It is not there, or is no class.
    """
    match allowed:
        case type():
            return allowed
        case (str() as module, str() as path):
            try:
                found: object = import_module(module)
            except Exception as error:  # whatever a module of the caller's raises
                raise InvalidError(
                    f"{module}.{path} is allowed, and {module} cannot be imported: {error}"
                ) from error
        case _:
            raise InvalidError(f"{allowed!r} allows nothing; give a class, or its module and name")
    for part in path.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, type):
        what = "is not there" if found is None else f"is a {type(found).__name__} and no class"
        raise InvalidError(f"{module}.{path} is allowed, and {what}; only classes can be allowed")
    return found


def hashable(more: Iterable[Allowed]) -> frozenset[Allowed]:
    """Return what allows classes as a set; what allows nothing is refused later.

    Raises:
        InvalidError: It is no list.
    """
    each = (tuple(cast("list[str]", one)) if isinstance(one, list) else one for one in _each(more))
    try:
        return cast("frozenset[Allowed]", frozenset(each))
    except TypeError as error:
        raise InvalidError(f"{more!r} allows nothing; give classes, or their modules and names") from error


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"[-limits.TYPE_NAME_BYTES :]


def _each(more: object) -> list[object]:
    if isinstance(more, str | bytes) or not isinstance(more, Iterable):
        raise InvalidError(f"`allow` is {more!r}; give a list of classes, or of their modules and names")
    return [*cast("Iterable[object]", more)]
