"""A handle on an empty database, and a second way to look at it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.stores.postgres import PostgresStore
from keepstate.stores.protocol import Applied, Batch, Check, Outcome, Write
from keepstate.stores.urls import StoreUrl

Rows = psycopg.Connection[tuple[Any, ...]]


def opened(url: str) -> PostgresStore:
    """Return an open blocking handle; who asks for it closes it."""
    return finish(PostgresStore.from_url(StoreUrl.parse(url), runner=ThreadRunner()).open())


def outcome_of(store: PostgresStore, space: str, *writes: Write, checks: tuple[Check, ...] = ()) -> Outcome:
    (outcome,) = finish(store.apply([Batch(space, writes, checks)]))
    return outcome


def applied(store: PostgresStore, space: str, *writes: Write, checks: tuple[Check, ...] = ()) -> Applied:
    outcome = outcome_of(store, space, *writes, checks=checks)
    if isinstance(outcome, Exception):
        raise outcome
    assert isinstance(outcome, Applied)
    return outcome


def value_of(store: PostgresStore, space: str, key: bytes) -> bytes | None:
    (entry,) = finish(store.read(space, [key])).entries
    return entry.value if entry else None


@pytest.fixture
def store(postgres_url: str) -> Iterator[PostgresStore]:
    store = opened(postgres_url)
    yield store
    finish(store.close())


@pytest.fixture
def admin(postgres_url: str) -> Iterator[Rows]:
    """A connection of the superuser to the test's database."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        yield connection
