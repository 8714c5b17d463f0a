"""A Redis or Valkey server with a replica that is promoted by hand, at one address."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Self

from keepstate_testing.faults import Proxy
from keepstate_testing.servers import Redis

_IN_SYNC_WITHIN_S = 60.0


class RedisPair:
    """Two servers behind a proxy, which leads to the master as a virtual address would."""

    def __init__(self, kind: type[Redis]) -> None:
        # By default a master waits five seconds for further replicas before it copies its data to the first.
        self._master, self._replica = (kind(settings={"repl-diskless-sync-delay": "0"}) for _ in range(2))

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for server in (self._master, self._replica):
                stack.enter_context(server)
            self._replica.command("REPLICAOF", "127.0.0.1", str(self._master.port))
            self._proxy = stack.enter_context(Proxy(self._master.port))
            self.url = self._proxy.url(self._master.url)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @contextmanager
    def forgetful_failover(self) -> Generator[None]:
        """Promote the replica, which misses exactly what the block writes."""
        self._wait_until_in_sync()
        self._replica.pause()
        try:
            self._master.command("CLIENT", "KILL", "TYPE", "REPLICA")
            yield
        finally:
            self._master.kill()
            self._replica.resume()
        self._replica.command("REPLICAOF", "NO", "ONE")
        self._proxy.lead_to(self._replica.port)

    def _wait_until_in_sync(self) -> None:
        until_s = time.monotonic() + _IN_SYNC_WITHIN_S
        goal = int(self._master.info()["master_repl_offset"])
        while True:
            fields = self._replica.info()
            is_up = fields.get("master_link_status") == "up"
            if is_up and int(fields["slave_repl_offset"]) >= goal:
                return
            assert time.monotonic() < until_s, fields
            time.sleep(0.01)
