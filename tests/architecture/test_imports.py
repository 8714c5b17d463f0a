"""`import keepstate`, a first put and a command cost nothing that their caller did not ask for."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Iterator
from functools import cached_property
from types import FunctionType
from typing import Any, get_type_hints

import pytest

import keepstate
from keepstate import sync

NOT_YET = {
    *("apsw", "psycopg", "psycopg_pool", "redis", "sqlite3"),
    *("attrs", "cryptography", "cyclopts", "numpy", "opentelemetry", "pydantic", "rich"),
    *("hypothesis", "psutil", "pytest"),
}
ASKED = "import sys, keepstate; print(*{name.partition('.')[0] for name in sys.modules})"


def test_importing_keepstate_imports_no_driver_and_no_framework() -> None:
    imported = subprocess.run([sys.executable, "-c", ASKED], check=True, capture_output=True, text=True)

    assert "keepstate" in imported.stdout.split()
    assert NOT_YET & set(imported.stdout.split()) == set()


def test_importing_keepstate_starts_no_thread_and_opens_no_file() -> None:
    asked = (
        "import os, threading; before = set(os.listdir('/dev/fd')); import keepstate; "
        "print(threading.active_count(), *set(os.listdir('/dev/fd')) - before)"
    )
    left = subprocess.run([sys.executable, "-c", asked], check=True, capture_output=True, text=True)

    assert left.stdout.split() == ["1"]


# ---- the first put

FIRST_PUTS = {
    "blocking": """
from keepstate import sync
with sync.open("memory://") as ks:
    ks.space("a").documents.put("b", 1)
""",
    "async": """
import asyncio, keepstate
async def put():
    async with keepstate.open("memory://") as ks:
        await ks.space("a").documents.put("b", 1)
asyncio.run(put())
""",
}
LIBRARIES_OF_LOOPS = {"asyncio", "concurrent", "ssl", "subprocess", "socket"}
NOT_BY_A_PUT = {"email", "importlib.metadata", "importlib.resources", "sqlite3", "zipfile", *NOT_YET}
ROOMS_OF_A_PUT = {
    "": (
        "_clock",
        "_deferral",
        "_files",
        "_finish",
        "_runner",
        "engine",
        "errors",
        "names",
        "opening",
        "stores",
    ),
    "engine": ("documents", "history", "kernel", "space"),
    "engine.history": ("recording",),
    "engine.history.recording": ("recorder",),
    "engine.documents": ("documents", "record", "watch", "write_rules"),
    "engine.space": ("keepstate", "space"),
}
"""What a put imports in each of these packages, beside `values` and, in blocking use, `sync`."""
PRINT_MODULES = "\nimport sys; print(*sys.modules)"


@pytest.mark.parametrize("way", FIRST_PUTS)
def test_a_first_put_imports_no_room_that_it_does_not_use(way: str) -> None:
    imported = _imported(FIRST_PUTS[way])

    ours = {name.removeprefix("keepstate.") for name in imported if name.startswith("keepstate.")}
    for package, expected in ROOMS_OF_A_PUT.items():
        prefix = f"{package}." if package else ""
        found = {name.removeprefix(prefix).partition(".")[0] for name in ours if name.startswith(prefix)}
        assert found - {"values", "sync"} == set(expected)
    assert NOT_BY_A_PUT & imported == set()


def test_blocking_use_imports_no_event_loop() -> None:
    imported = _imported(FIRST_PUTS["blocking"])

    assert LIBRARIES_OF_LOOPS & imported == set()
    assert {name for name in imported if name.startswith("keepstate.sync.")} == {
        f"keepstate.sync.{name}" for name in ("documents", "keepstate", "opening", "space", "twin", "watch")
    }


def _imported(program: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", program + PRINT_MODULES], check=True, capture_output=True, text=True
    )
    return set(done.stdout.split())


# ---- commands

OF_ALL_PAGES = {"cyclopts", "rich"}
NOT_BY_A_PAGE = (
    {"asyncio", "markdown_it", "msgspec", "ormsgpack", "pygments", *NOT_YET} - OF_ALL_PAGES - {"attrs"}
)
MODULES_OF_PAGES = {
    ("--help",): {"app", "exits"},
    ("spaces", "--help"): {"app", "exits", "display", "documents", "session"},
    ("get", "--help"): {"app", "exits", "display", "documents", "session"},
    ("log", "--help"): {"app", "exits", "chat", "display", "history", "session"},
}


@pytest.mark.parametrize("words", MODULES_OF_PAGES, ids=" ".join)
def test_a_page_of_help_imports_its_own_command_and_no_engine(words: tuple[str, ...]) -> None:
    imported = _imported(f"from keepstate.cli.app import run; run({words!r}); print()")

    ours = {name.removeprefix("keepstate.") for name in imported if name.startswith("keepstate.")}
    assert {name.removeprefix("cli.") for name in ours if name.startswith("cli.")} == MODULES_OF_PAGES[words]
    assert {name for name in ours if not name.startswith("cli")} <= {"_deferral", "errors", "names"}
    assert NOT_BY_A_PAGE & imported == set()


# ---- annotations of what is imported later


def _public() -> Iterator[tuple[str, Any]]:
    for package in (keepstate, sync):
        for name in dir(package):
            if not name.startswith("_"):
                yield f"{package.__name__}.{name}", getattr(package, name)


@pytest.mark.parametrize("of", [pytest.param(of, id=name) for name, of in _public()])
def test_annotations_of_public_names_can_be_evaluated(of: Any) -> None:
    functions = [of] if isinstance(of, FunctionType) else []
    for cls in inspect.getmro(of) if inspect.isclass(of) else ():
        if cls.__module__.startswith("keepstate."):
            get_type_hints(cls)
            functions += [function for name, function in _functions(cls) if not name.startswith("_")]

    for function in functions:
        get_type_hints(function)


def _functions(cls: type) -> Iterator[tuple[str, FunctionType]]:
    for name, member in vars(cls).items():
        found: Any = member
        if isinstance(member, property):
            found = member.fget
        elif isinstance(member, cached_property):
            found = member.func
        elif isinstance(member, classmethod | staticmethod):
            found = member.__func__
        if isinstance(found, FunctionType):
            yield name, found
