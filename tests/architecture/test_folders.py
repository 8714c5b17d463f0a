"""Each folder of the package says which question it answers, and its `__init__` holds nothing but names."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.tree import PACKAGE, shown

LAZY = {"__getattr__", "__dir__"}
LAZY_FOLDERS = {PACKAGE, PACKAGE / "managers", PACKAGE / "sync", PACKAGE / "typed"}
"""They load their public names when these are first used: a program pays for the managers that it has."""


def test_each_folder_has_a_docstring() -> None:
    silent = [shown(init) for init in inits() if not ast.get_docstring(ast.parse(init.read_bytes()))]

    assert silent == []


def test_each_folder_with_python_in_it_is_a_package() -> None:
    folders = {path.parent for path in PACKAGE.rglob("*.py")}

    assert [shown(folder) for folder in folders if not (folder / "__init__.py").exists()] == []


def test_an_init_holds_nothing_but_names() -> None:
    code = [
        f"{shown(init)}:{statement.lineno}"
        for init in inits()
        for statement in ast.parse(init.read_bytes()).body
        if not (only_names(statement) or (init.parent in LAZY_FOLDERS and loads_lazily(statement)))
    ]

    assert code == []


def inits() -> Iterator[Path]:
    return PACKAGE.rglob("__init__.py")


def only_names(statement: ast.stmt) -> bool:
    """Return whether a statement is a docstring, an import, or a list of names."""
    match statement:
        case ast.Expr(value=ast.Constant(value=str())) | ast.Import() | ast.ImportFrom():
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING"), body=body, orelse=[]):
            return all(only_names(inner) for inner in body)
        case ast.Assign(targets=[ast.Name(id="__all__")]) | ast.AnnAssign(target=ast.Name(id="__all__")):
            return True
        case _:
            return False


def loads_lazily(statement: ast.stmt) -> bool:
    """Return whether a statement belongs to the top folder's table of lazily loaded names."""
    match statement:
        case ast.FunctionDef(name=name):
            return name in LAZY
        case ast.Assign() | ast.AnnAssign():
            return True
        case _:
            return False
