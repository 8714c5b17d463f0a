"""The stores that LangGraph's state is kept in."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.conftest import opened, pytest_pyfunc_call, turned
from tests.stores.postgres import pgbouncer
from tests.stores.postgres.pgbouncer import PgBouncer
from tests.stores.postgres.pooler import Pooler

__all__ = ["opened", "pytest_pyfunc_call", "turned"]

UNNAMED = "ignore::keepstate.adapters.langgraph.classes.NotAllowedWarning"
"""Tests store classes of their own, and only some look at what is said of that."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the tests of this folder store classes that they have not allowed."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings(UNNAMED), append=False)


SHARED = ("sqlite", "redis", "redis_cluster", "postgres")
BACKENDS = ("memory", "file", *SHARED)


@pytest.fixture(params=BACKENDS)
def any_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of a store of each kind, with nothing in it."""
    return url_of(request.param, request, tmp_path)


@pytest.fixture(params=SHARED)
def shared_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of a store of each kind that several processes may use."""
    return url_of(request.param, request, tmp_path)


@pytest.fixture(params=["stand-in", *(["PgBouncer"] if pgbouncer.BINARY else [])])
def pooled_url(request: pytest.FixtureRequest, postgres_url: str) -> Iterator[str]:
    """Yield the URL of a PostgreSQL whose three sessions are given out by transaction."""
    with PgBouncer(postgres_url) if request.param == "PgBouncer" else Pooler(postgres_url) as pooler:
        yield pooler.url


def url_of(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of a store of a kind, with nothing in it."""
    match kind:
        case "memory":
            return f"memory://{uuid.uuid4().hex}"
        case "file":
            return f"file:///{tmp_path}/state/"
        case "sqlite":
            return f"sqlite:///{tmp_path}/state.db?durability=normal"
        case server:
            url: str = request.getfixturevalue(f"{server}_url")
            return url
