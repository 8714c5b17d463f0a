"""Fixtures for the tests of an application; pytest loads them where keepstate is installed.

The fixtures `keepstate_store` and `keepstate_clock` need no server and no mock.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

if TYPE_CHECKING:
    from keepstate.testing.clocks import StoreClock
    from keepstate.testing.faulty_memory import StoreForTests


@pytest.fixture
def keepstate_clock() -> StoreClock:
    """Give the clock of `keepstate_store`: `advance(seconds)`, `set(datetime)` and `now()`."""
    from keepstate.testing.clocks import StoreClock  # loaded by the tests that use it

    return StoreClock()


@pytest.fixture
def keepstate_store(keepstate_clock: StoreClock) -> Generator[StoreForTests]:
    """Give a store in memory of the test's own: `open()`, `open_blocking()`, `url`, and faults.

    `crash()` ends its handles as the death of a process does. `lose_next_reply()` and `conflict_next()` order
    a fault. A fault that was ordered and did not happen fails the test, because it tested nothing.
    """
    from keepstate.testing.faulty_memory import StoreForTests  # loaded by the tests that use it

    store = StoreForTests(f"test-{uuid4().hex}", keepstate_clock)
    yield store
    unused = store.unused_faults()
    store.close()
    if unused:
        pytest.fail(
            f"Ordered and not happened: {', '.join(f'{name}()' for name in unused)}. No write came after it, "
            "or none that depends on a read."
        )
