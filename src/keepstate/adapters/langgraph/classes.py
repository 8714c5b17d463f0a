"""Registry of the classes whose objects may come back from stored checkpoints, and of their shapes.

These are LangChain's messages, LangGraph's own types, classes registered with `keepstate.register`, classes
allowed by name, and classes whose objects this process has stored. A name in stored bytes is looked up and
never imported, unless it was allowed.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from keepstate.adapters.langgraph.shapes import BUILDERS, MESSAGES, framework, shape_of_class, stand_in_of
from keepstate.errors import InvalidError
from keepstate.values import limits
from keepstate.values.schema import CLASSES, Registration, Registry
from keepstate.values.shapes import Shape
from keepstate.values.types import LEAF_WRITERS

if TYPE_CHECKING:
    from langgraph.graph import StateGraph  # pyright: ignore[reportMissingTypeStubs]

Named: TypeAlias = type | tuple[str, ...]
"""A class, or its module and name."""
Allowed: TypeAlias = "Named | StateGraph[Any, Any, Any, Any]"
"""A class, or its module and name, or a graph: the classes that its schemas name."""

_VERSION: Final = 1
_TOLD: Final = set[str]()
"""The classes about which this process has warned."""


class NotAllowedWarning(UserWarning):
    """Objects of a class that is not allowed are stored: other processes will not read them."""


class Classes(Registry):
    """The classes that stored objects may become.

    Args:
        allow: Classes of the application, or their modules and names, or graphs.
        is_quiet: Do not warn about classes that other processes will not read.
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
            InvalidError: An entry is neither a class nor a module and a name.
        """
        for one in _each(more):
            match one:
                case type():
                    self._allowed[_name(one)] = one.__module__, one.__qualname__
                    self.of(one)
                case (str() as module, str() as name):
                    self._allowed[f"{module}.{name}"] = module, name
                case _:
                    raise InvalidError(f"{one!r} is not a class; give a class, or its module and name")

    def allowing(self, more: Collection[Allowed]) -> Classes:
        """Return a registry with more allowed classes; both share the classes that this process stored."""
        other = Classes(is_quiet=self._is_quiet)
        other._met_by_name, other._met_by_class = self._met_by_name, self._met_by_class
        other._allowed = dict(self._allowed)
        other.allow(more)
        return other

    def replaces(self, name: str, kind: type, shape: Shape) -> None:
        """Register a class and its shape under a name, instead of an earlier one."""
        self._by_name[name] = self._by_class[kind] = Registration(name, _VERSION, kind, shape)

    # ---- writing

    def of(self, kind: type) -> Registration | None:
        """Return how objects of a class are stored. A class that this process stores may come back in it."""
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
        """Return the class of objects stored under a name.

        Raises:
            InvalidError: The class is not allowed.
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
            f"an object of {name} is stored here, and its class is not allowed; if it is a class of yours, "
            "allow it: KeepstateSaver(..., allow=[...]), or register it with keepstate.register"
        )

    def upcast_fields(self, fields: dict[str, Any], known: Registration, version: int) -> dict[str, Any]:
        """Return the fields of a stored version in the form of the registered version."""
        return CLASSES.upcast_fields(fields, known, version)

    def knows(self, name: str, version: int) -> bool:
        """Return whether objects stored under a name can be created here."""
        known = self._by_name.keys() | self._met_by_name.keys() | self._allowed.keys()
        return name in known or CLASSES.knows(name, version)

    def _imported(self, name: str) -> Registration:
        kind = class_of(self._allowed[name])
        made = self.of(kind)
        if made is None:
            raise InvalidError(f"{_name(kind)} is allowed, but its objects cannot be created again")
        return made

    def made(self, kind: type, attributes: dict[str, Any]) -> Any:
        """Return a new object of a known class with these attributes."""
        return self._by_class[kind].build(attributes)

    @property
    def builders(self) -> Mapping[bytes, Callable[[Mapping[str, Any], Collection[str]], Any]]:
        """The functions that create messages from their attributes, by stored names."""
        return BUILDERS()

    @property
    def messages(self) -> frozenset[type]:
        """The classes of messages without state besides their attributes."""
        return MESSAGES()


def class_of(allowed: object) -> type:
    """Return an allowed class, imported if it is given by name; nothing is called.

    Raises:
        InvalidError: It is absent, or not a class.
    """
    match allowed:
        case type():
            return allowed
        case (str() as module, str() as path):
            try:
                found: object = import_module(module)
            except Exception as error:  # anything that a module of the caller raises
                raise InvalidError(
                    f"{module}.{path} is allowed, but {module} cannot be imported: {error}"
                ) from error
        case _:
            raise InvalidError(f"{allowed!r} is not a class; give a class, or its module and name")
    for part in path.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, type):
        what = "does not exist" if found is None else f"is a {type(found).__name__}, not a class"
        raise InvalidError(f"{module}.{path} is allowed, but {what}; only classes can be allowed")
    return found


def flat(more: Iterable[Allowed]) -> list[Named]:
    """Return allowed classes, with those of graphs, or their modules and names; entries are checked later."""
    return cast("list[Named]", _each(more))


def hashable(more: Iterable[Allowed]) -> frozenset[Allowed]:
    """Return allowed classes as a set; its entries are checked later.

    Raises:
        InvalidError: It is not a list.
    """
    each = (tuple(cast("list[str]", one)) if isinstance(one, list) else one for one in _each(more))
    try:
        return cast("frozenset[Allowed]", frozenset(each))
    except TypeError as error:
        raise InvalidError(
            f"{more!r} is not a list of classes; give classes, or their modules and names"
        ) from error


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"[-limits.TYPE_NAME_BYTES :]


def _each(more: object) -> list[object]:
    if isinstance(more, str | bytes) or not isinstance(more, Iterable):
        raise InvalidError(f"`allow` is {more!r}; give a list of classes, or of their modules and names")
    each = list[object]()
    for one in cast("Iterable[object]", more):
        graph = getattr(one, "builder", one)  # a compiled graph has the graph that it was made of
        each += classes_in(graph) if hasattr(graph, "state_schema") else [one]
    return each


def classes_in(graph: Any) -> list[type]:
    """Return the classes that the schemas of a graph name, as LangGraph finds them for its strict mode.

    Classes whose objects a checkpoint cannot hold are left out.
    """
    serde: Any = import_module("langgraph._internal._serde")  # loads the graphs of LangGraph
    schemas = [graph.state_schema, graph.input_schema, graph.output_schema]
    schemas += [node.input_schema for node in graph.nodes.values()]
    names: set[tuple[str, ...]] = serde.collect_allowlist_from_schemas(
        schemas=[one for one in schemas if one is not None], channels=graph.channels
    )
    known = Classes(is_quiet=True)
    found = list[type]()
    for module, *_, name in sorted(names):
        kind: object = getattr(sys.modules.get(module), name, None)
        if isinstance(kind, type) and (kind in LEAF_WRITERS or known.of(kind) is not None):
            found.append(kind)
    return found
