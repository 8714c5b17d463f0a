"""Configuration of a `StateManager`."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from typing import Final, cast

from keepstate.engine.kernel.arguments import check_duration_ms, check_flag, check_text
from keepstate.engine.space.keepstate import Keepstate
from keepstate.managers.arguments import check_interval
from keepstate.managers.backends import Backend, format_settings
from keepstate.managers.binding import ManagerStorage
from keepstate.stores.protocol import Store
from keepstate.values import limits

_MOST_SHARDS: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class StateConfig:
    """Configuration of a `StateManager`. Invalid combinations are rejected when a manager is made from it.

    Attributes:
        backend: `memory`, `file`, `sqlite`, `redis` or `postgres`; a URL, a description, or an open store.
        auto_save: Whether each write is stored at once. Otherwise `flush` and `close` store staged writes.
        save_interval: Minimum seconds between two sweeps. A write that finds a sweep due measures sizes for
            alerts and removes expired keys.
        file_path: The file of the backends `file` and `sqlite`; a journal named `*.json` is stored as JSON.
        redis_url: The server of the backend `redis`.
        url: The URL of the backend, in place of `redis_url`.
        key_prefix: Separates managers with different prefixes: the space is `state/<key_prefix>`.
        ttl: Seconds after which a saved value expires. Saving it again restarts the time, an update does not.
        shards: Number of spaces that keys are spread over, up to 1,000. More spaces allow more concurrent
            writes. All users of a state need the same number.
        record: Whether every version is recorded and stays readable. A recorded write takes about twice as
            long on a disk or a server, ten times in memory. By default values are recorded unless they
            expire; in a shared space that is passed in, the space decides. Recording that has begun cannot be
            turned off.
    """

    backend: str | Backend | Store | Keepstate | None = None
    auto_save: bool = True
    save_interval: float = 30
    file_path: str | PathLike[str] | None = None
    redis_url: str | None = None
    url: str | None = None
    key_prefix: str = ""
    ttl: float | None = None
    shards: int = 1
    record: bool | None = None

    def __post_init__(self) -> None:
        check_flag("auto_save", self.auto_save)
        check_flag("record", self.record is None or self.record)
        check_interval("save_interval", self.save_interval)
        check_text("key_prefix", self.key_prefix)
        limits.admit_count("shards", self.shards, most=_MOST_SHARDS)
        if self.ttl is not None:
            check_duration_ms("ttl", self.ttl)

    def __repr__(self) -> str:
        return format_settings(self)


def storage_of(config: StateConfig) -> ManagerStorage:
    """Return the arguments that name the storage of a configuration; empty if it names none."""
    named = {
        "persistence": config.backend,
        "url": config.url,
        "redis_url": config.redis_url,
        "file_path": config.file_path,
    }
    return cast("ManagerStorage", {name: value for name, value in named.items() if value is not None})
