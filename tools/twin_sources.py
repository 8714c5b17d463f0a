"""What the generator of twins reads in a module: its classes, and who makes objects of them."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

MADE: set[str] = set()
"""The classes of which users make objects; known once all sources are read."""
MAKERS: dict[str, tuple[ast.FunctionDef, dict[str, str]]] = {}
"""What makes objects of parents' subclasses that have no `__init__`, and where its names come from."""


@dataclass
class Source:
    """One module: its classes, its type variables, and where its names come from.

    `deferred` has the modules that it imports when they are first used, by their names in it.
    """

    name: str
    classes: dict[str, ast.ClassDef] = field(default_factory=dict[str, ast.ClassDef])
    variables: dict[str, str] = field(default_factory=dict[str, str])
    origins: dict[str, str] = field(default_factory=dict[str, str])
    deferred: dict[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def read(cls, name: str, text: str) -> Source:
        """Return what stands at the top level of a module's text."""
        source = cls(name)
        home = f"keepstate.{name}"
        for node in ast.parse(text).body:
            match node:
                case ast.ImportFrom(module=str(module), names=names):
                    source.origins |= {alias.asname or alias.name: module for alias in names}
                case ast.If(test=ast.Name(id="TYPE_CHECKING"), orelse=[_, *_]):
                    source.deferred = {
                        alias.asname: f"{each.module}.{alias.name}"
                        for each in node.body
                        if isinstance(each, ast.ImportFrom)
                        for alias in each.names
                        if alias.asname
                    }
                case ast.Assign(targets=[ast.Name(id=left)], value=ast.Call(func=ast.Name(id="TypeVar"))):
                    source.variables[left] = ast.unparse(node)
                case ast.Assign(targets=[ast.Name(id=left)]) | ast.AnnAssign(target=ast.Name(id=left)):
                    source.origins[left] = home
                case ast.ClassDef(name=left):
                    source.classes[left] = node
                    source.origins[left] = home
                case _:
                    pass
        return source


def read_all(modules: Iterable[str], folder: Path) -> dict[str, Source]:
    """Return the sources by module, and take note of whose objects users make."""
    sources = {
        module: Source.read(module, (folder / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))
        for module in modules
    }
    for source in sources.values():
        for name, cls in source.classes.items():
            if is_parent(name) and (node := own_maker(cls)) is not None:
                MAKERS[name] = node, source.origins
            elif is_parent(name):
                MAKERS.update((name, MAKERS[base]) for base in bases_of(cls) if base in MAKERS)
    for source in sources.values():
        MADE.update(name for name, cls in source.classes.items() if is_made(cls))
    return sources


def is_parent(name: str) -> bool:
    """Return whether other twins inherit from it, and so hold an inner object of another class."""
    return name in {
        *("Resource", "Loaded", "Manager", "Parts", "ToolSpaces"),
        *("References", "Search", "Upkeep"),
        *("ApprovalReads", "ApprovalLinks"),
        *("RuleControl", "TaskControl", "TaskReads", "TaskSteps", "StepControl"),
    }


def is_made(cls: ast.ClassDef) -> bool:
    """Return whether users make objects of a class, which then have a mode from the beginning."""
    node = None if is_parent(cls.name) else maker_of(cls)
    if node is None:
        return False
    return is_options(node.args.kwarg) or any(argument.arg == "_mode" for argument in node.args.kwonlyargs)


def is_options(argument: ast.arg | None) -> bool:
    """Return whether an argument takes the options of a `TypedDict`, the mode among them."""
    kind = argument.annotation if argument else None
    return isinstance(kind, ast.Subscript) and ast.unparse(kind.value) == "Unpack"


def maker_of(cls: ast.ClassDef) -> ast.FunctionDef | None:
    """Return the `__init__` of a class, or that of its parent."""
    inherited = [MAKERS[base][0] for base in bases_of(cls) if base in MAKERS]
    return own_maker(cls) or (inherited[0] if inherited else None)


def own_maker(cls: ast.ClassDef) -> ast.FunctionDef | None:
    """Return the `__init__` that stands in a class."""
    found = [node for node in cls.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
    return found[0] if found else None


def bases_of(cls: ast.ClassDef) -> list[str]:
    """Return the names of the classes that a class is derived from."""
    return [base.id for base in cls.bases if isinstance(base, ast.Name)]
