"""A file is read in one sitting, a function on one screen, and a folder grows only on purpose."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.architecture.tree import python_files, shown
from tools.sizes import BUDGETS, UNPACKED_BYTES, by_folder, code_lines, lengths, unpacked_bytes

LONGEST_FILE = 500
LONGEST_FUNCTION = 59
LEAST_USED = 0.9

Function = ast.FunctionDef | ast.AsyncFunctionDef


def test_no_file_has_more_than_500_lines_of_code() -> None:
    texts = {shown(path): path.read_text(encoding="utf-8") for path in python_files()}
    long = {name: text for name, text in texts.items() if len(text.splitlines()) > LONGEST_FILE}

    assert [name for name, text in long.items() if code_lines(text) > LONGEST_FILE] == []


def test_no_function_is_60_lines_long() -> None:
    lengths = {
        f"{shown(path)}:{function.lineno} {function.name}": length_of(function)
        for path in python_files()
        for function in functions(ast.parse(path.read_bytes()))
    }

    assert {name: length for name, length in lengths.items() if length > LONGEST_FUNCTION} == {}


def test_no_folder_is_over_its_budget() -> None:
    over = {folder: lines for folder, lines in by_folder(lengths()).items() if lines > BUDGETS.get(folder, 0)}

    assert over == {}, "cut, or raise the budget in tools/sizes.py and say in the commit what it adds"


def test_no_budget_is_left_far_above_what_was_cut() -> None:
    used = by_folder(lengths())

    assert [folder for folder, budget in BUDGETS.items() if used[folder] < LEAST_USED * budget] == []


def test_the_wheel_unpacks_within_its_budget() -> None:
    assert unpacked_bytes() <= UNPACKED_BYTES


def functions(tree: ast.Module) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def length_of(function: Function) -> int:
    """Return the function's lines without those of its docstring, which may be as long as it has to say."""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function) is not None and first.end_lineno is not None:
        lines -= first.end_lineno - first.lineno + 1
    return lines
