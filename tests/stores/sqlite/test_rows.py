"""What stands in the tables where no answer shows it: what was dropped goes, what is old is forgotten."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from keepstate._finish import finish
from keepstate.errors import CompactedError
from keepstate.stores.base import SWEPT_BY_FLUSH, StoreBase
from keepstate.stores.protocol import Applied, Batch, Put
from keepstate.stores.sqlite.revision import TRIM_AT_ONCE
from keepstate.testing.clocks import ManualClock
from keepstate.values import limits
from tests.stores.sqlite.conftest import Opens

A, DOC = b"\x01a", b"\x02doc"


class Rows:
    """Looks at the tables by SQL."""

    def __init__(self, path: Path) -> None:
        self._connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)

    def __call__(self, query: str) -> Any:
        return self._connection.execute(query).get

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def rows(path: Path, opened: Opens) -> Iterator[Rows]:
    opened(durability="normal")
    rows = Rows(path)
    yield rows
    rows.close()


def put(store: StoreBase, key: bytes = A, *, space: str = "s", value: bytes = b"", **more: Any) -> None:
    named = {name: more.pop(name) for name in ("token", "retry_of") if name in more}
    [outcome] = finish(store.apply([Batch(space, [Put(key, value, **more)], **named)]))
    assert isinstance(outcome, Applied)


def test_dropping_removes_every_row_of_a_large_space(rows: Rows, opened: Opens) -> None:
    store = opened(durability="normal")
    for start in range(0, 3_000, 1_000):
        puts = [Put(b"\x01%04d" % i, b"") for i in range(start, start + 1_000)]
        finish(store.apply([Batch("s", puts)]))
    put(store, space="neighbour")

    finish(store.drop("s"))

    assert rows("SELECT count(*) FROM entries") == 1
    assert rows("SELECT count(*) FROM log") == 2  # the neighbour's revision and the drop
    assert rows("SELECT count(*) FROM spaces WHERE name IS NULL") == 0


def test_rows_that_a_killed_drop_left_go_with_the_next_sweep(rows: Rows, opened: Opens) -> None:
    store = opened(durability="normal")
    put(store)
    rows("UPDATE spaces SET name = NULL")

    assert finish(store.sweep()) == 0

    assert rows("SELECT (SELECT count(*) FROM entries) + (SELECT count(*) FROM log)") == 0


def test_a_lease_renewed_for_ever_costs_no_search_for_what_expired(rows: Rows, opened: Opens) -> None:
    clock = ManualClock()
    store = opened(durability="normal", clock=clock)
    for _ in range(3):
        put(store, DOC, ttl_ms=100)
        clock.advance(60)

    put(store, A)

    assert rows("SELECT expiry_ms - now_ms FROM log ORDER BY id DESC LIMIT 1") == 40
    assert finish(store.read("s", [DOC])).entries[0] is not None


def test_a_sweep_goes_by_the_time_of_the_space_if_the_clock_is_behind(rows: Rows, opened: Opens) -> None:
    clock = ManualClock()
    store = opened(durability="normal", clock=clock)
    puts = [Put(b"\x01%04d" % i, b"", ttl_ms=100) for i in range(SWEPT_BY_FLUSH + 5)]
    finish(store.apply([Batch("s", puts)]))
    clock.advance(100)
    put(store, DOC)  # sweeps all but five
    clock.turn_back(50)

    assert finish(store.sweep()) == 5
    assert rows("SELECT count(*) FROM entries") == 1


def test_the_log_is_cut_a_few_revisions_at_a_time(
    rows: Rows, opened: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LOG_REVISIONS", 50)
    store = opened(durability="normal")
    longest = 0
    for i in range(150):
        put(store, token=b"%d" % i)
        longest = max(longest, rows("SELECT count(*) FROM log"))

    assert longest <= 50 + TRIM_AT_ONCE
    assert rows("SELECT count(*) FROM log WHERE token = x'30'") == 0
    floor = rows("SELECT floor FROM log ORDER BY id DESC LIMIT 1")
    assert finish(store.changes("s", floor)).items[0].revision == floor + 1
    with pytest.raises(CompactedError):
        finish(store.changes("s", floor - 1))


def test_the_log_is_cut_by_its_bytes(rows: Rows, opened: Opens, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LOG_BYTES", 100_000)
    store = opened(durability="normal")

    for _ in range(20):
        put(store, DOC, value=bytes(10_000))

    kept, logged = rows(
        "SELECT (SELECT kept_bytes FROM log ORDER BY id DESC LIMIT 1), "
        "(SELECT sum(size_bytes) FROM log WHERE id & 68719476735 > (SELECT max(floor) FROM log))"
    )
    assert kept == logged <= 100_000
    put(store, DOC, value=bytes(200_000))
    assert rows("SELECT count(*) FROM log") == 1  # the newest stays, however large


def test_answers_of_retries_are_forgotten_after_an_hour(rows: Rows, opened: Opens) -> None:
    clock = ManualClock()
    store = opened(durability="normal", clock=clock)
    put(store, token=b"first", retry_of=0)
    clock.advance(3_600_000)

    put(store, token=b"second", retry_of=0)

    assert rows("SELECT token FROM retries") == b"second"


def test_a_space_of_any_name_is_found_by_a_stranger_s_sql(rows: Rows, opened: Opens) -> None:
    """The layout is a promise: names are UTF-8, and a log row has its space's number and its revision."""
    put(opened(durability="normal"), space="a\x00é", value=b"v")

    row = rows(
        "SELECT log.id >> 36, log.id & 0xFFFFFFFFF, value FROM spaces "
        "JOIN log ON log.id >> 36 = spaces.id JOIN entries ON entries.space = spaces.id "
        "WHERE name = x'6100c3a9'"
    )

    assert row == (1, 1, b"v")
