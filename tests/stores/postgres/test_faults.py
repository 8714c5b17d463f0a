"""A server that dies, hangs, is set otherwise or forgets: a named error each, nothing lost or done twice."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from keepstate_testing.servers import Postgres

from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.errors import (
    CorruptError,
    HistoryLostError,
    OutcomeUnknownError,
    StorageError,
    StoreFullError,
    StoreUnavailableError,
)
from keepstate.stores.postgres import PostgresStore, faults
from keepstate.stores.postgres.connection import RefusedStatement
from keepstate.stores.postgres.options import read_options
from keepstate.stores.protocol import ABSENT, Applied, Batch, Check, Conflict, Put
from keepstate.stores.urls import StoreUrl
from tests.processes import Program
from tests.stores.postgres.conftest import Rows, applied, opened, outcome_of, value_of

KEY = b"\x02doc"
LOG = b"\x01log/"

APPENDER = """
import sys
from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.stores.postgres import PostgresStore
from keepstate.stores.protocol import Applied, Batch, Put
from keepstate.stores.urls import StoreUrl
store = finish(PostgresStore.from_url(StoreUrl.parse(sys.argv[1]), runner=ThreadRunner()).open())
for number in range(int(sys.argv[3])):
    name = f"{sys.argv[2]}/{number}".encode()
    (outcome,) = finish(store.apply([Batch("s", [Put(b"\\x01log/", name, stamp=True)])]))
    assert type(outcome) is Applied, outcome
    print(number, flush=True)
finish(store.close())
"""


@pytest.fixture
def own_server() -> Iterator[Postgres]:
    """A durable server that the test may kill."""
    with Postgres() as server:
        yield server


def impatient(url: str, *, retry_for_s: float = 0.0) -> PostgresStore:
    """Return an open handle that does not try again, or not for long."""
    place = StoreUrl.parse(url)
    store = PostgresStore(place, read_options(place), runner=ThreadRunner(), retry_for_s=retry_for_s)
    return finish(store.open())


def with_default(url: str, setting: str) -> str:
    """Return a URL whose sessions begin with a setting, as if the server were set so."""
    return f"{url}?options={quote(f'-c {setting}')}"


@pytest.fixture
def appenders() -> Iterator[Callable[[str, int], list[Program]]]:
    """Start three processes that append to one log so often, and return them when each has begun."""
    started: list[Program] = []

    def start(url: str, times: int) -> list[Program]:
        for i in range(3):
            command = ("-c", APPENDER, url, f"worker{i}", times)
            started.append(Program(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        for worker in started:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "0\n"
        return started

    yield start
    for worker in started:
        worker.kill()
        worker.communicate()


def assert_ended_well(workers: list[Program]) -> None:
    for worker in workers:
        _, complaint = worker.communicate(timeout=60)
        assert worker.returncode == 0, complaint


def appended(store: PostgresStore) -> list[bytes]:
    values: list[bytes] = []
    after: bytes | None = None
    while True:
        page = finish(store.scan("s", LOG, after=after))
        values += [entry.value for entry in page.entries]
        if (after := page.next) is None:
            return values


def terminate_others(admin: Rows) -> int:
    """End the sessions of all others in this database; returns how many there were."""
    ended = admin.execute(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    ).fetchone()
    assert ended is not None
    return int(ended[0])


# ---- a server or a session that dies


@pytest.mark.slow
def test_a_server_killed_in_mid_write_loses_no_acknowledged_write(
    own_server: Postgres, appenders: Callable[[str, int], list[Program]]
) -> None:
    workers = appenders(own_server.url, 150)
    acknowledged = [0, 0, 0]

    def listen(i: int) -> None:
        stdout = workers[i].stdout
        assert stdout is not None
        for line in stdout:
            acknowledged[i] = int(line)

    listeners = [threading.Thread(target=listen, args=(i,)) for i in range(3)]
    for listener in listeners:
        listener.start()
    for round_ in range(1, 4):
        while sum(acknowledged) < 60 * round_:
            time.sleep(0.005)
        own_server.kill()
        own_server.start()
    for listener in listeners:
        listener.join(60)

    assert_ended_well(workers)
    store = opened(own_server.url)
    values = appended(store)
    for i in range(3):
        mine = [value for value in values if value.startswith(b"worker%d/" % i)]
        assert mine == [b"worker%d/%d" % (i, number) for number in range(150)]
    assert finish(store.read("s", ())).revision == 450
    finish(store.close())


@pytest.mark.slow
def test_sessions_ended_in_mid_commit_never_apply_twice(
    postgres_url: str, admin: Rows, appenders: Callable[[str, int], list[Program]]
) -> None:
    workers = appenders(postgres_url, 100)

    ended, pause_s = 0, 0.02
    while any(worker.poll() is None for worker in workers):
        ended += terminate_others(admin)
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.02, 0.5)  # a busy machine takes longer for a write than the first pauses

    assert_ended_well(workers)
    store = opened(postgres_url)
    values = appended(store)
    assert sorted(values) == sorted(b"worker%d/%d" % (i, n) for i in range(3) for n in range(100))
    assert ended >= 5
    finish(store.close())


def test_connections_from_before_a_restart_are_not_used(own_server: Postgres) -> None:
    store = impatient(own_server.url)
    applied(store, "s", Put(KEY, b"1"))
    finish(store.sweep())
    own_server.restart()
    time.sleep(0.06)  # as long as a connection is held for alive

    assert value_of(store, "s", KEY) == b"1"
    assert applied(store, "s", Put(KEY, b"2")).revision == 2
    finish(store.close())


def test_a_store_whose_server_was_down_is_opened_when_it_is_up(own_server: Postgres) -> None:
    store = PostgresStore.from_url(StoreUrl.parse(own_server.url), runner=ThreadRunner())
    own_server.stop()
    with pytest.raises(StoreUnavailableError):
        finish(store.open())
    own_server.start()

    finish(store.open())

    applied(store, "s", Put(KEY, b"1"))
    assert value_of(store, "s", KEY) == b"1"
    assert store.connections == 1
    finish(store.close())


def test_a_server_that_stays_down_is_told_and_used_again_when_it_is_back(own_server: Postgres) -> None:
    store = impatient(own_server.url, retry_for_s=0.2)
    applied(store, "s", Put(KEY, b"1"))
    own_server.stop()

    with pytest.raises(StoreUnavailableError, match=r"127\.0\.0\.1") as caught:
        finish(store.read("s", [KEY]))
    refused = outcome_of(store, "s", Put(KEY, b"2"))

    assert caught.value.retryable
    assert isinstance(refused, StoreUnavailableError)
    own_server.start()
    assert value_of(store, "s", KEY) == b"1"
    assert applied(store, "s", Put(KEY, b"2")).revision == 2
    finish(store.close())


def test_a_server_that_hangs_is_left_after_timeout_s(own_server: Postgres) -> None:
    store = impatient(f"{own_server.url}?timeout_s=1")
    applied(store, "s", Put(KEY, b"1"))
    with psycopg.connect(own_server.url, autocommit=True) as admin:
        row = admin.execute(
            "SELECT pid FROM pg_stat_activity WHERE application_name = 'keepstate'"
        ).fetchone()
    assert row is not None
    os.kill(row[0], signal.SIGSTOP)
    try:
        (outcome,) = finish(store.apply([Batch("s", [Put(KEY, b"2")], token=b"t")]))
    finally:
        os.kill(row[0], signal.SIGCONT)

    assert isinstance(outcome, OutcomeUnknownError)
    assert outcome.token == b"t"
    assert "within 1 s" in str(outcome)
    # The retry settles it: applied by the session that woke up, or by the retry, and once.
    (settled,) = finish(store.apply([Batch("s", [Put(KEY, b"2")], token=b"t", retry_of=1)]))
    assert isinstance(settled, Applied)
    assert settled.revision == 2
    assert finish(store.read("s", ())).revision == 2
    finish(store.close())


# ---- a server that is set otherwise


@pytest.mark.parametrize(
    "setting",
    [
        "default_transaction_isolation=serializable",
        "default_transaction_isolation=repeatable\\ read",
        "default_transaction_deferrable=on",
        "standard_conforming_strings=off",
        "bytea_output=escape",
        "search_path=",
        "plan_cache_mode=force_custom_plan",
        "enable_indexscan=off",
        "extra_float_digits=0",
        "idle_in_transaction_session_timeout=1000",
        "DateStyle=German",
    ],
)
def test_the_server_s_defaults_do_not_change_what_is_answered(postgres_url: str, setting: str) -> None:
    one, other = opened(with_default(postgres_url, setting)), opened(with_default(postgres_url, setting))

    def increment(store: PostgresStore) -> None:
        for _ in range(25):
            while True:
                (entry,) = finish(store.read("s", [KEY])).entries
                check = Check(KEY, version=entry.version if entry else ABSENT)
                value = b"%d" % (int(entry.value) + 1 if entry else 1)
                if isinstance(outcome_of(store, "s", Put(KEY, value), checks=(check,)), Applied):
                    break

    threads = [threading.Thread(target=increment, args=(store,)) for store in (one, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert value_of(one, "s", KEY) == b"50"
    assert finish(one.changes("s", 49)).items[0].old == b"49"
    assert finish(other.read("s", ())).revision == 50
    finish(one.close())
    finish(other.close())


@pytest.mark.parametrize("setting", ["lock_timeout=20", "statement_timeout=20", "deadlock_timeout=5"])
def test_a_lock_that_is_long_in_coming_is_asked_for_again(postgres_url: str, setting: str) -> None:
    finish(opened(postgres_url).close())
    store = opened(with_default(postgres_url, setting))
    applied(store, "s", Put(KEY, b"1"))

    with psycopg.connect(postgres_url) as holder:
        holder.execute("SELECT FROM keepstate.space FOR UPDATE")
        writer = threading.Thread(target=applied, args=(store, "s", Put(KEY, b"2")))
        writer.start()
        time.sleep(0.15)
        assert writer.is_alive()
    writer.join()

    assert value_of(store, "s", KEY) == b"2"
    assert finish(store.read("s", ())).revision == 2
    finish(store.close())


@pytest.mark.timed
def test_how_long_it_asks_again_is_an_option_of_the_url(postgres_url: str) -> None:
    finish(opened(postgres_url).close())
    store = opened(with_default(postgres_url, "default_transaction_read_only=on") + "&retry_for_s=0")
    began_s = time.monotonic()

    outcome = outcome_of(store, "s", Put(KEY, b"1"))

    assert isinstance(outcome, StoreUnavailableError)
    assert time.monotonic() - began_s < 1
    finish(store.close())


@pytest.mark.timed
def test_a_server_set_to_read_only_says_so_and_nothing_is_written(postgres_url: str) -> None:
    finish(opened(postgres_url).close())
    store = impatient(with_default(postgres_url, "default_transaction_read_only=on"), retry_for_s=30.0)
    began_s = time.monotonic()

    outcome = outcome_of(store, "s", Put(KEY, b"1"))

    assert time.monotonic() - began_s < 10
    assert isinstance(outcome, StoreUnavailableError)
    assert outcome.is_read_only
    assert not isinstance(outcome, OutcomeUnknownError)
    assert "target_session_attrs" in str(outcome)
    assert finish(store.spaces()) == []
    finish(store.close())


@pytest.mark.parametrize(
    ("sqlstate", "kind"),
    [
        ("53100", StoreFullError),
        ("XX001", CorruptError),
        ("XX002", CorruptError),
        ("40001", StoreUnavailableError),
        ("40P01", StoreUnavailableError),
        ("53300", StoreUnavailableError),
        ("57014", StoreUnavailableError),
        ("25006", StoreUnavailableError),
        ("42501", StorageError),
        ("22P02", StorageError),
    ],
)
def test_what_the_server_refuses_was_not_written(sqlstate: str, kind: type[StorageError]) -> None:
    error = faults.of_refusal(
        RefusedStatement(sqlstate, "so it is"), url="postgresql://db", schema="keepstate"
    )

    assert type(error) is kind
    assert "so it is" in str(error)
    assert sqlstate in str(error)


def test_a_batch_the_server_cannot_keep_leaves_its_connection_fit_for_the_next(
    store: PostgresStore, admin: Rows
) -> None:
    applied(store, "s", Put(KEY, b"1"))
    admin.execute("ALTER TABLE keepstate.entry ADD CONSTRAINT small CHECK (length(value) < 10)")

    outcome = outcome_of(store, "s", Put(KEY, b"much too large"))

    assert isinstance(outcome, StorageError)
    assert "23514" in str(outcome)
    assert value_of(store, "s", KEY) == b"1"
    assert applied(store, "s", Put(KEY, b"2")).revision == 2


# ---- a server that forgets


def test_a_dropped_schema_is_lost_history_and_then_an_empty_store(store: PostgresStore, admin: Rows) -> None:
    applied(store, "s", Put(KEY, b"1"))
    applied(store, "t", Put(KEY, b"1"))
    admin.execute("DROP SCHEMA keepstate CASCADE")

    with pytest.raises(HistoryLostError) as caught:
        finish(store.read("s", [KEY]))
    lost = outcome_of(store, "t", Put(KEY, b"2"))

    assert (caught.value.space, caught.value.revision) == ("s", 1)
    assert isinstance(lost, HistoryLostError)
    assert value_of(store, "s", KEY) is None
    assert applied(store, "t", Put(KEY, b"2")).revision == 1


@pytest.mark.parametrize("strangers", [1, 2, 3, 4])
def test_a_restored_backup_is_noticed_also_when_others_wrote_since(
    store: PostgresStore, admin: Rows, postgres_url: str, strangers: int
) -> None:
    applied(store, "s", Put(KEY, b"1"))
    admin.execute("CREATE SCHEMA backup")
    admin.execute("CREATE TABLE backup.space AS SELECT * FROM keepstate.space")
    admin.execute("CREATE TABLE backup.log AS SELECT * FROM keepstate.log")
    applied(store, "s", Put(KEY, b"2"))
    admin.execute("TRUNCATE keepstate.space, keepstate.log, keepstate.entry")
    admin.execute("INSERT INTO keepstate.space OVERRIDING SYSTEM VALUE SELECT * FROM backup.space")
    admin.execute("INSERT INTO keepstate.log SELECT * FROM backup.log")
    stranger = opened(postgres_url)
    for number in range(strangers):
        applied(stranger, "s", Put(KEY, b"stranger %d" % number))

    calls: dict[int, Coroutine[Any, Any, object]] = {
        1: store.read("s", [KEY, KEY]),
        2: store.scan("s", b"\x02"),
        3: store.changes("s", 1),
        4: store.drop("s"),
    }
    with pytest.raises(HistoryLostError) as caught:
        finish(calls.pop(strangers))

    assert caught.value.revision == 2
    assert finish(store.read("s", ())).revision == 1 + strangers
    finish(stranger.close())
    for call in calls.values():
        call.close()


def test_a_lost_mark_refuses_every_batch_of_its_space_and_no_other(store: PostgresStore, admin: Rows) -> None:
    applied(store, "s", Put(KEY, b"1"))
    applied(store, "t", Put(KEY, b"1"))
    admin.execute("UPDATE keepstate.space SET nonce = '12345678' WHERE name = 's'")

    first, other, second = finish(
        store.apply(
            [Batch("s", [Put(KEY, b"2")]), Batch("t", [Put(KEY, b"2")]), Batch("s", [Put(KEY, b"3")])]
        )
    )

    assert isinstance(first, HistoryLostError)
    assert isinstance(second, HistoryLostError)
    assert isinstance(other, Applied)
    assert value_of(store, "s", KEY) == b"1"


def test_a_mark_below_the_floor_is_no_loss(store: PostgresStore, postgres_url: str) -> None:
    applied(store, "s", Put(KEY, b"1"))
    stranger = opened(postgres_url)
    finish(stranger.drop("s"))
    applied(stranger, "s", Put(KEY, b"2"))

    assert value_of(store, "s", KEY) == b"2"
    assert outcome_of(store, "s", Put(KEY, b"3"), checks=(Check(KEY, version=1),)) == Conflict(KEY, 3)
    finish(stranger.close())
