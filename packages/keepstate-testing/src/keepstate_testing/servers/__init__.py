"""WHERE do real servers for tests come from?

Private PostgreSQL, Redis, Valkey and cluster servers, started from pip wheels or the system's programs,
as root or not, without docker. Invariant: they listen on the loopback interface only, on ports of their
own, keep everything in one temporary folder, and neither a process nor a folder outlives the process that
started them, however it ends.

To add one: a subclass of `Server` in its own file, which prepares a folder, names the command and detects
readiness; and a `find_*` in `binaries`.
"""

from keepstate_testing.servers.account import Account as Account
from keepstate_testing.servers.account import unprivileged as unprivileged
from keepstate_testing.servers.binaries import find_postgres as find_postgres
from keepstate_testing.servers.binaries import find_redis as find_redis
from keepstate_testing.servers.binaries import find_valkey as find_valkey
from keepstate_testing.servers.cluster import RedisCluster as RedisCluster
from keepstate_testing.servers.postgres import Postgres as Postgres
from keepstate_testing.servers.redis import Redis as Redis
from keepstate_testing.servers.redis import Valkey as Valkey
from keepstate_testing.servers.server import Server as Server

__all__ = [
    "Account",
    "Postgres",
    "Redis",
    "RedisCluster",
    "Server",
    "Valkey",
    "find_postgres",
    "find_redis",
    "find_valkey",
    "unprivileged",
]
