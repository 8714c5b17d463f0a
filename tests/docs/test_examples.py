"""Every example in the documents runs as it stands there."""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from keepstate.values.schema import CLASSES
from tests.docs.pages import PAGES, ROOT, Block, blocks, shown

_VARYING = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]*|\b[0-9a-f]{10,16}\b"
    r"|\d{4}-\d\d-\d\dT[\d:]{8}Z|\b\d+\.\d s\b|\b\d+ bytes\b"
)
"""Names of messages and commits, times, durations and sizes of files."""
APART = "google-adk"
"""The mark of blocks that need packages beside `.venv`: `tests/adapters/google_adk` runs them."""
SERVED = "served"
"""The mark of blocks that need a server and the TypeScript client: `tests/clients` runs them."""
WITH_EXAMPLES = [
    page
    for page in PAGES
    if any(
        (block.language == "python" and block.mark != APART) or block.mark == "run" for block in blocks(page)
    )
]


@pytest.fixture
def own_classes() -> Iterator[None]:
    """Forget what a page registered: its upcaster of a "message" is none of the next test's."""
    tables: list[dict[Any, Any]] = [
        CLASSES._by_name,
        CLASSES._by_class,
        CLASSES._upcasters,
        CLASSES._downcasters,
    ]
    before = [set(table) for table in tables]
    written = CLASSES._write_versions.copy()
    yield
    CLASSES._write_versions = written
    for table, known in zip(tables, before, strict=True):
        for key in set(table) - known:
            if not getattr(table[key], "kind", table[key]).__module__.startswith("keepstate."):
                del table[key]


@pytest.mark.usefixtures("own_classes")
@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=shown)
def test_a_page_s_examples_run_in_order(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    namespace: dict[str, object] = {"__name__": f"example_{page.stem.replace('-', '_')}"}
    before = set(sys.modules)

    with asyncio.Runner() as loop:
        for block in blocks(page):
            if block.mark.startswith("file="):
                (tmp_path / block.mark.removeprefix("file=")).write_text(block.text)
            elif block.language == "python" and block.mark != APART:
                run_python(block, namespace, loop)
            elif block.language == "console" and block.mark == "run":
                run_commands(block, tmp_path)

    for name in set(sys.modules) - before:
        if (tmp_path / f"{name}.py").exists():
            del sys.modules[name]


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_a_block_says_what_it_is(page: Path) -> None:
    known = {"console", "python", "sql", "text", "toml", "typescript"}

    assert [block.line for block in blocks(page) if block.language not in known] == []
    assert [block.line for block in blocks(page) if not known_mark(block.mark)] == []


def known_mark(mark: str) -> bool:
    return mark in {"", "run", APART, SERVED} or mark.startswith("file=")


def run_python(block: Block, namespace: dict[str, object], loop: asyncio.Runner) -> None:
    """Execute a block with the page's line numbers; one that awaits at its top level, in the page's loop."""
    source = "\n" * (block.line - 1) + block.text
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    code = compile(source, str(block.page), "exec", flags=flags, dont_inherit=True)
    if code.co_flags & inspect.CO_COROUTINE:
        loop.run(FunctionType(code, namespace)())
    else:
        exec(code, namespace)


def run_commands(block: Block, folder: Path) -> None:
    """Run each line after a `$`; lines behind it are what it prints, `…` for what differs each time."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    modules = os.pathsep.join([str(folder), str(ROOT / "src")])
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, told = part.partition("\n")
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=folder,
            env={**os.environ, "PATH": path, "PYTHONPATH": modules, "NO_COLOR": "1"},
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )
        assert done.returncode == 0, f"{shown(block.page)}: {command}\n{done.stdout}\n{done.stderr}"
        if told.strip():
            assert_prints(told, done.stdout)


def assert_prints(told: str, printed: str) -> None:
    """Compare what a page tells of a command with what that printed, but for times and random names."""
    wanted, got = (_VARYING.sub("…", text).strip() for text in (told, printed))
    if not re.fullmatch(".*?".join(map(re.escape, wanted.split("…"))), got, re.DOTALL):
        assert got == wanted
