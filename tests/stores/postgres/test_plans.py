"""How the server looks for keys does not depend on how few there were when it made its plan."""

from __future__ import annotations

import time

from keepstate._finish import finish
from keepstate.stores.protocol import Batch, Put
from tests.stores.postgres.conftest import Rows, opened

KEYS = [b"\x01%04d" % number for number in range(3_000)]
READS, ASKED = 100, 8


def looked_at(admin: Rows) -> int:
    """Return how many rows the server has taken from its index of entries, once it has counted them."""
    query = "select idx_tup_read from pg_stat_user_indexes where indexrelname = 'entry_pkey'"
    deadline = time.monotonic() + 60
    while True:
        admin.execute("select pg_stat_clear_snapshot()")
        row = admin.execute(query).fetchone()
        assert row is not None
        if row[0] >= READS * ASKED or time.monotonic() > deadline:
            return int(row[0])
        time.sleep(0.05)


def test_reading_some_of_many_keys_looks_at_these_alone(postgres_url: str, admin: Rows) -> None:
    store = opened(postgres_url)
    finish(store.read("s", KEYS[:ASKED]))  # the connection makes its plan while there is nothing
    for begin in range(0, len(KEYS), 500):
        finish(store.apply([Batch("s", [Put(key, b"") for key in KEYS[begin : begin + 500]])]))
    for _ in range(READS):
        finish(store.read("s", KEYS[:ASKED]))
    finish(store.close())

    assert READS * ASKED <= looked_at(admin) < 10 * READS * ASKED


def test_reading_no_key_tells_the_state_of_the_space(postgres_url: str) -> None:
    store = opened(postgres_url)
    nothing = finish(store.read("s", []))
    finish(store.apply([Batch("s", [Put(KEYS[0], b"1")])]))

    something = finish(store.read("s", []))

    assert (nothing.entries, nothing.revision) == ((), 0)
    assert (something.entries, something.revision) == ((), 1)
    assert something.now_ms >= nothing.now_ms > 0
    finish(store.close())
