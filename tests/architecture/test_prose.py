"""Texts are plain English: docstrings, comments, messages and pages keep the rules that code can check."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.architecture.tree import PACKAGE, ROOT, python_files, shown

SUMMARY = re.compile(r"(What|Who|Whose|Whom|Whether|How|Where|When|Which)\b")
"""A summary begins with a verb or a noun. The question of a folder's `__init__` is in capitals."""

AVOIDED = {
    r"(?<!there )\b(is|are|was|were) no\b(?! (longer|more)\b)": "is not a",
    r"\banew\b": "again",
    r"\b(some|any|every)body\b|(?<!\")\bnobody\b": "the caller, the worker, the process, nothing",
    r"\bwhoever\b|\bwhom\b": "the caller, the worker, the process",
    r"\bhow-manieth\b": "attempt number, from 1",
    r"\bat the most\b": "at most",
    r"\b(which|who|that|would|must) else\b|\belse (would|it|the)\b": "otherwise",
    r"\bbeside\b": "next to, besides, alongside",
    r"\bcolours?\b": "async or blocking; color for a terminal",
}
"""What is avoided, by pattern, and what to write."""

KIT = ROOT / "packages"
EXAMPLES = ROOT / "examples"

UNREVISED: tuple[str, ...] = ()
"""Files and folders whose texts are still to be rewritten."""


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield each docstring with its line."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if (text := ast.get_docstring(node)) is not None:
            yield node.body[0].lineno, text


@cache
def texts(path: Path) -> tuple[tuple[int, str], ...]:
    """Return the comments and strings of code, or the lines of a page without its code, with their lines."""
    return tuple(_texts(path))


def _texts(path: Path) -> Iterator[tuple[int, str]]:
    source = path.read_text(encoding="utf-8")
    if path.suffix in {".lua", ".sql"}:
        for number, line in enumerate(source.splitlines(), 1):
            yield number, re.sub(r"`[^`]*`", "", line.partition("--")[2])
        return
    if path.suffix == ".py":
        kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type in kinds:
                yield token.start[0], re.sub(r"`[^`\n]*`", "", token.string)
        return
    outside = re.sub(r"(?ms)^```.*?^```", lambda match: "\n" * match[0].count("\n"), source)
    for number, line in enumerate(outside.splitlines(), 1):
        yield number, re.sub(r"`[^`]*`", "", line)


def revised(paths: list[Path]) -> list[Path]:
    """Return the paths that are to keep the rules."""
    return [path for path in paths if not shown(path).startswith(UNREVISED)] if UNREVISED else paths


def sources() -> list[Path]:
    """Return the files of the package, the test kit and the examples that are written by hand."""
    ours = {PACKAGE, KIT, EXAMPLES}
    return [path for path in python_files() if ours & set(path.parents) and "/sync/" not in shown(path)]


def scripts() -> list[Path]:
    """Return the scripts and statements that run on servers."""
    return sorted([*PACKAGE.rglob("*.lua"), *PACKAGE.rglob("*.sql")])


def pages() -> list[Path]:
    """Return the pages of the documentation."""
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *KIT.glob("*/*.md")])


def test_each_summary_begins_with_a_verb_or_a_noun() -> None:
    wrong = [
        f"{shown(path)}:{line} {text.splitlines()[0]}"
        for path in revised(sources())
        for line, text in docstrings(ast.parse(path.read_bytes()))
        if SUMMARY.match(text)
    ]

    assert wrong == []


@pytest.mark.parametrize("pattern", AVOIDED)
def test_no_text_says(pattern: str) -> None:
    avoided = re.compile(pattern, re.IGNORECASE)
    found = [
        f"{shown(path)}:{line} {match[0]!r}: write {AVOIDED[pattern]}"
        for path in revised([*sources(), *scripts(), *pages()])
        for line, text in texts(path)
        for match in avoided.finditer(text)
    ]

    assert found == []


def test_no_text_has_the_marks_of_an_unfinished_merge() -> None:
    marks = re.compile(r"(?m)^(<{7}|>{7}|\|{7})( |$)")
    found = [shown(path) for path in [*sources(), *scripts(), *pages()] if marks.search(path.read_text())]

    assert found == []
