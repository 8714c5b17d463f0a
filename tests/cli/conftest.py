"""Runs the command as a person does: a process, with a store of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

COMMAND = (sys.executable, "-c", "from keepstate.cli.app import main; main()")


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """Returns what it printed as one JSON document."""
        return json.loads(self.out)

    def lines(self) -> list[Any]:
        """Returns what it printed as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]


Keepstate = Callable[..., Ended]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/cli.db"


@pytest.fixture
def keepstate(url: str, tmp_path: Path) -> Keepstate:
    def run(*words: str, stdin: str = "", **environment: str) -> Ended:
        done = subprocess.run(
            [*COMMAND, *words],
            cwd=tmp_path,
            env={**os.environ, "KEEPSTATE_URL": url, "COLUMNS": "200", "NO_COLOR": "1", **environment},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    return run
