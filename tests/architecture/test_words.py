"""The page of words has a row for every noun that a class of the package is named by."""

from __future__ import annotations

import ast
import re

from tests.architecture.tree import PACKAGE, ROOT, python_files, shown

WORDS = ROOT / "docs" / "reference" / "words.md"
ELSEWHERE = ("src/keepstate/sync/", "src/keepstate/testing/")
"""Twins have the names of their sources, and the parts of the contract those of what they test."""
ENDINGS = (("ies", "y"), ("es", ""), ("s", ""))


def last_word(name: str) -> str:
    """Return the word that says what a class is: `CommitRequest` is a request."""
    return re.findall(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+", name)[-1].lower()


def singulars(word: str) -> set[str]:
    """Return a word and what it may be the plural of."""
    return {word} | {word.removesuffix(end) + left for end, left in ENDINGS if word.endswith(end)}


def explained() -> set[str]:
    """Return the words that have a row."""
    rows = re.findall(r"^\| ([^|]+) \|", WORDS.read_text(encoding="utf-8"), re.MULTILINE)
    return {word for row in rows for word in re.findall(r"[a-z]+", row.lower())}


def test_every_noun_that_a_class_is_named_by_has_a_row() -> None:
    words = explained()
    named = {
        f"{shown(path)}: {node.name}": last_word(node.name)
        for path in python_files()
        if PACKAGE in path.parents and not shown(path).startswith(ELSEWHERE)
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    }

    assert {name: word for name, word in named.items() if not singulars(word) & words} == {}


def test_no_word_has_two_rows() -> None:
    rows = re.findall(r"^\| ([^|]+) \|", WORDS.read_text(encoding="utf-8"), re.MULTILINE)

    assert sorted({row for row in rows if rows.count(row) > 1} - {"word", "token"}) == []
