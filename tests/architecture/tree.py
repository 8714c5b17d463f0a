"""The checkout as the architecture tests see it: its files, and nothing that tools leave."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "keepstate"
NOT_OURS = {".git", "__pycache__", "dist", "uv.lock"}  # `.git` is a file in a second work tree
FOLDERS = ("src", "packages", "examples", "tests", "tools", "bench", "docs", ".ci")


def files() -> list[Path]:
    """Return every file that is written by hand or generated into the checkout, in order."""
    found = [path for path in ROOT.iterdir() if path.is_file() and path.name not in NOT_OURS]
    for folder in FOLDERS:
        for here, names, texts in os.walk(ROOT / folder):
            names[:] = [name for name in names if name not in NOT_OURS and not name.startswith(".")]
            found += [Path(here) / text for text in texts]
    return sorted(found)


def python_files() -> list[Path]:
    """Return every Python file of the checkout."""
    return [path for path in files() if path.suffix == ".py"]


def shown(path: Path) -> str:
    """Return the path as a message names it."""
    return path.relative_to(ROOT).as_posix()
