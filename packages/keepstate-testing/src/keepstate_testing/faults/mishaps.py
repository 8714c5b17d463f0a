"""Mishaps of a request and its reply on their way, chosen by a seed or by hand.

Values and a choice among them; `proxy` is what makes them happen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, TypeAlias


@dataclass(frozen=True, slots=True)
class CutRequest:
    """The server gets the first `after` bytes of the request; then both ends lose the line."""

    after: int = 0


@dataclass(frozen=True, slots=True)
class CutReply:
    """The server gets all, the client the first `after` bytes of the reply; then both lose the line."""

    after: int = 0


@dataclass(frozen=True, slots=True)
class Delay:
    """Request and reply arrive whole, each later by the given seconds."""

    request_s: float = 0.0
    reply_s: float = 0.0


@dataclass(frozen=True, slots=True)
class HalfClose:
    """The server gets the request. The client receives an end, on a line that still accepts its data."""


@dataclass(frozen=True, slots=True)
class Silence:
    """The server gets the request; its replies vanish from then on, and the line stays open."""


@dataclass(frozen=True, slots=True)
class Late:
    """The client loses the line; the request waits in the proxy for `Proxy.release`, longer than a retry."""


Mishap: TypeAlias = CutRequest | CutReply | Delay | HalfClose | Silence | Late

Chosen: TypeAlias = Callable[[bytes], bool]
"""Says of a request's first bytes whether something may happen to it."""

Draw: TypeAlias = Callable[[Random], Mishap]


def every_request(request: bytes) -> bool:
    """Choose all requests, those that open a connection among them."""
    return True


def having(*marks: bytes) -> Chosen:
    """Return what chooses the requests that hold one of these bytes: `having(b"EVALSHA")`."""
    return lambda request: any(mark in request for mark in marks)


LOST_ANSWERS: Final[Sequence[Draw]] = (
    lambda random: CutRequest(),
    lambda random: CutRequest(random.randrange(1, 400)),
    lambda random: CutReply(),
    lambda random: CutReply(random.randrange(1, 40)),
)
"""All that leaves a client with a lost line and in doubt."""


class Plan:
    """Spoils a share of the requests, each in a way that the seed chooses.

    Args:
        seed: The same seed and the same order of requests give the same mishaps.
        share: Of how many requests, from 0 to 1.
        draws: What may happen, each as likely as the others.
        chosen: Which requests it may happen to.
    """

    def __init__(
        self,
        seed: int,
        *,
        share: float = 0.05,
        draws: Sequence[Draw] = LOST_ANSWERS,
        chosen: Chosen = every_request,
    ) -> None:
        self.seed = seed
        self._random, self._share, self._draws, self._chosen = Random(seed), share, draws, chosen

    def __repr__(self) -> str:
        return f"<Plan of seed {self.seed}, {self._share:.0%}>"

    def mishap(self, request: bytes) -> Mishap | None:
        """Return what happens to a request, of which these are the first bytes; None if it gets through."""
        if not self._chosen(request) or self._random.random() >= self._share:
            return None
        return self._random.choice(self._draws)(self._random)
