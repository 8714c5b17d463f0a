"""A serial history to begin with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.testing.proof.serial import Serial


@pytest.fixture
def serial() -> Iterator[Serial]:
    made = Serial()
    yield made
    made.close()
