"""No circle of imports: annotations, imports inside functions and `import_module("…")` count."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.architecture.tree import PACKAGE

ROOT = PACKAGE.parent


def modules() -> dict[str, ast.Module]:
    """Return the parsed modules of the package by their dotted names."""
    found: dict[str, ast.Module] = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = ast.parse(path.read_bytes())
    return found


def imported(tree: ast.Module, names: frozenset[str]) -> Iterator[str]:
    """Yield the modules of the package that a module imports anywhere in its text."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                yield from (alias.name for alias in aliases if alias.name in names)
            case ast.ImportFrom(module=str(module), names=aliases) if module in names:
                inner = {f"{module}.{alias.name}" for alias in aliases}
                yield from (inner & names) or {module}
            case ast.Call(func=ast.Name(id="import_module"), args=[ast.Constant(value=str(name)), *_]):
                yield from {name} & names
            case _:
                pass


def circle(trees: dict[str, ast.Module]) -> list[str]:
    """Return the modules of one circle of imports, in order, or nothing."""
    names = frozenset(trees)
    graph = {name: set(imported(tree, names)) - {name} for name, tree in trees.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_circle_of_imports() -> None:
    assert circle(modules()) == []


@pytest.mark.parametrize(
    "text",
    [
        "from keepstate.b import x",
        "from keepstate import b",
        "import keepstate.b",
        "def f():\n    from keepstate.b import x",
        "if TYPE_CHECKING:\n    from keepstate.b import x",
        "import_module('keepstate.b')",
    ],
)
def test_each_kind_of_import_closes_a_circle(text: str) -> None:
    trees = {"keepstate": "", "keepstate.a": text, "keepstate.b": "from keepstate.a import y"}

    assert set(circle({name: ast.parse(code) for name, code in trees.items()})) == {
        "keepstate.a",
        "keepstate.b",
    }
