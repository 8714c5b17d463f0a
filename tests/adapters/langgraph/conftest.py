"""The stores that LangGraph's state is kept in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine.conftest import opened, pytest_pyfunc_call, turned
from tests.stores.postgres import pgbouncer
from tests.stores.postgres.pgbouncer import PgBouncer
from tests.stores.postgres.pooler import Pooler

__all__ = ["opened", "pytest_pyfunc_call", "turned"]

UNNAMED = "ignore::keepstate.adapters.langgraph.classes.NotAllowedWarning"
"""Tests store classes of their own, and only some look at what is said of that."""


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let the tests of this folder store classes that they have not allowed."""
    item.add_marker(pytest.mark.filterwarnings(UNNAMED), append=False)


@pytest.fixture(params=["stand-in", *(["PgBouncer"] if pgbouncer.BINARY else [])])
def pooled_url(request: pytest.FixtureRequest, postgres_url: str) -> Iterator[str]:
    """Yield the URL of a PostgreSQL whose three sessions are given out by transaction."""
    with PgBouncer(postgres_url) if request.param == "PgBouncer" else Pooler(postgres_url) as pooler:
        yield pooler.url
