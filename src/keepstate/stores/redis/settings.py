"""What of a server's settings decides whether it keeps what it has acknowledged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

from keepstate.errors import OutcomeUnknownError
from keepstate.stores.protocol import Setting
from keepstate.stores.redis.answers import unread
from keepstate.stores.redis.node import Node
from keepstate.stores.redis.wire import Refusal, Reply, pack

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
"""What INFO tells too, for a server that lets nobody ask for its settings."""


async def settings_of(nodes: Sequence[Node], *, is_cluster: bool) -> list[Setting]:
    """Return the settings of each server; those that it does not tell have the value None."""
    found: list[Setting] = []
    for node in nodes:
        commands = [(b"CONFIG", b"GET", *(name.encode() for name in _ASKED)), (b"INFO",)]
        try:
            told, info = await node.exchange(b"".join(map(pack, commands)), len(commands))
        except OutcomeUnknownError as error:
            raise unread(error) from error
        where = str(node.address)
        values = _values(told, info)
        found += [
            *_of_file(values, where),
            *_of_memory(values, where),
            *_of_replicas(values, _fields(info), where, is_cluster=is_cluster),
        ]
    return found


def _of_file(values: dict[str, str], where: str) -> list[Setting]:
    """Return what becomes of writes when the server, or its machine, ends."""
    appends, syncs, saves = (values.get(name) for name in ("appendonly", "appendfsync", "save"))
    loses = None
    if appends != "yes":
        loses = "the server keeps no log of its writes: they are gone when it ends"
        if saves:
            loses = (
                "the server keeps no log of its writes: those since its last snapshot are gone when it ends"
            )
    at_power_cut = {
        "always": None,
        "everysec": "writes of the last two seconds are gone after a power cut",
        "no": "writes of half a minute and more are gone after a power cut",
    }
    skips = values.get("no-appendfsync-on-rewrite")
    return [
        Setting("appendonly", appends, loses, _set("appendonly", "yes"), where),
        Setting(
            "appendfsync",
            syncs,
            at_power_cut.get(syncs or "", "what a power cut takes is not known"),
            _set("appendfsync", "always"),
            where,
        ),
        Setting(
            "no-appendfsync-on-rewrite",
            skips,
            None if skips != "yes" else "while the log is rewritten nothing is forced to the disk",
            _set("no-appendfsync-on-rewrite", "no"),
            where,
        ),
        Setting(
            "save",
            saves,
            None if appends == "yes" or saves else "no snapshot is ever taken either",
            _set("appendonly", "yes"),
            where,
        ),
    ]


def _of_memory(values: dict[str, str], where: str) -> list[Setting]:
    policy = values.get("maxmemory-policy")
    loses = None if policy == "noeviction" else "state may be thrown away when the memory is full"
    return [Setting("maxmemory-policy", policy, loses, _set("maxmemory-policy", "noeviction"), where)]


def _of_replicas(
    values: dict[str, str], fields: dict[str, str], where: str, *, is_cluster: bool
) -> list[Setting]:
    """Return what becomes of writes when a replica takes over; nothing where there is none."""
    if fields.get("connected_slaves", "0") == "0":
        return []
    least, lag_s = values.get("min-replicas-to-write"), values.get("min-replicas-max-lag")
    alone = None
    if least in (None, "0"):
        alone = "a server cut off from its replicas goes on taking writes, which are gone when one takes over"
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


def _values(told: Reply, info: Reply) -> dict[str, str]:
    """Return the settings by name: those that CONFIG tells, or the few that INFO does."""
    if not isinstance(told, Refusal):
        words = [word.decode(errors="replace") for word in cast("list[bytes]", told)]
        return dict(zip(words[::2], words[1::2], strict=True))
    fields = _fields(info)
    values = {name: fields[field] for name, field in _FROM_INFO.items() if field in fields}
    if "appendonly" in values:
        values["appendonly"] = "yes" if values["appendonly"] == "1" else "no"
    return values


def _fields(info: Reply) -> dict[str, str]:
    if isinstance(info, Refusal):
        return {}
    lines = cast("bytes", info).decode(errors="replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))
