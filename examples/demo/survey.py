"""The work on one module: read it, parse it, and count its parts."""

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
    """Counters: the ones that all agents share, and those of each agent."""

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
    """Return the library's modules without its tests, as paths in its folder."""
    found: list[str] = []
    for folder, folders, files in os.walk(library()):
        folders[:] = [name for name in folders if name not in _LEFT_OUT]
        path = os.path.relpath(folder, library())
        found += [os.path.normpath(os.path.join(path, name)) for name in files if name.endswith(".py")]
    return sorted(found)[:most]


def survey(module: str) -> Survey:
    """Return the counts of a module. A module that cannot be parsed has only lines and bytes."""
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


def imported_packages(found: Survey) -> list[str]:
    """Return the top-level packages that a module imports: `os` for `os.path`."""
    return sorted({name.partition(".")[0] for name in found["imports"]})


def add_module(totals: Totals, found: Survey) -> Totals:
    """Return the counters plus those of one module."""
    return {
        "modules": totals["modules"] + 1,
        "functions": totals["functions"] + found["functions"],
        "classes": totals["classes"] + found["classes"],
        "lines": totals["lines"] + found["lines"],
        "bytes": totals["bytes"] + found["bytes"],
        "imports": totals["imports"] + len(found["imports"]),
    }


def sum_totals(*counted: Totals) -> Totals:
    """Return the sum of several counters."""
    return {
        "modules": sum(totals["modules"] for totals in counted),
        "functions": sum(totals["functions"] for totals in counted),
        "classes": sum(totals["classes"] for totals in counted),
        "lines": sum(totals["lines"] for totals in counted),
        "bytes": sum(totals["bytes"] for totals in counted),
        "imports": sum(totals["imports"] for totals in counted),
    }
