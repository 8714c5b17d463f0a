"""Folds: reducers of events to a state, identified by a digest of their visible code.

Changes that `fingerprint` does not see must be declared by a new `version`.
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
    """A reducer with its initial state and cache.

    Attributes:
        reducer: A function of the state and an event that returns the next state.
        initial: The state before the first event.
        cache_every: The number of events to read before the state is cached, so that later folds do not read
            these events again. None disables the cache, and then the state can be any object.
        name: The name of the cached state; by default, the name of the reducer.
        version: Increase it when the reducer's behavior changes without a visible change of its code.
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
        """The name of the cached state."""
        return qualified_name(self.reducer)[-limits.SPACE_BYTES // 2 :] if self.name is None else self.name

    def digest(self) -> bytes:
        """Return a digest of the version, the initial state and the reducer's fingerprint."""
        hashed = sha256(codec.canonical([self.version, codec.canonical(self.initial)]))
        for part in fingerprint(self.reducer):
            hashed.update(part.encode("utf-8", "surrogatepass") + b"\0")
        return hashed.digest()[:20]
