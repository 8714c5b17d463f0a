"""A built client, a server process with a key, and programs that run in Node."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

import keepstate
from keepstate.server import Key, Keys
from keepstate.server.keys import rights_of
from tools.client import CLIENT, make_client

BUILD_S = 300
"""Seconds for a test that may have to build the client first."""
COMMAND = (sys.executable, "-c", "from keepstate.cli.app import main; main()")
RIGHTS = ("read", "write", "work", "answer")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Give each test of this folder time for the build, which the first of them waits for."""
    if item.get_closest_marker("timeout") is None:
        item.add_marker(pytest.mark.timeout(BUILD_S))


@dataclass
class Backend:
    """A server process on a store, and the key that clients show.

    Attributes:
        store: The URL of the store.
        url: The URL of the server.
        secret: The secret of the key.
        process: The process.
    """

    store: str
    url: str
    secret: str
    process: subprocess.Popen[str]

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment of a client."""
        return {"KEEPSTATE_URL": self.url, "KEEPSTATE_KEY": self.secret, "KEEPSTATE_KEY_NAME": "client"}


async def prepare(store: str) -> str:
    """Write what the clients expect to find, and return the secret of their key."""
    async with keepstate.open(store, values="builtin") as ks:
        recorded = ks.space("recorded", record=True)
        for step in range(3):
            await recorded.documents.put("plan", {"step": step, "tags": ["a", "b"]})
        return await Keys(ks).add(Key("client", rights_of(RIGHTS)))


@contextmanager
def serving(store: str, secret: str, *, port: int = 0) -> Generator[Backend]:
    """Start a server, and end it."""
    words = [*COMMAND, "serve", "--port", str(port), "--json", "--drain-s", "0", "--url", store]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            told = json.loads(process.stdout.readline())
            yield Backend(store, told["url"], secret, process)
        finally:
            process.kill()


@pytest.fixture(scope="session")
def client() -> Path:
    """The folder of the built client."""
    return make_client()


@pytest.fixture(scope="session")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    """A server for tests that use spaces of their own."""
    store = f"sqlite:///{tmp_path_factory.mktemp('clients')}/keepstate.db"
    with serving(store, asyncio.run(prepare(store))) as found:
        yield found


def node(program: str, backend: Backend, *words: str, timeout_s: float = 100) -> str:
    """Run a program of the client's build in Node, and return what it printed."""
    done = subprocess.run(
        ["node", str(CLIENT / "build" / program), *words],
        env={**os.environ, **backend.environment},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
