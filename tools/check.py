"""Runs every check of the code, two at a time, and shows the output of those that fail.

Nothing is mended here: each failing check names the command that a person runs to see it alone.
"""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
TYPED_FOLDERS = ("src", "packages/keepstate-testing/src", "tools", "tests/contracts", "tests/typing")
TYPED = tuple(path for path in TYPED_FOLDERS if (ROOT / path).exists())


@dataclass(frozen=True, slots=True)
class Check:
    """One question about the code, and the command that answers it."""

    name: str
    command: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a check said, and how long it took to say it."""

    check: Check
    code: int
    output: str
    seconds: float


CHECKS = (
    Check("types, basedpyright", ("basedpyright", "--pythonpath", sys.executable, *TYPED)),
    Check("types, mypy", ("mypy", *TYPED)),
    Check("sizes, names, lock", ("python", "-m", "pytest", "-q", "tests/architecture")),
    Check("layers", ("lint-imports", "--no-logo")),
    Check("generated twins", ("python", "tools/generate_sync.py", "--check")),
    Check("lint", ("ruff", "check", "--quiet", ".")),
    Check("format", ("ruff", "format", "--check", ".")),
)


def main() -> int:
    """Run all checks to their end; returns 1 if any failed."""
    failed = 0
    with ThreadPoolExecutor(max_workers=2) as pool:
        for running in as_completed([pool.submit(answer, check) for check in CHECKS]):
            outcome = running.result()
            failed += outcome.code != 0
            show(outcome)
    print(f"check: {len(CHECKS) - failed} passed, {failed} failed", flush=True)
    subprocess.run([sys.executable, str(ROOT / "tools" / "sizes.py")], cwd=ROOT, check=False)  # a report
    return 1 if failed else 0


def answer(check: Check) -> Outcome:
    """Return what one check says about the checkout."""
    began = time.monotonic()
    program = str(BIN / check.command[0])
    done = subprocess.run(
        [program, *check.command[1:]],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return Outcome(check, done.returncode, done.stdout, time.monotonic() - began)


def show(outcome: Outcome) -> None:
    """Print a line for what passed, and everything for what failed."""
    word = "ok    " if outcome.code == 0 else "FAILED"
    print(f"check: {word} {outcome.check.name} ({outcome.seconds:.1f} s)", flush=True)
    if outcome.code:
        print(f"$ .venv/bin/{' '.join(outcome.check.command)}\n{outcome.output.strip()}\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())
