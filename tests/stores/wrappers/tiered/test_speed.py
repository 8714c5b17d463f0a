"""What is remembered is read in a small part of the time that a server's answer takes."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from keepstate import TieredStore
from keepstate._finish import finish
from keepstate.stores.protocol import Store
from tests.stores.postgres.conftest import opened
from tests.stores.wrappers.tiered.counting import put, values

KEY = b"\x01k"

pytestmark = pytest.mark.timed


def fastest(call: Callable[[], object]) -> float:
    """Return the time of the fastest of many calls: what others do on the machine only adds to it."""
    spent: list[float] = []
    for _ in range(500):
        begun = time.perf_counter()
        call()
        spent.append(time.perf_counter() - begun)
    return min(spent)


def test_what_is_remembered_is_read_many_times_faster_than_from_postgresql(postgres_url: str) -> None:
    """Five times wherever the server runs; `make bench` tells how often with caller and server held apart."""
    cold = opened(postgres_url)
    hot = finish(TieredStore(cold=postgres_url, max_staleness_s=3600, mode="blocking").open())
    finish(put(cold, KEY, b"x" * 500))

    def read(store: Store) -> Callable[[], object]:
        return lambda: finish(values(store, KEY))

    assert fastest(read(cold)) >= 5 * fastest(read(hot))
    finish(hot.close())
    finish(cold.close())


def test_a_verified_read_of_what_is_large_is_faster_than_its_travel(postgres_url: str) -> None:
    cold = opened(postgres_url)
    verified = finish(TieredStore(cold=postgres_url, mode="blocking").open())
    finish(put(cold, KEY, bytes(1_000_000)))
    finish(values(verified, KEY))

    travels, told = fastest(lambda: finish(values(cold, KEY))), fastest(lambda: finish(values(verified, KEY)))

    assert told < travels
    finish(verified.close())
    finish(cold.close())
