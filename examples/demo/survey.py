"""What the demo does with a module: read it, parse it, count what is in it."""

from __future__ import annotations

import ast
import os
import sysconfig
from functools import cache
from pathlib import Path
from typing import TypedDict

_LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


class Survey(TypedDict):
    """The document of a module."""

    functions: int
    classes: int
    lines: int
    bytes: int
    imports: list[str]


class Totals(TypedDict):
    """The counters that all agents share, and those of each."""

    modules: int
    functions: int
    classes: int
    lines: int
    bytes: int
    imports: int


NOTHING: Totals = {"modules": 0, "functions": 0, "classes": 0, "lines": 0, "bytes": 0, "imports": 0}


@cache
def library() -> Path:
    """Return the folder of this Python's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def modules(most: int | None = None) -> list[str]:
    """Return the library's modules, as paths in its folder; tests are left out."""
    found: list[str] = []
    for folder, folders, files in os.walk(library()):
        folders[:] = [name for name in folders if name not in _LEFT_OUT]
        place = os.path.relpath(folder, library())
        found += [os.path.normpath(os.path.join(place, name)) for name in files if name.endswith(".py")]
    return sorted(found)[:most]


def survey(module: str) -> Survey:
    """Return what is in a module; one that cannot be parsed has lines only."""
    source = (library() / module).read_bytes()
    functions = classes = 0
    imports: set[str] = set()
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        tree = ast.Module([], [])
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            functions += 1
        elif isinstance(node, ast.ClassDef):
            classes += 1
        elif isinstance(node, ast.Import):
            imports.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            imports.add(node.module)
    return {
        "functions": functions,
        "classes": classes,
        "lines": source.count(b"\n"),
        "bytes": len(source),
        "imports": sorted(imports),
    }


def tops(found: Survey) -> list[str]:
    """Return the packages that a module imports from: of `os.path` it is `os`."""
    return sorted({name.partition(".")[0] for name in found["imports"]})


def added(totals: Totals, found: Survey) -> Totals:
    """Return the counters with one more module in them."""
    return {
        "modules": totals["modules"] + 1,
        "functions": totals["functions"] + found["functions"],
        "classes": totals["classes"] + found["classes"],
        "lines": totals["lines"] + found["lines"],
        "bytes": totals["bytes"] + found["bytes"],
        "imports": totals["imports"] + len(found["imports"]),
    }


def together(*counted: Totals) -> Totals:
    """Return several counters as one."""
    return {
        "modules": sum(totals["modules"] for totals in counted),
        "functions": sum(totals["functions"] for totals in counted),
        "classes": sum(totals["classes"] for totals in counted),
        "lines": sum(totals["lines"] for totals in counted),
        "bytes": sum(totals["bytes"] for totals in counted),
        "imports": sum(totals["imports"] for totals in counted),
    }
