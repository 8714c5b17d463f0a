"""Each of the project's words does one thing, and `make help` names them all."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORDS = {"setup", "demo", "test", "quick", "portable", "check", "bench", "deep", "docs", "help"}
OF_MAKE = {"MAKEFLAGS", "MAKELEVEL", "MFLAGS", "MAKEOVERRIDES", "PYTHON", "JOBS", "ARGS", "VENV"}


def test_make_alone_names_every_word() -> None:
    assert set(re.findall(r"^  make ([a-z]+) +\S", make(), re.MULTILINE)) >= WORDS


def test_each_word_that_needs_the_tools_sets_them_up_first() -> None:
    for word in sorted(WORDS - {"help"}):
        assert make("-n", word).splitlines()[0] == "python3 tools/bootstrap.py --venv .venv"


def test_ci_runs_the_words_that_people_run() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")

    assert re.findall(r"make [a-z]+", script) == ["make setup", "make check", "make portable", "make test"]


def test_every_make_command_in_the_documents_exists() -> None:
    offered = set(re.findall(r"^  make ([a-z]+)", make(), re.MULTILINE))
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    named = {
        (page.name, word) for page in pages for word in re.findall(r"`make ([a-z]+)", page.read_text("utf-8"))
    }

    assert {(page, word) for page, word in named if word not in offered} == set()


def make(*words: str) -> str:
    """Return what make says to a person at a terminal, though the suite itself may run under make."""
    outer = {name: value for name, value in os.environ.items() if name not in OF_MAKE}
    return subprocess.run(
        ["make", *words], cwd=ROOT, env=outer, check=True, capture_output=True, text=True
    ).stdout
