"""The files of *Deploy*: what they start, starts; their times and sizes fit those of the server."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from keepstate.server import Limits
from keepstate.server.limits import LONGEST_WAIT_S
from tests.docs.pages import ROOT, blocks

PAGE = ROOT / "docs" / "how-to" / "deploy.md"
FILES = {
    block.mark.removeprefix("file="): block.text for block in blocks(PAGE) if block.mark.startswith("file=")
}
KEEPSTATE = str(Path(sys.executable).with_name("keepstate"))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(command: list[str], url: str) -> Iterator[int]:
    """Run a server by a command of the page, on a free port, and stop it as the page says."""
    port = free_port()
    command = [KEEPSTATE, *(str(port) if part == "8484" else part for part in command[1:])]
    environment = {**os.environ, "KEEPSTATE_URL": url}
    subprocess.run(
        [KEEPSTATE, "keys", "add", "web", "read"], env=environment, check=True, capture_output=True
    )
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert "serving" in process.stdout.readline()
        yield port
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.communicate()


def values_of(text: str, name: str) -> list[str]:
    """Return the values of a setting of systemd or nginx, or of an instruction of a container file."""
    return [match[1].rstrip(";") for match in re.finditer(rf"^\s*{name}[= ]+(.*)$", text, re.MULTILINE)]


@pytest.mark.server
def test_the_unit_and_the_container_start_a_server_that_is_healthy_and_stops(tmp_path: Path) -> None:
    unit = shlex.split(values_of(FILES["keepstate.service"], "ExecStart")[0])
    container = FILES["Containerfile"]
    (entry,), (extra,), (health,) = (
        [json.loads(value.removeprefix("CMD ")) for value in values_of(container, name)]
        for name in ("ENTRYPOINT", "CMD", "HEALTHCHECK")
    )

    for number, command in enumerate((unit, [*entry, *extra])):
        drain = command.index("--drain-s")
        command[drain + 1] = "0"
        with running(command, f"sqlite:///{tmp_path}/{number}.db") as port:
            probe = [part.replace("8484", str(port)) for part in health[1:]]
            done = subprocess.run([sys.executable, *probe], check=False)
            named = urllib.request.Request(
                f"http://127.0.0.1:{port}/readyz", headers={"Host": "state.example.org"}
            )

            assert done.returncode == 0
            assert urllib.request.urlopen(named, timeout=30).status == 200


def test_the_container_installs_extras_that_exist_and_stops_as_the_server_expects() -> None:
    container = FILES["Containerfile"]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]

    (installed,) = values_of(container, "RUN")
    named = re.search(r"keepstate\[([a-z,]+)\]", installed)

    assert named is not None and set(named[1].split(",")) <= {*extras}
    assert values_of(container, "STOPSIGNAL") == ["SIGTERM"]
    assert values_of(container, "EXPOSE") == ["8484"] and "USER 10001" in container


def test_the_urls_of_the_page_name_a_file_that_survives_a_power_cut() -> None:
    for name in ("environment", "Containerfile"):
        (url,) = [part for part in values_of(FILES[name], "(?:ENV )?KEEPSTATE_URL") if part]

        assert url.startswith("sqlite:////") and url.endswith("durability=full")


def test_the_proxies_let_pass_what_the_server_takes_and_hold_nothing_back() -> None:
    limits, nginx, caddy = Limits(), FILES["nginx.conf"], FILES["Caddyfile"]
    (stop_s,) = values_of(FILES["keepstate.service"], "TimeoutStopSec")

    assert int(values_of(nginx, "client_max_body_size")[0].rstrip("m")) << 20 == limits.body_bytes
    assert int(values_of(nginx, "proxy_read_timeout")[0].rstrip("s")) > max(
        limits.request_s, limits.comment_s, LONGEST_WAIT_S
    )
    assert values_of(nginx, "proxy_buffering") == ["off"]
    assert values_of(nginx, "proxy_set_header Host") == ["$host"]
    assert "flush_interval -1" in caddy and "read_timeout 60s" in caddy
    assert int(stop_s) > 5 + 5


@pytest.mark.deep
@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
def test_nginx_takes_the_configuration(tmp_path: Path) -> None:
    whole = f"pid {tmp_path}/pid; events {{}} http {{ access_log off;\n{FILES['nginx.conf']}\n}}"
    (tmp_path / "nginx.conf").write_text(whole)

    done = subprocess.run(
        ["nginx", "-t", "-q", "-e", "stderr", "-c", str(tmp_path / "nginx.conf")],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
