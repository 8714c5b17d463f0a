"""Version 1 of the application: a trip has a price in dollars."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

from keepstate import register, sync


@register("trip")
@dataclass(frozen=True)
class Trip:
    """A trip.

    Attributes:
        city: Where it goes.
        price: What it costs, in dollars.
    """

    city: str
    price: float


def main(url: str, times: str) -> None:
    """Add a dollar to each trip, some number of times; make the trips first if there are none."""
    with sync.open(url) as ks:
        trips = ks.space("trips").documents
        for city in ("Lima", "Oslo", "Rome"):
            for _ in range(int(times)):
                trips.update(city, lambda trip: replace(trip, price=trip.price + 1), default=Trip(city, 0.0))


if __name__ == "__main__":
    main(*sys.argv[1:])
