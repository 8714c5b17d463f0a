"""Version 2 of the application: a trip has a price in cents. It reads both versions, and writes either."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Any

from keepstate import downcast, register, register_write_version, sync, upcast


@register("trip", version=2)
@dataclass(frozen=True)
class Trip:
    """A trip.

    Attributes:
        city: Where it goes.
        cents: What it costs.
    """

    city: str
    cents: int


@upcast("trip", 1)
def count_cents(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of version 2."""
    return {"city": fields["city"], "cents": round(fields["price"] * 100)}


@downcast("trip", 2)
def count_dollars(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of version 1."""
    return {"city": fields["city"], "price": fields["cents"] / 100}


def main(url: str, times: str, version: str = "2") -> None:
    """Add a dollar to each trip, some number of times, and write trips in this version."""
    register_write_version("trip", int(version))
    with sync.open(url) as ks:
        trips = ks.space("trips").documents
        for city in ("Lima", "Oslo", "Rome"):
            for _ in range(int(times)):
                trips.update(city, lambda trip: replace(trip, cents=trip.cents + 100), default=Trip(city, 0))


if __name__ == "__main__":
    main(*sys.argv[1:])
