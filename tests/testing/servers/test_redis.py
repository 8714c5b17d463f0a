"""A private Redis or Valkey: with an append-only file it survives a SIGKILL, and its port stays its own."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Literal

import pytest
from keepstate_testing.servers import Redis, Valkey

from keepstate.errors import InvalidError, StorageError, StoreUnavailableError

KINDS = (Redis, Valkey)


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest) -> Iterator[Redis]:
    with request.param(appendonly=True) as server:
        yield server


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def test_what_was_acknowledged_survives_a_kill(server: Redis) -> None:
    server.command("SET", "key", "é")
    url = server.url

    server.kill()
    server.restart()

    assert (server.command("GET", "key"), server.url) == ("é", url)


def test_a_restart_of_a_running_server_keeps_its_data(server: Redis) -> None:
    server.command("SET", "key", "value")
    pid = server.pid

    server.restart()

    assert server.pid != pid
    assert server.command("GET", "key") == "value"


@pytest.mark.parametrize("kind", KINDS)
def test_without_an_append_only_file_a_kill_forgets_all(kind: type[Redis]) -> None:
    with kind() as server:
        server.command("SET", "key", "value")

        server.kill()
        server.restart()

        assert server.command("GET", "key") is None


def test_a_killed_server_is_gone_and_says_so(server: Redis) -> None:
    server.kill()

    assert (server.is_running, server.pid) == (False, None)
    with pytest.raises(StoreUnavailableError, match="no answer from"):
        server.command("PING")


def test_a_paused_server_answers_when_it_goes_on(server: Redis) -> None:
    server.pause()
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.settimeout(0.1)
        client.sendall(b"PING\r\n")
        with pytest.raises(TimeoutError):
            client.recv(64)

        server.resume()
        client.settimeout(10)

        assert client.recv(64) == b"+PONG\r\n"


def test_flush_removes_all_databases(server: Redis) -> None:
    server.command("SET", "key", "value")
    server.command("EVAL", "redis.call('SELECT', 3) redis.call('SET', 'key', 'value')", "0")

    server.flush()

    assert not [name for name in server.info() if name.startswith("db")]


def test_several_commands_share_one_connection(server: Redis) -> None:
    replies = server.commands(("SELECT", "3"), ("SET", "key", "value"), ("GET", "key"))

    assert replies == ["OK", "OK", "value"]
    assert server.command("GET", "key") is None


def test_a_refused_command_ends_the_conversation(server: Redis) -> None:
    with pytest.raises(StorageError, match="the server refuses"):
        server.commands(("NONSENSE",), ("SET", "key", "value"))

    assert server.command("GET", "key") is None


def test_settings_reach_the_server() -> None:
    with Redis(settings={"maxmemory": "2mb"}) as server:
        assert server.command("CONFIG", "GET", "maxmemory") == ["maxmemory", "2097152"]


@pytest.mark.parametrize("appendfsync", ["always", "everysec", "no"])
def test_appendfsync_reaches_the_server(appendfsync: Literal["always", "everysec", "no"]) -> None:
    with Redis(appendonly=True, appendfsync=appendfsync) as server:
        assert server.command("CONFIG", "GET", "appendfsync") == ["appendfsync", appendfsync]


def test_a_setting_of_the_servers_own_is_refused() -> None:
    with pytest.raises(InvalidError, match="it listens on the loopback interface only"):
        Redis(settings={"Bind": "0.0.0.0"})


def test_a_wrong_setting_is_quoted_from_the_log() -> None:
    with (
        pytest.raises(StoreUnavailableError, match="argument must be a memory value"),
        Redis(settings={"maxmemory": "much"}),
    ):
        pass


def test_a_command_that_the_server_refuses_is_an_error(server: Redis) -> None:
    with pytest.raises(StorageError, match="unknown command"):
        server.command("NONSENSE")


def test_a_first_start_on_a_taken_port_takes_another(listener: socket.socket) -> None:
    server = Redis()
    server._port = taken = listener.getsockname()[1]

    with server:
        assert server.port != taken


def test_a_restart_waits_for_its_port(server: Redis) -> None:
    server.kill()
    with socket.create_server(("127.0.0.1", server.port)):
        server.launch()
        assert server._process is not None
        assert server._process.wait(60)

    server.wait_until_ready()

    assert server.command("PING") == "PONG"


def test_what_was_never_started_says_so_without_starting() -> None:
    server = Redis()

    assert repr(server) == "<Redis 127.0.0.1:no port yet, not running>"
    with pytest.raises(StoreUnavailableError, match=r"call start\(\)"):
        _ = server.url


def test_each_server_has_a_port_and_a_folder_of_its_own(server: Redis) -> None:
    with Redis() as other:
        assert other.port != server.port
        assert other.folder != server.folder
