"""An encrypted store in memory, and the sealed bytes under it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from keepstate import EncryptedStore, KeyRing
from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.stores.memory import MemoryStore
from keepstate.testing.clocks import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def plain(clock: ManualClock) -> Iterator[MemoryStore]:
    store = finish(MemoryStore(runner=ThreadRunner(), clock=clock).open())
    yield store
    finish(store.close())


@pytest.fixture
def key() -> bytes:
    return KeyRing.new_key()


@pytest.fixture
def store(plain: MemoryStore, key: bytes, clock: ManualClock) -> EncryptedStore:
    return finish(EncryptedStore(plain, KeyRing(key), clock=clock).open())
