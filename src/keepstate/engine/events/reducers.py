"""How events become a state, and what tells one reducer from another: a digest of what can be seen of it.

What `traits` does not see does not count: `version` says that it changed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, TypeAlias

from keepstate.engine.events.fingerprint import fingerprint, qualified_name
from keepstate.engine.events.record import Event
from keepstate.engine.kernel.arguments import check_name
from keepstate.errors import InvalidError
from keepstate.values import codec, limits

Reducer: TypeAlias = Callable[[Any, Event], Any | Awaitable[Any]]


@dataclass(frozen=True)
class Fold:
    """How the events of a stream become a state.

    Attributes:
        reducer: Called with the state so far and an event; returns the state after it.
        initial: The state before the first event.
        cache_every: After how many events the state is kept, so that no later fold reads these again. None
            keeps nothing; the state may then be anything.
        name: What the kept state is called; the reducer's own name if it is not given.
        version: Goes up when the reducer does something else and nothing that can be seen shows it.
    """

    reducer: Reducer
    initial: Any = None
    cache_every: int | None = 100
    name: str | None = None
    version: int = 1

    def __post_init__(self) -> None:
        if not callable(self.reducer):
            raise InvalidError(f"`reducer` is {self.reducer!r}; give a function of a state and an event")
        if self.cache_every is not None:
            limits.admit_count("cache_every", self.cache_every)
        limits.admit_count("version", self.version)
        if len(check_name("name", self.title).encode()) > limits.SPACE_BYTES // 2:
            raise InvalidError(f"`name` is {self.title!r}; it has at most {limits.SPACE_BYTES // 2} bytes")

    @property
    def title(self) -> str:
        """Return what the kept state is called."""
        return qualified_name(self.reducer)[-limits.SPACE_BYTES // 2 :] if self.name is None else self.name

    def digest(self) -> bytes:
        """Return what differs when the reducer or the initial state does."""
        hashed = sha256(codec.canonical([self.version, codec.canonical(self.initial)]))
        for part in fingerprint(self.reducer):
            hashed.update(part.encode("utf-8", "surrogatepass") + b"\0")
        return hashed.digest()[:20]
