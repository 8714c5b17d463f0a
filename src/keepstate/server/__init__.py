"""HOW do other machines and languages reach keepstate? By HTTP: here a store for keepstate's own clients.

Invariant: nothing that a client sent is used before its sender, its size, its form and its names are checked.

`store_app` serves an opened store to `keepstate.open("http://…")`, as an ASGI application to be mounted at
`/store`.
"""

from keepstate.server.store_calls import StoreScope as StoreScope
from keepstate.server.store_endpoint import StoreApp as StoreApp
from keepstate.server.store_endpoint import StoreLimits as StoreLimits
from keepstate.server.store_endpoint import store_app as store_app

__all__ = ["StoreApp", "StoreLimits", "StoreScope", "store_app"]
