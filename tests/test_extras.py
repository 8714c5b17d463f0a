"""A part that needs an extra names the command that installs it."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("part", "package", "extra"),
    [
        ("keepstate.adapters.langgraph", "langchain_core", "langgraph"),
        ("keepstate.adapters.langgraph", "langgraph", "langgraph"),
        ("keepstate.server", "starlette", "server"),
    ],
)
def test_a_part_without_its_package_names_the_command(part: str, package: str, extra: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; import {part}"

    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    last = ended.stderr.splitlines()[-1]
    assert last.startswith("keepstate.errors.MissingExtraError: ")
    assert last.endswith(f"pip install 'keepstate[{extra}]'")


def test_the_rules_of_a_queue_are_set_without_the_server() -> None:
    code = (
        "import sys; sys.modules['starlette'] = None\n"
        "from keepstate.cli.app import main\n"
        "sys.argv = ['keepstate', 'queue', 'configure', 'mail', '{\"aging_s\": 5}', '--url', 'memory://']\n"
        "main()"
    )

    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert (ended.returncode, "5.0" in ended.stdout) == (0, True), ended.stderr
