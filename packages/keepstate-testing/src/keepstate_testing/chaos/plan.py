"""The plan of a trial: its store, its workers, and the kills."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import msgspec

Crash = Callable[[random.Random], None]
"""Kills a server and starts it again; returns when it answers."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a run.

    Attributes:
        urls: The store, as the workers name it in turn.
        folder: An empty folder for histories.
        seconds: How long the workers work, at the least.
        seed: What all choices come from; kills still come when they come.
        workers: How many processes.
        clients: How many tasks or threads each.
        kill_every_s: From how long to how long to wait before the next kill, in seconds.
        crash: Kills a server, and starts it again; None where there is none.
        crash_share: The share of kills that are a server's.
        prepare: A function that each worker calls first, as `module:name`: it makes a backend known, or
            breaks one, to see whether that is found.
    """

    urls: tuple[str, ...]
    folder: Path
    seconds: float
    seed: int
    workers: int = 3
    clients: int = 4
    kill_every_s: tuple[float, float] = (0.4, 1.2)
    crash: Crash | None = None
    crash_share: float = 0.4
    prepare: str | None = None
