"""A private PostgreSQL: what was committed survives a SIGKILL of the whole tree, under every account."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from keepstate_testing.servers import Account, Postgres, find_postgres, unprivileged
from keepstate_testing.servers.keeper import find_process

from keepstate.errors import InvalidError, StoreUnavailableError

IS_ROOT = os.geteuid() == 0
ACCOUNTS = [unprivileged(), Account.named("nobody")] if IS_ROOT else [unprivileged()]


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


@pytest.mark.parametrize("account", ACCOUNTS, ids=repr)
def test_what_was_committed_survives_a_kill(account: Account) -> None:
    with Postgres(account=account) as server:
        url = server.url
        write(url)

        server.kill()
        server.restart()

        assert (rows(url), server.url) == (1, url)


def test_a_kill_ends_the_backends_too(postgres: Postgres) -> None:
    with psycopg.connect(postgres.url) as connection:
        backend = connection.info.backend_pid

        postgres.kill()

        assert find_process(backend) is None
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")


def test_a_stop_and_a_start_keep_data_and_port(postgres: Postgres) -> None:
    write(postgres.url)
    port = postgres.port

    postgres.stop()
    was_running = postgres.is_running
    postgres.start()

    assert (was_running, postgres.port, rows(postgres.url)) == (False, port, 1)


def test_a_stop_does_not_wait_for_clients(postgres: Postgres) -> None:
    with psycopg.connect(postgres.url) as connection:
        postgres.stop()

        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")


def test_start_leaves_a_running_server_alone(postgres: Postgres) -> None:
    assert postgres.pid == postgres.start().pid


def test_close_removes_the_data() -> None:
    with Postgres() as server:
        write(server.url)
        folder = server.folder

    assert not folder.exists()
    with server.start(), pytest.raises(psycopg.errors.UndefinedTable):
        rows(server.url)


@pytest.mark.parametrize(("durable", "expected"), [(True, "on"), (False, "off")])
def test_durable_decides_what_is_forced_to_the_disk(*, durable: bool, expected: str) -> None:
    with Postgres(durable=durable) as server, psycopg.connect(server.url) as connection:
        names = ("fsync", "synchronous_commit", "full_page_writes")

        assert {name: shown(connection, name) for name in names} == dict.fromkeys(names, expected)


def test_settings_reach_the_server() -> None:
    with Postgres(settings={"max_connections": "7"}) as server, psycopg.connect(server.url) as connection:
        assert shown(connection, "max_connections") == "7"


def test_it_listens_on_the_loopback_interface_only(postgres: Postgres) -> None:
    with psycopg.connect(postgres.url) as connection:
        assert shown(connection, "listen_addresses") == "127.0.0.1"
        assert shown(connection, "unix_socket_directories") == ""


def test_each_database_is_empty_and_its_own(postgres: Postgres) -> None:
    first, second = postgres.create_database(), postgres.create_database()

    write(first)

    assert first != second
    with pytest.raises(psycopg.errors.UndefinedTable):
        rows(second)


def test_a_database_in_use_can_be_dropped_and_dropped_again(postgres: Postgres) -> None:
    url = postgres.create_database()

    with psycopg.connect(url) as connection:
        postgres.drop_database(url)
        postgres.drop_database(url)

        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(url)


def test_flush_removes_all_schemas_and_connections(postgres: Postgres) -> None:
    write(postgres.url)
    with psycopg.connect(postgres.url) as other:
        other.execute('CREATE SCHEMA "Ours"')
        other.execute("LOCK kept")

        postgres.flush()

        with pytest.raises(psycopg.OperationalError):
            other.execute("SELECT 1")
    write(postgres.url)
    with psycopg.connect(postgres.url) as connection:
        connection.execute('CREATE SCHEMA "Ours"')


def test_a_database_of_a_server_that_is_down_is_a_clear_error(postgres: Postgres) -> None:
    postgres.kill()

    with pytest.raises(StoreUnavailableError, match="refuses connections"):
        postgres.create_database()


def test_a_wrong_setting_is_quoted_from_the_log() -> None:
    with pytest.raises(StoreUnavailableError, match=r'invalid value .*"max_connections"'):
        Postgres(settings={"max_connections": "many"}).start()


def test_a_setting_of_the_servers_own_is_refused() -> None:
    with pytest.raises(InvalidError, match="the server finds a free one itself"):
        Postgres(settings={"port": "5432"})


def test_a_killed_server_leaves_no_shared_memory() -> None:
    with Postgres() as server:
        key = (server.folder / "data" / "postmaster.pid").read_text().splitlines()[6].split()[0]
        server.kill()

    assert key not in segments()


if IS_ROOT:

    def test_an_account_that_cannot_read_the_installation_gets_a_copy(tmp_path: Path) -> None:
        installation = tmp_path / "installation"
        installation.symlink_to(find_postgres().parent)

        with Postgres(binaries=installation / "bin", account=Account.named("nobody")) as server:
            write(server.url)

            assert rows(server.url) == 1


def write(url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 1")


def rows(url: str) -> int:
    with psycopg.connect(url) as connection:
        return len(connection.execute("SELECT * FROM kept").fetchall())


def shown(connection: psycopg.Connection, name: str) -> str:
    row = connection.execute("SELECT current_setting(%s)", [name]).fetchone()
    assert row is not None
    return str(row[0])


def segments() -> set[str]:
    """Return the keys of the shared memory segments on this machine."""
    table = Path("/proc/sysvipc/shm")
    if table.exists():
        return {line.split()[0] for line in table.read_text().splitlines()[1:]}
    assert shutil.which("ipcs")
    return set(re.findall(r"\b\d+\b", os.popen("ipcs -m").read()))
