"""The agents of the tests have scripted models, and send no traces."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from agents import set_tracing_disabled

import keepstate
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space
from tests.engine.conftest import opened

__all__ = ["opened"]


@pytest.fixture(autouse=True)
def no_traces() -> Iterator[None]:
    """Turn the SDK's tracing off, which would send what agents do to a server."""
    set_tracing_disabled(True)
    yield
    set_tracing_disabled(False)


@pytest.fixture
def space(any_url: str, opened: list[Keepstate]) -> Space:
    """Return a space of a store of each kind."""
    opened.append(keepstate.open(any_url))
    return opened[-1].space("runs")
