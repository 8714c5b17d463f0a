"""No server or folder outlives the process that started it, however that ends; and none dies before it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from keepstate_testing.servers import Redis
from keepstate_testing.servers.keeper import Process, find_process

STARTS_SERVERS = """
from keepstate_testing.servers import Postgres, Redis
servers = [Redis().start(), Postgres().start()]
print(servers[0].folder.parent, *[server.pid for server in servers], flush=True)
"""
WAITS = "import signal; signal.pause()"
FORKS = """
import os, sys
def fork():
    if os.fork() == 0:
        sys.exit()
    os.wait()
fork()
with servers[0]:
    if os.fork() == 0:
        sys.exit()
    os.wait()
    print(servers[0].command("PING"), flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_servers_and_folders_end_with_a_process_that_is_killed(number: signal.Signals) -> None:
    process, folder, servers = start(STARTS_SERVERS + WAITS)
    were_running = [server.is_running for server in servers]

    process.send_signal(number)
    process.communicate(timeout=60)

    assert were_running == [True, True]
    assert all(server.wait(60) for server in servers)
    assert disappears(folder)


def test_a_process_that_ends_by_itself_leaves_nothing() -> None:
    process, folder, servers = start(STARTS_SERVERS)

    process.communicate(timeout=60)

    assert process.returncode == 0
    assert [server.is_running for server in servers] == [False, False]
    assert not folder.exists()


def test_a_forked_child_ends_nothing_of_its_parent() -> None:
    process, _, _ = start(STARTS_SERVERS + FORKS)

    said, _ = process.communicate(timeout=60)

    assert (said.split(), process.returncode) == (["PONG"], 0)


def test_a_server_outlives_the_thread_that_started_it() -> None:
    server = Redis()
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()

    with server:
        assert server.command("PING") == "PONG"


def test_an_orphan_of_a_server_is_collected(tmp_path: Path) -> None:
    process, _, servers = start(STARTS_SERVERS + WAITS)
    children = [child for child in table() if child.parent == servers[1].pid]

    os.kill(servers[1].pid, signal.SIGKILL)

    assert children
    assert all(child.wait(60) for child in children)
    assert not [child for child in children if (left := find_process(child.pid)) and left.born == child.born]
    process.kill()
    process.communicate()


def start(code: str) -> tuple[subprocess.Popen[str], Path, Sequence[Process]]:
    """Run code that prints a folder and pids, and return the process and what it printed."""
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    folder, *pids = process.stdout.readline().split()
    return process, Path(folder), [row for pid in pids if (row := find_process(int(pid)))]


def table() -> list[Process]:
    return [row for name in os.listdir("/proc") if name.isdigit() and (row := find_process(int(name)))]


def disappears(folder: Path) -> bool:
    until = time.monotonic() + 60
    while folder.exists() and time.monotonic() < until:
        time.sleep(0.01)
    return not folder.exists()
