"""Opening: what a URL can say, who makes the schema, and what is told when it cannot be done."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import time

import pytest
from keepstate_testing.servers import Postgres

from keepstate._finish import finish
from keepstate._runner import TaskRunner, ThreadRunner
from keepstate.errors import InvalidError, StorageError, StoreUnavailableError, UnsupportedError
from keepstate.stores.postgres import PostgresStore
from keepstate.stores.postgres.options import connection_parameters, read_options
from keepstate.stores.protocol import Durability, Put
from keepstate.stores.urls import StoreUrl
from tests.processes import Program
from tests.stores.postgres.conftest import Rows, applied, opened, value_of

KEY = b"\x02doc"

OPENER = """
import sys
from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.stores.postgres import PostgresStore
from keepstate.stores.protocol import Batch, Put
from keepstate.stores.urls import StoreUrl
for schema in sys.stdin:
    url = StoreUrl.parse(sys.argv[1] + "?schema=" + schema.strip())
    store = finish(PostgresStore.from_url(url, runner=ThreadRunner()).open())
    (outcome,) = finish(store.apply([Batch("s", [Put(b"\\x01log", b"", stamp=True)])]))
    print(outcome.revision, flush=True)
    finish(store.close())
"""


def parse(options: str, place: str = "db") -> StoreUrl:
    return StoreUrl.parse(f"postgresql://ann:s3cret@{place}/agents?{options}")


# ---- what a URL says


def test_ours_and_libpq_s_options_go_where_they_belong() -> None:
    url = parse("schema=other&max_connections=3&timeout_s=1.5&sslmode=require&application_name=me")

    options, parameters = read_options(url), connection_parameters(url)

    assert (options.schema, options.max_connections, options.timeout_s) == ("other", 3, 1.5)
    assert parameters == {
        "host": "db", "port": "", "user": "ann", "password": "s3cret", "dbname": "agents",
        "sslmode": "require", "application_name": "me", "connect_timeout": "10",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("place", "host", "port"),
    [
        ("db:6432", "db", "6432"),
        ("a:1,b,c:3", "a,b,c", "1,,3"),
        ("[::1]:5433,[fe80::2]", "::1,fe80::2", "5433,"),
    ],
)
def test_several_hosts_and_ports_are_passed_on(place: str, host: str, port: str) -> None:
    parameters = connection_parameters(parse("", place))

    assert (parameters["host"], parameters["port"]) == (host, port)


def test_a_socket_s_folder_is_a_host_by_option() -> None:
    parameters = connection_parameters(StoreUrl.parse("postgresql:///agents?host=/run/postgresql"))

    assert parameters["host"] == "/run/postgresql"
    assert "port" not in parameters


@pytest.mark.parametrize(
    ("options", "place", "message"),
    [
        (
            "pool_size=3",
            "db",
            "does not have an option 'pool_size'.*max_connections.*schema.*sslmode.*timeout_s",
        ),
        ("max_connections=0", "db", "max_connections"),
        ("max_connections=many", "db", "max_connections"),
        ("timeout_s=0", "db", "timeout_s"),
        ("schema=Mine", "db", "Schema 'Mine'"),
        ("schema=pg_mine", "db", "Schema 'pg_mine'"),
        ("schema=" + "a" * 64, "db", "Schema"),
        ("host=other", "db", "host twice"),
        ("", "db:port", "no valid host and port"),
    ],
)
def test_a_wrong_option_is_told_without_the_password(options: str, place: str, message: str) -> None:
    with pytest.raises(InvalidError, match=message) as caught:
        PostgresStore.from_url(parse(options, place), runner=ThreadRunner())

    assert "s3cret" not in str(caught.value)


def test_no_repr_or_error_shows_the_password() -> None:
    url = StoreUrl.parse("postgresql://ann:s3cret@127.0.0.1:1/agents?sslpassword=s3cret")
    store = PostgresStore.from_url(url, runner=ThreadRunner())

    with pytest.raises(StoreUnavailableError) as caught:
        finish(store.open())

    shown = [repr(store), store.url, str(caught.value), repr(caught.value), str(caught.value.__cause__)]
    assert [text for text in shown if "s3cret" in text] == []
    assert pickle.loads(pickle.dumps(caught.value)).url == store.url


# ---- who makes the schema


@pytest.mark.slow
def test_many_processes_may_open_an_empty_database_at_once(postgres_url: str) -> None:
    openers = [
        Program(
            "-c", OPENER, postgres_url, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(8)
    ]

    for round_ in range(15):
        for opener in openers:
            assert opener.stdin is not None
            opener.stdin.write(f"round_{round_}\n")
            opener.stdin.flush()
        told = [int(opener.stdout.readline() or 0) for opener in openers if opener.stdout is not None]

        complaints = [opener.stderr.read() for opener in openers if opener.stderr and opener.poll()]
        assert sorted(told) == list(range(1, 9)), complaints

    for opener in openers:
        opener.communicate(timeout=60)
        assert opener.returncode == 0


def test_schemas_of_one_database_are_stores_apart(postgres_url: str) -> None:
    one, other = opened(f"{postgres_url}?schema=one"), opened(f"{postgres_url}?schema=other")
    applied(one, "s", Put(KEY, b"one"))

    assert finish(other.spaces()) == []
    assert value_of(other, "s", KEY) is None
    finish(one.close())
    finish(other.close())


def test_opening_again_changes_nothing(store: PostgresStore, postgres_url: str, admin: Rows) -> None:
    made = "SELECT count(*), max(p.oid) FROM pg_proc p WHERE p.pronamespace = 'keepstate'::regnamespace"
    before = admin.execute(made).fetchone()

    again = opened(postgres_url)

    assert admin.execute(made).fetchone() == before
    finish(again.close())


def test_a_function_that_is_missing_is_made_beside_the_others(postgres_url: str, admin: Rows) -> None:
    finish(opened(postgres_url).close())
    admin.execute("DROP FUNCTION keepstate.put_1")

    store = opened(postgres_url)

    applied(store, "s", Put(KEY, b"1"))
    applied(store, "s", Put(KEY, b"2"))
    assert value_of(store, "s", KEY) == b"2"
    finish(store.close())


def test_a_schema_that_holds_something_else_is_left_alone(postgres_url: str, admin: Rows) -> None:
    admin.execute("CREATE TABLE public.space (mine text)")

    with pytest.raises(StorageError, match=r"not keepstate's.*option schema"):
        opened(f"{postgres_url}?schema=public")

    assert admin.execute("SELECT to_regclass('public.entry')").fetchone() == (None,)


def test_a_newer_layout_is_not_touched(store: PostgresStore, postgres_url: str, admin: Rows) -> None:
    admin.execute("INSERT INTO keepstate.layout VALUES (2)")

    with pytest.raises(UnsupportedError, match="layout 2"):
        opened(postgres_url)


def test_a_user_with_few_rights_works_in_a_schema_made_for_it(store: PostgresStore, admin: Rows) -> None:
    admin.execute("CREATE ROLE worker LOGIN")
    as_worker = store.url.replace("postgres@", "worker@")
    try:
        with pytest.raises(StorageError, match=r"does not let.*Grant it USAGE"):
            opened(as_worker)
        admin.execute("GRANT USAGE ON SCHEMA keepstate TO worker")
        admin.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA keepstate TO worker")

        worker = opened(as_worker)

        applied(worker, "s", Put(KEY, b"1"))
        assert value_of(store, "s", KEY) == b"1"
        finish(worker.drop("s"))
        finish(worker.close())
    finally:
        admin.execute("DROP OWNED BY worker")
        admin.execute("DROP ROLE worker")


# ---- what the server offers


@pytest.mark.slow
def test_durability_is_told_as_the_server_is_set() -> None:
    wanted = {
        ("on", "on"): Durability.POWER,
        ("off", "on"): Durability.PROCESS,
        ("on", "off"): Durability.NONE,
        ("on", "local"): Durability.POWER,
    }
    for (fsync, synchronous_commit), durability in wanted.items():
        settings = {"fsync": fsync, "synchronous_commit": synchronous_commit}
        with Postgres(durable=True, settings=settings) as server:
            store = opened(server.url)

            assert store.capabilities.durability is durability
            assert store.capabilities.shared
            assert not store.capabilities.fails_over
            finish(store.close())


@pytest.mark.timed
def test_a_server_that_is_down_is_told_at_once_with_its_place() -> None:
    started = time.monotonic()

    with pytest.raises(StoreUnavailableError, match=r"127\.0\.0\.1.*port 1 .*refused.*Start the server"):
        opened("postgresql://ann@127.0.0.1:1/agents")

    assert time.monotonic() - started < 2


@pytest.mark.parametrize(
    ("place", "said"), [("postgres@", "no_such_database"), ("nobody_here@", "nobody_here")]
)
def test_what_the_server_says_against_a_login_is_told(
    postgres_server: Postgres, place: str, said: str
) -> None:
    url = postgres_server.url.replace("postgres@", place).replace("/postgres", "/no_such_database")

    with pytest.raises(InvalidError, match=f"rejects this user or database.*{said}"):
        opened(url)


def test_the_first_host_that_answers_is_taken(postgres_url: str) -> None:
    store = opened(postgres_url.replace("@", "@127.0.0.1:1,"))

    assert applied(store, "s", Put(KEY, b"1")).revision == 1
    finish(store.close())


def test_a_twin_works_in_the_other_mode(store: PostgresStore) -> None:
    async def write() -> None:
        twin = await store.twin(TaskRunner()).open()
        await twin.apply([])
        assert (await twin.read("s", [KEY])).revision == 1
        await twin.close()

    applied(store, "s", Put(KEY, b"1"))
    asyncio.run(write())
