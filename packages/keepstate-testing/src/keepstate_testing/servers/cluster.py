"""A private Redis or Valkey cluster: masters that share the slots, with or without replicas."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Literal, Self, TypeVar

from keepstate._clock import SYSTEM_CLOCK
from keepstate.errors import InvalidError, StorageError, StoreUnavailableError
from keepstate_testing.servers.redis import Redis
from keepstate_testing.servers.server import HOST
from keepstate_testing.servers.wire import read_fields

T = TypeVar("T")

_SLOTS = 16_384
_FORMED_WITHIN_S = 60.0
_LOOK_EVERY_S = 0.02


class RedisCluster:
    """A cluster on the loopback interface, a context manager like a single server.

    Each of `nodes` is a separate server, which can be killed and started alone. The first masters come first.
    A failover changes the roles; `master_of` reads them from the cluster.

    Args:
        masters: The number of nodes that share the slots; a cluster can fail over only with three or more.
        replicas: The number of replicas of each master.
        server: The kind of its nodes: `Redis` or `Valkey`.
        node_timeout_ms: Milliseconds without an answer after which a node counts as dead.
        appendonly: As with `Redis`.
        settings: Further settings of every node.
    """

    def __init__(
        self,
        *,
        masters: int = 3,
        replicas: Literal[0, 1] = 0,
        server: type[Redis] = Redis,
        node_timeout_ms: int = 1_000,
        appendonly: bool = False,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        if masters < 1:
            raise InvalidError(f"a cluster needs at least one master, not {masters}")
        self._master_count = masters
        self._is_formed = False
        self.nodes = tuple(
            server(appendonly=appendonly, settings=settings, cluster_node_timeout_ms=node_timeout_ms)
            for _ in range(masters * (1 + replicas))
        )

    @property
    def url(self) -> str:
        """The addresses of all nodes in one URL."""
        return "redis+cluster://" + ",".join(f"{HOST}:{node.port}" for node in self.nodes)

    def start(self) -> Self:
        """Start all nodes that do not run, and return when the cluster answers for every slot. About 3 s.

        Raises:
            StoreUnavailableError: It did not come up in 60 s.
            MissingExtraError: The server's binary is not installed.
        """
        for node in self.nodes:
            node.launch()
        for node in self.nodes:
            node.wait_until_ready()
        if not self._is_formed:
            self._form()
            self._is_formed = True
        self.wait_until_ok()
        return self

    def stop(self) -> None:
        """Shut all nodes down in order; their data and roles stay."""
        for node in self.nodes:
            node.stop()

    def kill(self) -> None:
        """Kill all nodes with SIGKILL; their data and roles stay."""
        for node in self.nodes:
            node.kill()

    def restart(self) -> Self:
        """Stop what runs, and start all nodes again over their data, on their ports."""
        self.stop()
        return self.start()

    def close(self) -> None:
        """Kill all nodes and remove their data."""
        self._is_formed = False
        for node in self.nodes:
            node.close()

    def flush(self) -> None:
        """Remove all data from all running masters."""
        for node in self.nodes:
            if node.is_running and node.info()["role"] == "master":
                node.flush()

    def master_of(self, key: str) -> Redis:
        """Return the running node that answers for `key`; if its master is gone, waits for the failover.

        Raises:
            StoreUnavailableError: There was none in 60 s.
        """
        return self._wait(f"a master for {key!r}", lambda: self._find_master(key))

    def replica_of(self, master: Redis) -> Redis:
        """Return the running replica of a master, once it has all that the master has.

        Raises:
            StoreUnavailableError: There was none in 60 s.
        """
        return self._wait(f"a replica of {master!r} in sync", lambda: self._find_replica(master))

    @contextmanager
    def forgetful_failover(self, key: str) -> Generator[Redis]:
        """Make a replica take over that misses exactly the writes of the block.

        Yields the master that answers for `key`. It still acknowledges, and at the end of the block it is
        killed: its replica, cut off and stopped meanwhile, takes its place. What was written before the block
        stays. `start` brings the killed node back, as a replica.
        """
        master = self.master_of(key)
        replica = self.replica_of(master)
        replica.pause()
        try:
            master.command("CLIENT", "KILL", "TYPE", "REPLICA")
            yield master
        finally:
            master.kill()
            replica.resume()
        replica.command("CLUSTER", "FAILOVER", "TAKEOVER")
        self._wait(f"a master for {key!r} in its place", lambda: self._find_master(key) is replica)
        running = [node for node in self.nodes if node.is_running]
        self._wait("all agreed", lambda: all(_port_of_master(node, key) == replica.port for node in running))
        self._wait("every slot served", lambda: all(_is_ok(node) for node in running))

    def wait_until_ok(self) -> None:
        """Return when all running nodes see every slot served, and the replicas hold their masters' data.

        Raises:
            StoreUnavailableError: That took longer than 60 s.
        """
        running = [node for node in self.nodes if node.is_running]
        self._wait("every slot served", lambda: all(_is_ok(node) for node in running))
        self._wait("replicas in sync", lambda: all(_is_in_sync(node) for node in running))

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        running = sum(node.is_running for node in self.nodes)
        return f"<{type(self).__name__} of {len(self.nodes)} nodes, {running} running>"

    def _form(self) -> None:
        masters, replicas = self.nodes[: self._master_count], self.nodes[self._master_count :]
        bounds = [_SLOTS * index // len(masters) for index in range(len(masters) + 1)]
        for epoch, (node, (first, behind)) in enumerate(
            zip(masters, itertools.pairwise(bounds), strict=True), 1
        ):
            node.command("CLUSTER", "ADDSLOTSRANGE", str(first), str(behind - 1))
            node.command("CLUSTER", "SET-CONFIG-EPOCH", str(epoch))
        for node in self.nodes[1:]:
            node.command("CLUSTER", "MEET", HOST, str(self.nodes[0].port))
        self._wait("all nodes known to all", lambda: all(self._knows_all(node) for node in self.nodes))
        for replica, master in zip(replicas, itertools.cycle(masters), strict=False):
            replica.command("CLUSTER", "REPLICATE", str(master.command("CLUSTER", "MYID")))
        self._wait(
            "all replicas known to all", lambda: all(self._counts_replicas(node) for node in self.nodes)
        )

    def _knows_all(self, node: Redis) -> bool:
        lines = str(node.command("CLUSTER", "NODES")).splitlines()
        return len(lines) == len(self.nodes) and not any(
            "handshake" in line or "noaddr" in line for line in lines
        )

    def _counts_replicas(self, node: Redis) -> bool:
        lines = str(node.command("CLUSTER", "NODES")).splitlines()
        return sum("slave" in line.split()[2] for line in lines) == len(self.nodes) - self._master_count

    def _find_master(self, key: str) -> Redis | None:
        running = {node.port: node for node in self.nodes if node.is_running}
        for witness in running.values():
            port = _port_of_master(witness, key)
            if port in running:
                return running[port]
        return None

    def _find_replica(self, master: Redis) -> Redis | None:
        offset = int(master.info()["master_repl_offset"])
        for node in self.nodes:
            if node.is_running and node is not master:
                fields = node.info()
                is_its = fields.get("master_port") == str(master.port)
                if (
                    is_its
                    and fields["master_link_status"] == "up"
                    and int(fields["slave_repl_offset"]) >= offset
                ):
                    return node
        return None

    def _wait(self, goal: str, look: Callable[[], T | None]) -> T:
        """Return what `look` finds, as soon as it is not None or False."""
        until = SYSTEM_CLOCK.monotonic_s() + _FORMED_WITHIN_S
        while not (found := look()):
            if SYSTEM_CLOCK.monotonic_s() > until:
                raise StoreUnavailableError(f"{self!r}: no «{goal}» in {_FORMED_WITHIN_S:.0f} s")
            time.sleep(_LOOK_EVERY_S)
        return found


def _is_ok(node: Redis) -> bool:
    """Return whether a node sees every slot served; a replica that loads its first copy refuses to answer."""
    try:
        return read_fields(node.command("CLUSTER", "INFO")).get("cluster_state") == "ok"
    except StorageError:
        return False


def _is_in_sync(node: Redis) -> bool:
    """Return whether a node is a master, or a replica that is linked to its master and fully copied."""
    fields = node.info()
    return fields["role"] == "master" or fields["master_link_status"] == "up"


def _port_of_master(witness: Redis, key: str) -> int | None:
    """Return the port of the master that `witness` believes to serve `key`, dead or not."""
    slot = int(str(witness.command("CLUSTER", "KEYSLOT", key)))
    for line in str(witness.command("CLUSTER", "NODES")).splitlines():
        _, address, _, _, _, _, _, _, *spans = line.split()
        for span in spans:
            # "[" begins a slot on its way from node to node, which its owner still serves.
            first, _, last = span.partition("-")
            if not span.startswith("[") and int(first) <= slot <= int(last or first):
                return int(address.partition("@")[0].rpartition(":")[2])
    return None
