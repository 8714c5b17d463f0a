"""No test judges by the wall clock, but those marked `timed`: its limits only end what hangs."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.tree import ROOT, shown

GUARD_S = 60
"""The shortest limit that ends what hangs and fails nothing that a loaded machine only delays."""
FOLDERS = ("tests", "packages/keepstate-testing/src")
CLOCKS = {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"}
RAISES_AFTER = {"timeout": 0, "wait_for": 1, "result": 0}
"""Calls that raise after a limit, and the place of the limit among their arguments."""
RAISES_WITH_KEYWORD = {"wait_for", "communicate", "result", "run", "check_output", "check_call", "Barrier"}
TELLS = {"wait", "join", "acquire"}
"""Calls that only return after a limit: a judge if their answer is asserted."""
TEXT = dict[str, float]


def findings(source: str) -> list[str]:
    """Return each line that judges by the wall clock, outside of tests that are marked `timed`."""
    tree = ast.parse(source)
    known = {
        target.id: statement.value.value
        for statement in tree.body
        for target in _targets(statement)
        if isinstance(statement, (ast.Assign, ast.AnnAssign))
        and isinstance(statement.value, ast.Constant)
        and type(statement.value.value) in (int, float)
    }
    return sorted(_found(tree, known, is_free=any(_is_timed(one) for one in tree.body)))


def _found(
    node: ast.AST, known: TEXT, *, is_free: bool, spent: frozenset[str] = frozenset()
) -> Iterator[str]:
    if is_free or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        if is_free or any(_is_timed(one) for one in (*node.decorator_list, *node.body)):
            return
        spent = frozenset(_spent_names(node))
    if isinstance(node, (ast.With, ast.AsyncWith)) and any(
        "TimeoutError" in _text(one) for one in node.items
    ):
        return  # here a limit is what happens, not what judges
    if isinstance(node, ast.Assert):
        for call in ast.walk(node.test):
            if isinstance(call, ast.Call) and _name(call) in TELLS and _is_short(_limit(call, 0), known):
                yield f"{node.lineno}: {_text(call)}"
        if any(_is_bound(one, spent) for one in ast.walk(node.test)):
            yield f"{node.lineno}: {_text(node.test)}"
    if isinstance(node, ast.Call) and _is_short(_raised_after(node), known):
        yield f"{node.lineno}: {_text(node)}"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        if isinstance(node.left, ast.Call) and _name(node.left) in CLOCKS and _is_short(node.right, known):
            yield f"{node.lineno}: {_text(node)}"
    for child in ast.iter_child_nodes(node):
        yield from _found(child, known, is_free=False, spent=spent)


def _targets(statement: ast.stmt) -> list[ast.Name]:
    if isinstance(statement, ast.Assign):
        return [target for target in statement.targets if isinstance(target, ast.Name)]
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return [statement.target]
    return []


def _is_timed(node: ast.AST) -> bool:
    is_mark = isinstance(node, (ast.Attribute, ast.Call)) or (
        isinstance(node, ast.Assign) and _text(node.targets[0]) == "pytestmark"
    )
    return is_mark and "mark.timed" in _text(node)


def _text(node: ast.AST) -> str:
    return ast.unparse(node)


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _limit(call: ast.Call, place: int) -> ast.expr | None:
    for keyword in call.keywords:
        if keyword.arg == "timeout":
            return keyword.value
    return call.args[place] if len(call.args) > place else None


def _raised_after(call: ast.Call) -> ast.expr | None:
    name = _name(call)
    if name in RAISES_AFTER:
        return _limit(call, RAISES_AFTER[name])
    return _limit(call, 99) if name in RAISES_WITH_KEYWORD else None


def _is_short(limit: ast.expr | None, known: TEXT) -> bool:
    value = known.get(limit.id) if isinstance(limit, ast.Name) else getattr(limit, "value", None)
    return type(value) in (int, float) and 0 < value < GUARD_S


def _is_spent(node: ast.AST, spent: frozenset[str] | set[str]) -> bool:
    """Return whether an expression is a time that passed on the wall clock."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
        return any(isinstance(one, ast.Call) and _name(one) in CLOCKS for one in ast.walk(node))
    if isinstance(node, ast.Call) and _name(node) in ("max", "min"):
        return any(_is_spent(one, spent) for one in node.args)
    return isinstance(node, ast.Name) and node.id in spent


def _spent_names(function: ast.AST) -> set[str]:
    names = set[str]()
    for statement in ast.walk(function):
        if isinstance(statement, ast.Assign) and _is_spent(statement.value, names):
            names |= {target.id for target in _targets(statement)}
    return names


def _is_bound(node: ast.AST, spent: frozenset[str]) -> bool:
    """Return whether a comparison bounds such a time from above."""
    if not isinstance(node, ast.Compare):
        return False
    sides = [node.left, *node.comparators]
    return any(
        _is_spent(left if isinstance(op, (ast.Lt, ast.LtE)) else right, spent)
        for left, op, right in zip(sides, node.ops, sides[1:], strict=False)
        if isinstance(op, (ast.Lt, ast.LtE, ast.Gt, ast.GtE))
    )


def test_no_test_judges_by_the_wall_clock() -> None:
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    found = [
        f"{shown(path)}:{line}"
        for path in paths
        if path != Path(__file__)
        for line in findings(path.read_text())
    ]

    assert not found, (
        f"these limits fail on a loaded machine. Wait for an event, count, or give {GUARD_S} s; "
        "a test of real time is marked `timed`:\n" + "\n".join(found)
    )


@pytest.mark.parametrize(
    "line",
    [
        "async with asyncio.timeout(10): pass",
        "await asyncio.wait_for(task, LIMIT_S)",
        "process.communicate(timeout=20)",
        "subprocess.run(command, timeout=59)",
        "future.result(10)",
        "assert event.wait(5)",
        "assert lock.acquire(timeout=1)",
        "until_s = time.monotonic() + 10",
        "assert time.monotonic() - began_s < 2",
        "assert 2 >= perf_counter() - began_s",
        "took_s = time.monotonic() - began_s; assert 0 <= took_s <= 1",
        "longest_s = max(longest_s, time.monotonic() - began_s); assert longest_s < 1",
    ],
)
def test_a_judgement_by_the_wall_clock_is_found(line: str) -> None:
    source = f"LIMIT_S = 5.0\nasync def test() -> None:\n    {line}\n"

    assert len(findings(source)) == 1
    assert findings(f"import pytest\npytestmark = pytest.mark.timed\n{source}") == []
    assert findings(source.replace("async def", "@pytest.mark.timed\nasync def")) == []


@pytest.mark.parametrize(
    "line",
    [
        "async with asyncio.timeout(60): pass",
        "event.wait(0.1)",
        "lock.acquire(timeout=0.05)",
        "assert time.monotonic() - began_s >= 0.1",
        "assert time.process_time() - began_s < 1",
        "assert clock.monotonic_s() - began_s < 1",
        "with pytest.raises(TimeoutError): await asyncio.wait_for(task, 0.1)",
    ],
)
def test_limits_that_judge_nothing_are_left_alone(line: str) -> None:
    assert findings(f"async def test() -> None:\n    {line}\n") == []
