"""Runs the command on a store of its own, in this process or as one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
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
        """Return what it printed as one JSON document."""
        return json.loads(self.out)

    def lines(self) -> list[Any]:
        """Return what it printed as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]


INSTANT = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{3})?Z"
"""A time of the store, as `--json` shows it."""
CALL = re.compile(r"[\w.]+\(\)")
"""A call of Python, which no message of a command may advise."""
Keepstate = Callable[..., Ended]
"""The command: `keepstate("get", "run", "plan")`."""
Started = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/cli.db"


@pytest.fixture
def keepstate(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Keepstate:
    """Run the command in this process: ten times faster than starting Python for each."""
    from keepstate.cli.app import run

    monkeypatch.chdir(tmp_path)
    for name, value in _environment(url, {}).items():
        monkeypatch.setenv(name, value)

    def ended(*words: str, stdin: str = "") -> Ended:
        capsys.readouterr()
        monkeypatch.setattr("sys.stdin", StringIO(stdin))
        done = Ended(run(words), *capsys.readouterr())
        advice = CALL.search(done.err)
        assert advice is None, f"a command advises {advice[0]}, which only a program can call: {done.err}"
        return done

    return ended


@pytest.fixture
def shell(url: str, tmp_path: Path) -> Keepstate:
    """Run the command as a person does, where its environment, modules or pipes matter."""

    def ended(*words: str, stdin: str = "", **environment: str) -> Ended:
        done = subprocess.run(
            [*COMMAND, *words],
            cwd=tmp_path,
            env=_environment(url, environment),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    return ended


@pytest.fixture
def started(url: str, tmp_path: Path) -> Iterator[Started]:
    """Start a command and do not wait for it."""
    processes: list[subprocess.Popen[str]] = []

    def start(*words: str, command: Sequence[str] = COMMAND) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*command, *words],
            cwd=tmp_path,
            env=_environment(url, {}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        with process:
            process.kill()


def _environment(url: str, more: dict[str, str]) -> dict[str, str]:
    return {**os.environ, "KEEPSTATE_URL": url, "COLUMNS": "200", "NO_COLOR": "1", **more}
