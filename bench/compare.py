"""Compares two trees: `python -m bench.compare OLD NEW`, each the path of a checkout.

Each tree has a process of its own, and both do a block of each call in turn, so that a machine that others
use slows both. A line has the median of the processor's time on both sides, the median of the rounds' ratios
with their quartiles, and exact counts: calls of Python functions and SQL statements. Below 1 the new tree is
faster. Each round of a start runs new processes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any, Final

from bench.importing import compiling

ROOT = Path(__file__).resolve().parent.parent
BLOCK: Final = 40
"""Operations of a block; of those that need a conversation before each, a tenth."""
ASYNC_PUT: Final = """
import asyncio, keepstate
async def put():
    async with keepstate.open("memory://") as ks:
        await ks.space("a").documents.put("b", 1)
asyncio.run(put())
"""
STARTS: Final[dict[str, tuple[str, ...]]] = {
    "start: blocking put": (
        "-c",
        "from keepstate import sync\nwith sync.open('memory://') as ks: ks.space('a').documents.put('b', 1)",
    ),
    "start: async put": ("-c", ASYNC_PUT),
    "start: import keepstate": ("-c", "import keepstate"),
    **{
        f"start: keepstate {words}": ("-m", "keepstate", *words.split())
        for words in ("--help", "get --help", "log --help", "spaces --help")
    },
}


class Tree:
    """One side: a process that keeps running, and new ones for each start."""

    def __init__(self, path: str, folder: str) -> None:
        source = Path(path).resolve() / "src"
        if not (source / "keepstate").is_dir():
            raise SystemExit(f"{path} is not a checkout: it has no src/keepstate")
        self._environment = compiling(folder) | {"PYTHONPATH": str(source)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.compared"],
            cwd=ROOT,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, *request: object) -> dict[str, Any]:
        """Return the answer of the running process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline() or '{"error": "it ended"}')
        return answer

    def start(self, arguments: tuple[str, ...]) -> dict[str, Any]:
        """Return the processor's time of a new process."""
        process = subprocess.Popen(
            [sys.executable, *arguments], cwd="/", env=self._environment, stdout=subprocess.DEVNULL
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            return {"error": f"it exited with {process.returncode}"}
        return {"us": (usage.ru_utime + usage.ru_stime) * 1e6}

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def main() -> int:
    """Compare what the options say, print a line for each call, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=__doc__)
    parser.add_argument("old", help="the path of a checkout")
    parser.add_argument("new", help="the path of another")
    parser.add_argument("--rounds", type=int, default=15, help="blocks of each call on each side")
    parser.add_argument("--only", action="append", default=[], help="calls whose names have this text")
    options = parser.parse_args()
    with (
        TemporaryDirectory() as folder,
        closing(Tree(options.old, folder)) as old,
        closing(Tree(options.new, folder)) as new,
    ):
        head = f"{'old us':>12}{'new us':>12}{'new/old':>9}  {'quartiles':13}"
        print(f"{'CPU':40}{head}  old and new: calls, statements")
        for name in _names(options.only):
            print(_line(name, (old, new), options.rounds), flush=True)
    return 0


def _names(only: list[str]) -> list[str]:
    from bench.compared import NAMES

    return [name for name in (*STARTS, *NAMES) if not only or any(text in name for text in only)]


def _line(name: str, trees: tuple[Tree, Tree], rounds: int) -> str:
    counts = "" if name in STARTS else "  ".join(_counts(tree.ask("count", name)) for tree in trees)
    rows: list[list[float]] = [[], []]
    for number in range(rounds + 1):
        for side in (0, 1) if number % 2 else (1, 0):
            answer = _timed(name, trees[side])
            if "error" in answer:
                return f"{name:40}{'old' if side == 0 else 'new'}: {answer['error']}"
            rows[side].append(answer["us"])
    old, new = rows[0][1:], rows[1][1:]  # the first round warms up
    ratios = [ours / theirs for theirs, ours in zip(old, new, strict=True)]
    low, _, high = quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    medians = f"{median(old):12,.1f}{median(new):12,.1f}{median(ratios):9.3f}"
    return f"{name:40}{medians}  {low:.3f} – {high:.3f}  {counts}"


def _timed(name: str, tree: Tree) -> dict[str, Any]:
    if name in STARTS:
        return tree.start(STARTS[name])
    return tree.ask("time", name, BLOCK // 10 if "turn" in name else BLOCK)


def _counts(answer: dict[str, Any]) -> str:
    return answer.get("error") or f"{answer['calls']:,}, {answer['statements']}"


if __name__ == "__main__":
    sys.exit(main())
