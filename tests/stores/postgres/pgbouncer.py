"""A real PgBouncer in transaction mode, where one is installed."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import psycopg

from keepstate._clock import SYSTEM_CLOCK

BINARY = shutil.which("pgbouncer")

_SETTINGS = """
[databases]
* = host=127.0.0.1 port={server}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {folder}/users
pool_mode = transaction
default_pool_size = 3
admin_users = postgres
"""
_START_S = 10.0


class PgBouncer:
    """Shares three sessions of the server among all who connect.

    Args:
        url: The server.
    """

    def __init__(self, url: str) -> None:
        place = urlsplit(url)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port: int = free.getsockname()[1]
        self._folder = tempfile.TemporaryDirectory(prefix="pgbouncer")
        folder = Path(self._folder.name)
        folder.chmod(0o755)
        (folder / "users").write_text('"postgres" ""\n')
        (folder / "settings").write_text(_SETTINGS.format(server=place.port, port=port, folder=folder))
        self._console = f"postgresql://postgres@127.0.0.1:{port}/pgbouncer"
        self.url = f"postgresql://postgres@127.0.0.1:{port}{place.path}"

    def __enter__(self) -> Self:
        assert BINARY is not None
        as_user = ["-u", "nobody"] if os.geteuid() == 0 else []  # it refuses to be root
        self._process = subprocess.Popen(
            [BINARY, "-q", *as_user, f"{self._folder.name}/settings"], stderr=subprocess.DEVNULL
        )
        until_s = SYSTEM_CLOCK.monotonic_s() + _START_S
        while True:
            try:
                psycopg.connect(self.url).close()
            except psycopg.OperationalError:
                if SYSTEM_CLOCK.monotonic_s() > until_s:
                    raise
            else:
                return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait()
        self._folder.cleanup()

    @property
    def turns(self) -> int:
        """Return how many transactions it passed on."""
        with psycopg.connect(self._console, autocommit=True) as console:
            rows = console.execute("SHOW TOTALS").fetchall()
        return sum(int(value) for name, value in rows if name == "total_xact_count")
