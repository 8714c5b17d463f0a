"""A process of old or new code that adds to a stored object: `URL old|new|migrating TIMES`.

Old code knows version 1, in dollars; new code knows version 3, in cents, and writes version 1 meanwhile.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass

import keepstate
from keepstate import register, register_write_version, sync
from keepstate.engine.space.migration import migrate
from tests.engine.trips import NAME, Trip, know_trips


def old_code(url: str, times: int) -> None:
    @register(NAME)
    @dataclass
    class OldTrip:
        city: str
        price: float

    with sync.open(url) as ks:
        for _ in range(times):
            ks.space("run/1").documents.update(
                "counter", lambda trip: OldTrip(trip.city, trip.price + 0.01), default=OldTrip("NYC", 0.0)
            )


def write_version_1() -> None:
    know_trips()
    register_write_version(NAME, 1)


def new_code(url: str, times: int) -> None:
    write_version_1()
    with sync.open(url) as ks:
        for _ in range(times):
            ks.space("run/1").documents.update(
                "counter",
                lambda trip: Trip(trip.city, trip.cents + 1),
                default=Trip("NYC", 0),
            )


async def migrating(url: str, times: int) -> None:
    write_version_1()
    async with keepstate.open(url) as ks:
        for _ in range(times):
            await migrate(ks.space("run/1"))


if __name__ == "__main__":
    url, code, times = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if code == "migrating":
        asyncio.run(migrating(url, times))
    else:
        (old_code if code == "old" else new_code)(url, times)
