"""What a server is, asked once when a store is opened: whether it can hold state at all, and how safely."""

from __future__ import annotations

import logging
from typing import Final, NamedTuple, cast

from keepstate.errors import InvalidError, StorageError, StoreUnavailableError, UnsupportedError
from keepstate.stores.protocol import Capabilities, Durability
from keepstate.stores.redis.client import with_text
from keepstate.stores.redis.encoding import Place
from keepstate.stores.redis.node import Node
from keepstate.stores.redis.scripts import script
from keepstate.stores.redis.wire import NO_LOGIN, Refusal, Reply, pack, refused, refused_login

_OLDEST = (7, 0)
_HINT: Final = "SPUBLISH"
_POLICY: Final = "noeviction"
_DURABILITIES = (Durability.NONE, Durability.PROCESS, Durability.POWER)
_log = logging.getLogger("keepstate.stores")


class Found(NamedTuple):
    """What one server said of itself."""

    capabilities: Capabilities
    hints: bool
    """Whether the user may publish and subscribe."""


async def inspect(node: Node, place: Place, *, url: str, is_cluster: bool, unsafe_policy: bool) -> Found:
    """Return what a server offers, or raise what makes it unfit.

    Args:
        node: The server.
        place: Where no space is, of a slot of this server: there the user's rights are tried.
        url: Names the store in errors.
        is_cluster: Whether it should be a node of a cluster.
        unsafe_policy: Whether to work on a server that evicts entries, or does not tell.
    """
    probe = script("probe").call(place.keys)
    commands = [(b"INFO",), (b"CONFIG", b"GET", b"appendfsync"), with_text(probe)]
    info, fsync, forbidden = await node.exchange(b"".join(map(pack, commands)), len(commands))
    where = f"{url} ({node.address})"
    for reply in (info, forbidden):
        if isinstance(reply, Refusal) and reply.code in NO_LOGIN:
            raise refused_login(url, f"{node.address}: {reply.text}")
    fields = _fields(info, where, unsafe_policy=unsafe_policy)
    if fields:
        _refuse_unfit(fields, where, url=url, is_cluster=is_cluster)
    _refuse_eviction(fields.get("maxmemory_policy"), where, unsafe_policy=unsafe_policy)
    if isinstance(forbidden, Refusal):
        raise refused(forbidden, where)
    commands_forbidden = [name.decode() for name in cast("list[bytes]", forbidden)]
    hints = _HINT not in commands_forbidden
    if commands_forbidden not in ([], [_HINT]):
        raise StorageError(
            f"{where} forbids its user {', '.join(commands_forbidden)}; give it the right to all of "
            "@hash @sortedset @keyspace @scripting @transaction @pubsub on keys and channels of the prefix",
            url=url,
        )
    return Found(
        Capabilities(
            durability=_durability(fields, fsync),
            shared=True,
            fails_over=fields.get("connected_slaves", "0") != "0",
        ),
        hints=hints,
    )


def weakest(found: list[Found]) -> Found:
    """Return what all servers of a cluster offer."""
    capabilities = [one.capabilities for one in found]
    return Found(
        Capabilities(
            durability=min((one.durability for one in capabilities), key=_DURABILITIES.index),
            shared=True,
            fails_over=any(one.fails_over for one in capabilities),
        ),
        hints=all(one.hints for one in found),
    )


def _fields(info: Reply, where: str, *, unsafe_policy: bool) -> dict[str, str]:
    """Return the fields of INFO; none where the user may not ask and need not know."""
    if isinstance(info, Refusal):
        if unsafe_policy and info.code == "NOPERM":
            return {}
        raise refused(info, where)
    lines = cast("bytes", info).decode(errors="replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))


def _refuse_unfit(fields: dict[str, str], where: str, *, url: str, is_cluster: bool) -> None:
    version = fields.get("redis_version", "0.0")
    if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST:
        raise UnsupportedError(f"{where} is Redis {version}; Redis 7.0 or any Valkey is needed")
    if (fields.get("cluster_enabled") == "1") is not is_cluster:
        right = (
            "no cluster: open it as redis://"
            if is_cluster
            else "a node of a cluster: open it as redis+cluster://"
        )
        raise InvalidError(f"{where} is {right}")
    if fields.get("role") == "slave":
        master = f"{fields.get('master_host')}:{fields.get('master_port')}"
        if is_cluster:  # which another node took for a master: it has not heard yet of a failover
            raise StoreUnavailableError(
                f"{where} has become a replica of {master} just now; try again when all nodes know", url=url
            )
        raise InvalidError(f"{where} is a replica, which cannot be written; open its master, {master}")


def _refuse_eviction(policy: str | None, where: str, *, unsafe_policy: bool) -> None:
    if policy == _POLICY:
        return
    said = (
        f"{where} has maxmemory-policy {policy or 'unknown'}: it may throw state away when its memory is full"
    )
    if not unsafe_policy:
        raise InvalidError(
            f"{said}; run CONFIG SET maxmemory-policy {_POLICY}, or say unsafe_policy=1 in the URL"
        )
    _log.warning("%s, and unsafe_policy=1 lets it", said)


def _durability(fields: dict[str, str], fsync: Reply) -> Durability:
    """Return what the append-only file gives.

    Under `everysec` and `no` a reply waits for the write into the operating system's memory; only while the
    disk is so slow that a sync takes over a second, `everysec` holds writes back for up to two.
    """
    if fields.get("aof_enabled") != "1":
        return Durability.NONE
    is_synced = isinstance(fsync, list) and fsync[1:] == [b"always"]
    return Durability.POWER if is_synced else Durability.PROCESS
