"""A cache between processes spares the cold server values, is never believed, and costs only time."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

import pytest
from keepstate_testing.servers import Postgres, Valkey

from keepstate import InvalidError, TieredStore
from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.stores.protocol import Batch, Put
from keepstate.stores.redis import RedisStore
from keepstate.stores.urls import StoreUrl
from keepstate.stores.wrappers.encrypted import EncryptedStore, KeyRing
from keepstate.stores.wrappers.warm_tier import SHARDS
from tests.server_fixtures import running
from tests.stores.wrappers.tiered.counting import CountedPostgres, put, values

A, B, OBJECT = b"\x01a", b"\x02b", b"\x00o"


@pytest.fixture(scope="module")
def own_server(request: pytest.FixtureRequest) -> Iterator[Valkey]:
    """A cache of this module's own, to be killed."""
    yield from running(request, Valkey())


@pytest.fixture
def cache(own_server: Valkey) -> Valkey:
    if not own_server.is_running:
        own_server.start()
    own_server.flush()
    return own_server


class Crew:
    """Handles on one cold server and one cache, as several processes have them."""

    def __init__(self, cold: str, warm: str) -> None:
        self._cold, self._warm = cold, warm
        self._opened: list[TieredStore] = []

    def open(self, warm: str = "") -> tuple[TieredStore, CountedPostgres]:
        cold = CountedPostgres.from_url(StoreUrl.parse(self._cold), runner=ThreadRunner())
        assert isinstance(cold, CountedPostgres)
        store = finish(TieredStore(cold=cold, warm=warm or self._warm).open())
        self._opened.append(store)
        return store, cold

    def close(self) -> None:
        for store in self._opened:
            finish(store.close())


@pytest.fixture
def crew(postgres_url: str, cache: Valkey) -> Iterator[Crew]:
    crew = Crew(postgres_url, f"{cache.url}?timeout_s=5")
    yield crew
    crew.close()


def warm_up(crew: Crew) -> TieredStore:
    """Return a handle that has written and read two keys."""
    store, _ = crew.open()
    finish(put(store, A, b"1"))
    finish(put(store, B, b"1"))
    finish(values(store, A, B))
    return store


def test_what_one_process_has_read_another_reads_from_the_cache(crew: Crew) -> None:
    warm_up(crew)
    second, cold = crew.open()

    assert finish(values(second, A, B)) == [b"1", b"1"]
    assert cold.asked == [0]


def test_a_store_that_is_given_as_cache_stays_what_it_was(postgres_url: str, cache: Valkey) -> None:
    """Its owner may use it for what must be kept: there calls are repeated, and nobody else closes it."""
    theirs = RedisStore(StoreUrl.parse(cache.url), runner=ThreadRunner())
    finish(theirs.open())
    cold = CountedPostgres.from_url(StoreUrl.parse(postgres_url), runner=ThreadRunner())
    store = finish(TieredStore(cold=cold, warm=theirs).open())
    finish(put(store, A, b"1"))
    finish(values(store, A))
    finish(store.close())

    assert theirs.is_open
    assert theirs._retry_for_s > 0
    assert any(finish(theirs.scan(f"tier/{shard}", b"\x00")).entries for shard in range(SHARDS))
    finish(theirs.close())


def test_what_was_written_since_is_read_from_the_cold_server(crew: Crew) -> None:
    first = warm_up(crew)
    finish(put(first, B, b"2"))
    second, cold = crew.open()

    assert finish(values(second, A)) == [b"1"]
    assert finish(values(second, B)) == [b"2"]
    assert cold.asked == [0, 0, 1]


def test_objects_stand_in_no_log_and_in_no_cache(crew: Crew) -> None:
    first = warm_up(crew)
    finish(put(first, OBJECT, b"1"))
    finish(values(first, OBJECT))
    second, cold = crew.open()

    assert finish(values(second, OBJECT)) == [b"1"]
    assert cold.asked == [1]


def test_a_cache_that_is_down_is_told_of_once_and_found_again(
    crew: Crew, cache: Valkey, caplog: pytest.LogCaptureFixture
) -> None:
    cache.kill()
    with caplog.at_level(logging.WARNING, "keepstate"):
        store = warm_up(crew)
        for i in range(20):
            finish(put(store, A, b"%d" % i))
            assert finish(values(store, A)) == [b"%d" % i]
    assert len([line for line in caplog.messages if "warm tier" in line]) == 1

    cache.start()
    until_s = time.monotonic() + 60
    while not store._warm.answers:  # type: ignore[union-attr]
        assert time.monotonic() < until_s
        finish(values(store, b"\x01%d" % time.monotonic_ns()))
        time.sleep(0.02)  # the pause of the breaker is real time

    for _ in range(2):
        again, cold = crew.open()
        assert finish(values(again, A)) == [b"19"]
    assert cold.asked == [0]


@pytest.mark.timed
def test_a_cache_that_hangs_costs_a_moment_and_then_nothing(crew: Crew, cache: Valkey) -> None:
    store, _ = crew.open(cache.url)
    finish(put(store, A, b"1"))
    cache.pause()
    began_s = time.monotonic()
    try:
        for i in range(50):
            finish(put(store, A, b"%d" % i))
            assert finish(values(store, A, b"\x01new %d" % i)) == [b"%d" % i, None]
    finally:
        cache.resume()

    assert time.monotonic() - began_s < 4


def test_a_cache_that_was_wiped_is_filled_again(crew: Crew, cache: Valkey) -> None:
    store = warm_up(crew)
    cache.flush()

    finish(put(store, A, b"2"))
    assert finish(values(store, A, B)) == [b"2", b"1"]


def test_what_is_not_a_claim_of_its_place_is_not_believed(crew: Crew, cache: Valkey) -> None:
    warm_up(crew)
    spoil(cache)
    second, cold = crew.open()

    assert finish(values(second, A, B)) == [b"1", b"1"]
    assert cold.asked[-1] == 2


def test_claims_of_a_history_that_is_gone_are_not_believed(
    crew: Crew, postgres_url: str, postgres_server: Postgres
) -> None:
    warm_up(crew)
    postgres_server.flush()
    again = Crew(postgres_url, crew._warm)
    writer, _ = again.open(f"{crew._warm}&prefix=elsewhere")
    for value in (b"restored", b"other"):
        finish(put(writer, A, value))

    reader, _ = again.open()
    assert finish(values(reader, A, B)) == [b"other", None]
    finish(put(writer, B, b"new"))
    late, _ = again.open()
    assert finish(values(late, A, B)) == [b"other", b"new"]
    again.close()


def test_a_cold_store_that_is_encrypted_takes_no_cache(postgres_url: str, cache: Valkey) -> None:
    cold = CountedPostgres.from_url(StoreUrl.parse(postgres_url), runner=ThreadRunner())

    with pytest.raises(InvalidError, match="around the TieredStore"):
        TieredStore(cold=EncryptedStore(cold, KeyRing(KeyRing.new_key())), warm=cache.url)


def spoil(cache: Valkey) -> None:
    """Turn one bit in every value that the cache holds."""
    store = finish(RedisStore(StoreUrl.parse(cache.url), runner=ThreadRunner()).open())
    spoilt = 0
    for shard in range(SHARDS):
        entries = finish(store.scan(f"tier/{shard}", b"\x00")).entries
        for entry in entries:
            value = entry.value[:-1] + bytes((entry.value[-1] ^ 1,))
            finish(store.apply([Batch(f"tier/{shard}", [Put(entry.key, value)])]))
            spoilt += 1
    finish(store.close())
    assert spoilt
