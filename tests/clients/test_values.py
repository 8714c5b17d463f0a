"""A value of Python that a program in TypeScript reads and writes is the same value, to the byte."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keepstate.sync
from tests.clients.conftest import Backend
from tests.values.sameness import same
from tests.values.strategies import values
from tools.client import CLIENT

names = st.integers(0, 99).map(str) | st.sampled_from(["__proto__", "toJSON", "@typ", "a", "-1", "01"])
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(-100, 100).map(float) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(names, inner, max_size=6),
    max_leaves=20,
)
"""What JavaScript cannot tell apart, or sorts: whole floats, and keys that are numbers."""


class Copier:
    """A program in Node that copies values."""

    def __init__(self, process: subprocess.Popen[str], store: str) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._in: IO[str] = process.stdin
        self._out: IO[str] = process.stdout
        self._ks = keepstate.sync.open(store)

    def copies_of(self, value: Any) -> dict[str, Any]:
        """Store a value, and return the copies that the program has made."""
        space = self._ks.space(f"values/{uuid4()}")
        space.documents.put("value", value)
        print(space.name, file=self._in, flush=True)
        assert self._out.readline() == "done\n", "the program ended; see its error above"
        (event,) = space.events.read()
        task = space.queue.get("task", payload=True)
        assert task is not None
        return {
            "put": space.documents.get("put"),
            "updated": space.documents.get("value"),
            "event": event.data,
            "task": task.payload,
        }

    def close(self) -> None:
        """Let the program end."""
        self._in.close()
        self._ks.close()


@pytest.fixture(scope="module")
def copier(client: Path, backend: Backend) -> Iterator[Copier]:
    with subprocess.Popen(
        ["node", str(CLIENT / "build" / "copy_values.js")],
        env={**os.environ, **backend.environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        made = Copier(process, backend.store)
        yield made
        made.close()


@pytest.mark.searched
@settings(max_examples=30)
@given(value=values | plain)
def test_a_value_comes_back_from_javascript_as_it_was(copier: Copier, value: Any) -> None:
    # A number by itself has no object that JavaScript could note its type next to; `update` has its entry.
    is_bare = isinstance(value, float) and value.is_integer()
    for way, copy in copier.copies_of(value).items():
        assert same(copy, value) or (is_bare and way != "updated"), way
