"""How a `StateManager` keeps state."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from typing import Final

from keepstate.engine.kernel.arguments import check_text
from keepstate.engine.kernel.times import check_duration_ms
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import InvalidError
from keepstate.managers.backends import Backend, described
from keepstate.managers.sizes import admit_interval
from keepstate.stores.protocol import Store

_MOST_SHARDS: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class StateConfig:
    """How a `StateManager` keeps state; wrong combinations are refused where one is made of it.

    Attributes:
        backend: `memory`, `file`, `sqlite`, `redis` or `postgres`; a URL, a description, or an open store.
        auto_save: Whether each write is stored at once; else `flush` and `close` store what was staged.
        save_interval: The least time between the larger sweeps that a write does where it finds them due: it
            measures sizes for alerts and removes what has expired. In seconds.
        file_path: The file of the backends `file` and `sqlite`; a journal named `*.json` is kept as JSON.
        redis_url: The server of the backend `redis`.
        url: The URL of the backend, where it is not a `redis_url`.
        key_prefix: Keeps managers with another prefix apart: the space is `state/<key_prefix>`.
        ttl: After how many seconds what was saved expires; to save it again begins anew, an update does not.
        shards: Over how many spaces keys are spread, so that more can be written at once; up to 1,000. All
            who share a state need the same number.
        record: Whether every moment is kept and can be read again. A write takes about twice as
            long with it where a disk or a server is waited for, ten times in memory. If it is not said, yes,
            unless what is saved expires, and in a shared space that is passed what that says. What has begun
            to be recorded stays so.
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
        for name, truth in (("auto_save", self.auto_save), ("record", self.record)):
            if type(truth) is not bool and not (name == "record" and truth is None):
                raise InvalidError(f"`{name}` is {truth!r}; it is True or False")
        admit_interval("save_interval", self.save_interval)
        check_text("key_prefix", self.key_prefix)
        if type(self.shards) is not int or not 0 < self.shards <= _MOST_SHARDS:
            raise InvalidError(f"`shards` is {self.shards!r}; it is 1 to {_MOST_SHARDS}")
        if self.ttl is not None:
            check_duration_ms("ttl", self.ttl)

    def __repr__(self) -> str:
        return described(self)
