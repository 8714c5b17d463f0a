"""The agents of the tests have scripted models, and send no traces."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from agents import set_tracing_disabled


@pytest.fixture(autouse=True)
def no_traces() -> Iterator[None]:
    """Turn the SDK's tracing off, which would send what agents do to a server."""
    set_tracing_disabled(True)
    yield
    set_tracing_disabled(False)
