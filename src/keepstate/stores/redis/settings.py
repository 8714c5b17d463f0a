"""Inspection of a server: whether it can hold state at all, and the settings that decide its durability.

`inspect` runs once when a store is opened. `settings_of` lists the present settings for `keepstate doctor`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, NamedTuple, cast

from keepstate.errors import (
    InvalidError,
    OutcomeUnknownError,
    StorageError,
    StoreUnavailableError,
    UnsupportedError,
)
from keepstate.stores.protocol import Capabilities, Durability, Setting
from keepstate.stores.redis.client import Node, with_text
from keepstate.stores.redis.encoding import SpaceKeys, unread_error
from keepstate.stores.redis.scripts import script
from keepstate.stores.redis.wire import NO_LOGIN, Refusal, Reply, pack, refused, refused_login

_OLDEST = (7, 0)
_HINT: Final = "SPUBLISH"
_POLICY: Final = "noeviction"
_DURABILITIES = (Durability.NONE, Durability.PROCESS, Durability.POWER)
_ASKED: Final = (
    "appendonly",
    "appendfsync",
    "no-appendfsync-on-rewrite",
    "save",
    "maxmemory-policy",
    "min-replicas-to-write",
    "min-replicas-max-lag",
    "cluster-node-timeout",
)
_FROM_INFO: Final = {"maxmemory-policy": "maxmemory_policy", "appendonly": "aof_enabled"}
"""Settings that INFO reports too, for a server that does not let the user read its settings."""
_LOST_AT_POWER_CUT: Final = {
    "always": None,
    "everysec": "writes of the last two seconds are gone after a power cut",
    "no": "writes of half a minute and more are gone after a power cut",
}
_log = logging.getLogger("keepstate.stores")


class Found(NamedTuple):
    """The result of inspecting one server."""

    capabilities: Capabilities
    hints: bool
    """True if the user may publish and subscribe."""


async def inspect(node: Node, keys: SpaceKeys, *, url: str, is_cluster: bool, unsafe_policy: bool) -> Found:
    """Return the capabilities of a server, or raise the error that makes it unusable.

    Args:
        node: The server.
        keys: Keys of no space, in a slot of this server; the user's rights are tested on them.
        url: Names the store in errors.
        is_cluster: Whether the server should be a node of a cluster.
        unsafe_policy: Whether to accept a server that evicts entries, or does not report whether it does.
    """
    probe = script("probe").call(keys.keys)
    commands = [(b"INFO",), (b"CONFIG", b"GET", b"appendfsync"), with_text(probe)]
    info, fsync, forbidden = await node.exchange(b"".join(map(pack, commands)), len(commands))
    where = f"{url} ({node.address})"
    for reply in (info, forbidden):
        if isinstance(reply, Refusal) and reply.code in NO_LOGIN:
            raise refused_login(url, f"{node.address}: {reply.text}")
    if isinstance(info, Refusal) and not (unsafe_policy and info.code == "NOPERM"):
        raise refused(info, where)
    fields = _fields(info)
    if fields:
        _require_master(fields, where, url=url, is_cluster=is_cluster)
    _require_no_eviction(fields.get("maxmemory_policy"), where, unsafe_policy=unsafe_policy)
    if isinstance(forbidden, Refusal):
        raise refused(forbidden, where)
    commands_forbidden = [name.decode() for name in cast("list[bytes]", forbidden)]
    if commands_forbidden not in ([], [_HINT]):
        raise StorageError(
            f"{where} forbids its user {', '.join(commands_forbidden)}. Grant it all of @hash @sortedset "
            "@keyspace @scripting @transaction @pubsub on keys and channels of the prefix.",
            url=url,
        )
    durability, fails_over = _durability(fields, fsync), fields.get("connected_slaves", "0") != "0"
    capabilities = Capabilities(durability=durability, shared=True, fails_over=fails_over)
    return Found(capabilities, hints=_HINT not in commands_forbidden)


def weakest(found: list[Found]) -> Found:
    """Return the capabilities that all servers of a cluster have."""
    capabilities = [one.capabilities for one in found]
    return Found(
        Capabilities(
            durability=min((one.durability for one in capabilities), key=_DURABILITIES.index),
            shared=True,
            fails_over=any(one.fails_over for one in capabilities),
        ),
        hints=all(one.hints for one in found),
    )


def _require_master(fields: dict[str, str], where: str, *, url: str, is_cluster: bool) -> None:
    version = fields.get("redis_version", "0.0")
    if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST:
        raise UnsupportedError(f"{where} is Redis {version}. Use Redis 7.0 or later, or any Valkey.")
    if (fields.get("cluster_enabled") == "1") is not is_cluster:
        right = "not a cluster. Open it as redis://"
        if not is_cluster:
            right = "a node of a cluster. Open it as redis+cluster://"
        raise InvalidError(f"{where} is {right}")
    if fields.get("role") == "slave":
        master = f"{fields.get('master_host')}:{fields.get('master_port')}"
        if is_cluster:  # another node reports it as a master, because it does not know of a failover yet
            raise StoreUnavailableError(
                f"{where} has just become a replica of {master}. Try again when all nodes know it.", url=url
            )
        raise InvalidError(f"{where} is a replica, which takes no writes. Open its master, {master}")


def _require_no_eviction(policy: str | None, where: str, *, unsafe_policy: bool) -> None:
    if policy == _POLICY:
        return
    said = f"{where} has maxmemory-policy {policy or 'unknown'}: it may evict state when its memory is full"
    if not unsafe_policy:
        raise InvalidError(
            f"{said}. Run CONFIG SET maxmemory-policy {_POLICY}, or pass unsafe_policy=1 in the URL."
        )
    _log.warning("%s. unsafe_policy=1 accepts that.", said)


def _durability(fields: dict[str, str], fsync: Reply) -> Durability:
    """Return the durability that the append-only file gives.

    Under `everysec` and `no` a reply waits until the operating system has the write in memory. Only if the
    disk is so slow that a sync takes over a second, `everysec` delays writes by up to two seconds.
    """
    if fields.get("aof_enabled") != "1":
        return Durability.NONE
    is_synced = isinstance(fsync, list) and fsync[1:] == [b"always"]
    return Durability.POWER if is_synced else Durability.PROCESS


# ---- the list of settings


async def settings_of(nodes: Sequence[Node], *, is_cluster: bool) -> list[Setting]:
    """Return the settings of each server; a setting that the server does not report has the value None."""
    found: list[Setting] = []
    for node in nodes:
        commands = [(b"CONFIG", b"GET", *(name.encode() for name in _ASKED)), (b"INFO",)]
        try:
            stored, info = await node.exchange(b"".join(map(pack, commands)), len(commands))
        except OutcomeUnknownError as error:
            raise unread_error(error) from error
        where = str(node.address)
        values = _values(stored, info)
        found += [
            *_of_file(values, where),
            *_of_memory(values, where),
            *_of_replicas(values, _fields(info), where, is_cluster=is_cluster),
        ]
    return found


def _of_file(values: dict[str, str], where: str) -> list[Setting]:
    """Return the settings that decide whether writes survive the end of the server, or of its machine."""
    appends, syncs, saves = (values.get(name) for name in ("appendonly", "appendfsync", "save"))
    skips = values.get("no-appendfsync-on-rewrite")
    lost = "those since its last snapshot are gone" if saves else "they are gone"
    unlogged = None if appends == "yes" else f"the server has no log of its writes: {lost} when it ends"
    cut_off = _LOST_AT_POWER_CUT.get(syncs or "", "the losses in a power cut are unknown")
    unsynced = "while the log is rewritten nothing is forced to the disk" if skips == "yes" else None
    unsaved = None if appends == "yes" or saves else "no snapshot is ever taken either"
    return [
        Setting("appendonly", appends, unlogged, _set("appendonly", "yes"), where),
        Setting("appendfsync", syncs, cut_off, _set("appendfsync", "always"), where),
        Setting("no-appendfsync-on-rewrite", skips, unsynced, _set("no-appendfsync-on-rewrite", "no"), where),
        Setting("save", saves, unsaved, _set("appendonly", "yes"), where),
    ]


def _of_memory(values: dict[str, str], where: str) -> list[Setting]:
    policy = values.get("maxmemory-policy")
    loses = None if policy == _POLICY else "state may be evicted when the memory is full"
    return [Setting("maxmemory-policy", policy, loses, _set("maxmemory-policy", _POLICY), where)]


def _of_replicas(
    values: dict[str, str], fields: dict[str, str], where: str, *, is_cluster: bool
) -> list[Setting]:
    """Return the settings that decide whether writes survive a failover; none without a replica."""
    if fields.get("connected_slaves", "0") == "0":
        return []
    least, lag_s = values.get("min-replicas-to-write"), values.get("min-replicas-max-lag")
    alone = None
    if least in (None, "0"):
        alone = "a server cut off from its replicas still takes writes, which are gone when one takes over"
    mend = _set("min-replicas-to-write", "1")
    found = [Setting("min-replicas-to-write", least, alone, mend, where)]
    if alone is None:
        found.append(Setting("min-replicas-max-lag", lag_s, None, "", where))
    if is_cluster:
        timeout_ms = values.get("cluster-node-timeout")
        lasts = None if alone is None else f"it does so for up to {timeout_ms or 'an unknown number of'} ms"
        found.append(Setting("cluster-node-timeout", timeout_ms, lasts, mend, where))
    return found


def _set(name: str, value: str) -> str:
    return f"run CONFIG SET {name} {value}, then CONFIG REWRITE"


def _values(stored: Reply, info: Reply) -> dict[str, str]:
    """Return the settings by name, from CONFIG or, if that is forbidden, the few in INFO."""
    if not isinstance(stored, Refusal):
        words = [word.decode(errors="replace") for word in cast("list[bytes]", stored)]
        return dict(zip(words[::2], words[1::2], strict=True))
    fields = _fields(info)
    values = {name: fields[field] for name, field in _FROM_INFO.items() if field in fields}
    if "appendonly" in values:
        values["appendonly"] = "yes" if values["appendonly"] == "1" else "no"
    return values


def _fields(info: Reply) -> dict[str, str]:
    """Return the fields of INFO; none if the user may not read them."""
    if isinstance(info, Refusal):
        return {}
    lines = cast("bytes", info).decode(errors="replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))
