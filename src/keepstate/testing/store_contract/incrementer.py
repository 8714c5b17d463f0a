"""A process that increments a counter: `python -m …incrementer URL SPACE TIMES`."""

from __future__ import annotations

import sys

from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.opening import store_class
from keepstate.stores.urls import StoreUrl
from keepstate.testing.store_contract.company import increment


def main(url: str, space: str, times: str) -> None:
    """Open the store and increment the space's counter `times` times."""
    place = StoreUrl.parse(url)
    store = finish(store_class(place.scheme).from_url(place, runner=ThreadRunner()).open())
    finish(increment(store, space, int(times)))
    finish(store.close())


if __name__ == "__main__":
    main(*sys.argv[1:])
