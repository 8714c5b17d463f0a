"""The report of sizes counts code and not prose, and the calls of one operation."""

from __future__ import annotations

import asyncio

from tools import sizes

SOURCE = '''"""A module."""

# Why.
X = (
    1,
)


def f() -> str:
    """Return a text."""
    return """two
lines"""
'''


def test_lines_of_code_leave_out_blank_lines_comments_and_docstrings() -> None:
    assert sizes.code_lines(SOURCE) == 6


def test_generated_twins_and_the_kit_are_not_counted() -> None:
    assert set(sizes.own({"a.py": 1, "sync/a.py": 1, "testing/a.py": 1})) == {"a.py"}


def test_the_calls_of_an_operation_are_the_same_each_time() -> None:
    # If the machine stands still in between, a call also yields to other tasks.
    first, *others = (asyncio.run(sizes.paths()) for _ in range(4))

    counted = {tuple(sorted(paths.items())) for paths in (first, *others)}
    assert len(counted) <= len(others), counted
    assert first["documents.get"] < first["documents.update"]


def test_the_main_paths_stay_short() -> None:
    # The least of three, because a process that was interrupted looks whether it has waited.
    paths = [asyncio.run(sizes.paths()) for _ in range(3)]
    counted = {name: min(each[name] for each in paths) for name in paths[0]}

    assert counted["documents.get"][1] <= 47  # 15 of them read in the event loop; a thread is not counted
    files, calls = counted["documents.update"]
    assert files <= 27  # one of them tells whether the batch changes a subject that is found
    assert calls <= 140  # 20 of them suppose the entry and learn its outcome, which saves the read when warm
