"""Report the size of the package and the length of its main paths.

`python tools/sizes.py` prints lines of code (without blank lines, comments and docstrings), files, files of
under 50 lines, and for `get` and `update` on SQLite the files that one call enters and the calls in them.
"""

from __future__ import annotations

import ast
import asyncio
import gc
import io
import sys
import tempfile
import tokenize
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType

import keepstate

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "keepstate"
SHORT = 50
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


def lengths(folder: str = "") -> dict[str, int]:
    """Return the lines of code of each file of the package or one of its folders, by path."""
    return {
        path.relative_to(PACKAGE).as_posix(): code_lines(path.read_text(encoding="utf-8"))
        for path in sorted((PACKAGE / folder).rglob("*.py"))
    }


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
    print(f"{sum(lengths('testing').values()):,} lines in the kit of the wheel")
    for name, (entered_files, calls) in asyncio.run(paths()).items():
        print(f"{name}: {calls} calls in {entered_files} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
