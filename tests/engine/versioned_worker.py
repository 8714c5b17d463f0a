"""A process of old or new code that adds to a stored object: `URL old|new|migrating TIMES`.

Old code knows version 1, in dollars; new code knows version 3, in cents, and writes version 1 meanwhile.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from typing import Any

import keepstate
from keepstate import downcast, register, register_write_version, sync, upcast
from keepstate.engine.migrating import migrate

NAME = "tests/trip"


def old_code(url: str, times: int) -> None:
    @register(NAME)
    @dataclass
    class Trip:
        city: str
        price: float

    with sync.open(url) as ks:
        for _ in range(times):
            ks.space("run/1").documents.update(
                "counter", lambda trip: Trip(trip.city, trip.price + 0.01), default=Trip("NYC", 0.0)
            )


def knows_version_3() -> Any:
    @register(NAME, version=3)
    @dataclass
    class Trip:
        city: str
        cents: int
        currency: str = "USD"

    @upcast(NAME, 1)
    def in_cents(fields: dict[str, Any]) -> dict[str, Any]:
        return {"city": fields["city"], "cents": round(fields["price"] * 100)}

    @upcast(NAME, 2)
    def in_a_currency(fields: dict[str, Any]) -> dict[str, Any]:
        return {**fields, "currency": "USD"}

    @downcast(NAME, 3)
    def without_a_currency(fields: dict[str, Any]) -> dict[str, Any]:
        return {"city": fields["city"], "cents": fields["cents"]}

    @downcast(NAME, 2)
    def in_dollars(fields: dict[str, Any]) -> dict[str, Any]:
        return {"city": fields["city"], "price": fields["cents"] / 100}

    register_write_version(NAME, 1)
    return Trip


def new_code(url: str, times: int) -> None:
    trip_class = knows_version_3()
    with sync.open(url) as ks:
        for _ in range(times):
            ks.space("run/1").documents.update(
                "counter",
                lambda trip: trip_class(trip.city, trip.cents + 1),
                default=trip_class("NYC", 0),
            )


async def migrating(url: str, times: int) -> None:
    knows_version_3()
    async with keepstate.open(url) as ks:
        for _ in range(times):
            await migrate(ks.space("run/1"))


if __name__ == "__main__":
    url, code, times = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if code == "migrating":
        asyncio.run(migrating(url, times))
    else:
        (old_code if code == "old" else new_code)(url, times)
