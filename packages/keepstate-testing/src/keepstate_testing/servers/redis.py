"""A private Redis or Valkey server, alone or as a node of a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from keepstate.errors import StorageError
from keepstate_testing.servers.binaries import find_redis, find_valkey
from keepstate_testing.servers.server import HOST, Server, refuse_reserved
from keepstate_testing.servers.wire import Reply, ask, ask_each, read_fields

_RESERVED = {
    "port": "the server finds a free one itself",
    "bind": "it listens on the loopback interface only",
    "dir": "it has a folder of its own",
    "daemonize": "it runs as a child of the tests",
    "requirepass": "the tests' own commands come without a password",
    "cluster-enabled": "use cluster_node_timeout_ms",
}


class Redis(Server):
    """One Redis server, in memory only unless an option says otherwise.

    Args:
        appendonly: Writes the append-only file, so that acknowledged writes survive `kill`.
        appendfsync: When that file is forced to the disk. A killed server loses nothing under `always` and
            `no`; under `everysec` it may lose writes that wait for a slow sync.
        settings: Further server settings, by their names in redis.conf.
        cluster_node_timeout_ms: Makes it a cluster node, without slots yet, that holds others for dead
            after this time.
        executable: The server's program; found by itself if None.
    """

    kind = "redis"

    def __init__(
        self,
        *,
        appendonly: bool = False,
        appendfsync: Literal["always", "everysec", "no"] = "everysec",
        settings: Mapping[str, str] | None = None,
        cluster_node_timeout_ms: int | None = None,
        executable: Path | None = None,
    ) -> None:
        super().__init__()
        refuse_reserved(settings or {}, _RESERVED)
        self._executable = executable
        self._needs_bus_port = cluster_node_timeout_ms is not None
        self._settings = {
            "save": "",
            "appendonly": "yes" if appendonly else "no",
            "appendfsync": appendfsync,
            **_cluster_settings(cluster_node_timeout_ms),
            **(settings or {}),
        }

    @property
    def url(self) -> str:
        """The address of database 0."""
        return f"redis://{HOST}:{self.port}/0"

    def command(self, *words: str) -> Reply:
        """Run one command on a connection of its own: `redis.command("CONFIG", "REWRITE")`."""
        return ask(HOST, self.port, *words)

    def commands(self, *commands: Sequence[str]) -> list[Reply]:
        """Run commands in order on one connection: `redis.commands(("SELECT", "3"), ("DBSIZE",))`."""
        return ask_each(HOST, self.port, *commands)

    def info(self) -> dict[str, str]:
        """Return all fields of INFO."""
        return read_fields(self.command("INFO", "everything"))

    def flush(self) -> None:
        """Remove all data, in all databases, before it returns. Under 1 ms for a test's worth of it."""
        self.command("FLUSHALL", "SYNC")

    def _prepare(self, folder: Path) -> None:
        self._executable = self._executable or self._find()

    def _find(self) -> Path:
        return find_redis()

    def _command(self) -> Sequence[str]:
        settings = {"port": str(self.port), "bind": HOST, "dir": str(self.folder), **self._settings}
        words = [word for name, value in settings.items() for word in (f"--{name}", value)]
        return [str(self._executable), *words]

    def _is_ready(self, pid: int) -> bool:
        try:
            fields = read_fields(ask(HOST, self.port, "INFO", timeout_s=1.0))
        except StorageError:
            return False
        return fields.get("process_id") == str(pid) and fields.get("loading") == "0"


class Valkey(Redis):
    """One Valkey server; takes what `Redis` takes."""

    kind = "valkey"

    def _find(self) -> Path:
        return find_valkey()


def _cluster_settings(node_timeout_ms: int | None) -> dict[str, str]:
    if node_timeout_ms is None:
        return {}
    return {
        "cluster-enabled": "yes",
        "cluster-config-file": "nodes.conf",
        "cluster-node-timeout": str(node_timeout_ms),
        "cluster-announce-ip": HOST,
        # By default a master waits five seconds for further replicas before it copies its data to the first.
        "repl-diskless-sync-delay": "0",
    }
