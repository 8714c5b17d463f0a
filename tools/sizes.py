"""Report the size of the package and the length of its main paths.

`python tools/sizes.py` prints for each folder its files, its lines of code (without blank lines, comments and
docstrings), its lines of comments and docstrings, and its budget. Then it prints for `get` and `update` on
SQLite the files that one call enters and the calls in them. `tests/architecture` fails over a budget.
"""

from __future__ import annotations

import ast
import asyncio
import gc
import io
import sys
import tempfile
import tokenize
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from pathlib import Path
from types import FrameType

import keepstate

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "keepstate"
TOP = "(top)"
"""The files of the package itself, outside its folders."""
SHORT = 50
BUDGETS = {
    "adapters": 9_000,
    "approval_links": 300,
    "cli": 4_650,
    "engine": 25_500,
    "managers": 5_400,
    "memories": 950,
    "server": 6_100,
    "sessions": 6_350,
    "stores": 12_750,
    "sync": 3_700,
    "testing": 3_230,
    "typed": 3_050,
    "values": 5_120,
    "workspace": 1_650,
    TOP: 1_870,
}
"""Lines of code that a folder may have. A change that needs more raises its budget, and says what it adds."""
UNPACKED_BYTES = 6_200_000
"""Size of the package's files in the wheel, unpacked."""
_CALLS = 5
_LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def code_lines(source: str) -> int:
    """Return the number of lines with code in a module."""
    prose = {
        line
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    code = {
        line
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in _LAYOUT
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(code - prose)


@cache
def lengths(lines: Callable[[str], int] = code_lines) -> dict[str, int]:
    """Return the lines of each file of the package by its path: those of code, or as counted in its text."""
    return {
        path.relative_to(PACKAGE).as_posix(): lines(path.read_text(encoding="utf-8"))
        for path in sorted(PACKAGE.rglob("*.py"))
    }


def by_folder(files: Mapping[str, int]) -> dict[str, int]:
    """Return the sums of files' numbers by folder of the package."""
    counted = dict.fromkeys(BUDGETS, 0)
    for path, number in files.items():
        folder = path.partition("/")[0] if "/" in path else TOP
        counted[folder] = counted.get(folder, 0) + number
    return counted


def prose_lines(source: str) -> int:
    """Return the number of lines with only a comment or a docstring in a module."""
    return sum(bool(line.strip()) for line in source.splitlines()) - code_lines(source)


def unpacked_bytes() -> int:
    """Return the size of the package's files, which the wheel unpacks."""
    files = (path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return sum(path.stat().st_size for path in files)


def own(files: dict[str, int]) -> dict[str, int]:
    """Return the files that are written by hand and are not the kit for tests."""
    return {path: lines for path, lines in files.items() if not path.startswith(("sync/", "testing/"))}


async def entered(call: Callable[[], Awaitable[object]]) -> tuple[int, int]:
    """Return how many files of the package a later call enters, and how many calls of functions it makes.

    A coroutine that is resumed counts once. Work in other threads is not counted. The least of several calls
    counts, because on a busy machine a call may yield to other tasks first.
    """
    await call()
    return min([await _entered(call) for _ in range(_CALLS)], key=lambda counted: counted[1])


async def _entered(call: Callable[[], Awaitable[object]]) -> tuple[int, int]:
    files: set[str] = set()
    frames: dict[int, FrameType] = {}

    def profile(frame: FrameType, event: str, _arg: object) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(str(PACKAGE)):
            files.add(name)
            frames[id(frame)] = frame  # a freed frame would lend its id to another one

    gc.collect()
    gc.disable()  # a finalizer of something else would be counted
    await call()  # the collection took time, after which a call also yields to other tasks
    sys.setprofile(profile)
    try:
        await call()
    finally:
        sys.setprofile(None)
        gc.enable()
    return len(files), len(frames)


async def paths() -> dict[str, tuple[int, int]]:
    """Return the files and calls of `get` and `update` on SQLite, by name."""
    with tempfile.TemporaryDirectory() as folder:
        async with keepstate.open(Path(folder) / "sizes.db") as ks:
            documents = ks.space("run/1").documents
            await documents.put("plan", 0)
            return {
                "documents.get": await entered(lambda: documents.get("plan")),
                "documents.update": await entered(lambda: documents.update("plan", lambda n: n + 1)),
            }


def main() -> int:
    """Print the report."""
    files = own(lengths())
    short = sum(lines < SHORT for lines in files.values())
    print(f"{sum(files.values()):,} lines of code in {len(files)} files, {short} of them under {SHORT} lines")
    code, prose = by_folder(lengths()), by_folder(lengths(prose_lines))
    number = by_folder(dict.fromkeys(lengths(), 1))
    for folder, budget in BUDGETS.items():
        print(
            f"{folder:<10} {number[folder]:>4} files  {code[folder]:>6,} lines of code of {budget:,}  "
            f"{prose[folder]:>5,} of comments and docstrings"
        )
    print(f"{unpacked_bytes() / 1e6:.2f} MB of {UNPACKED_BYTES / 1e6:.2f} MB unpacked")
    for name, (entered_files, calls) in asyncio.run(paths()).items():
        print(f"{name}: {calls} calls in {entered_files} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
