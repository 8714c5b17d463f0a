"""HOW do other machines and languages reach a store? By HTTP: one table of operations, and the store itself.

API boundary: `create_app` makes the ASGI application, `Keys` and `Key` are its callers, `Limits` its
limits. `keepstate serve` runs it. The documents, rights and tests are made from the same table. `store_app`
serves a store alone to `keepstate.open("http://…")`, for an application that knows its callers itself.

Invariant: a request is authorised before it reads anything, and a write is never half done.
"""

from keepstate.server.app import Server as Server
from keepstate.server.app import create_app as create_app
from keepstate.server.keys import Key as Key
from keepstate.server.keys import Keys as Keys
from keepstate.server.limits import Limits as Limits
from keepstate.server.store_calls import StoreScope as StoreScope
from keepstate.server.store_endpoint import StoreApp as StoreApp
from keepstate.server.store_endpoint import StoreLimits as StoreLimits
from keepstate.server.store_endpoint import store_app as store_app

__all__ = ["Key", "Keys", "Limits", "Server", "StoreApp", "StoreLimits", "StoreScope", "create_app", "store_app"]
