"""HOW do other machines and languages reach a store? One table of operations over HTTP, with keys.

API boundary: `create_app` makes the ASGI application, `Keys` and `Key` are its callers, `Limits` its
limits. `keepstate serve` runs it. The documents, rights and tests are made from the same table.

Invariant: a request is authorised before it reads anything, and a write is never half done.
"""

from keepstate.server.app import Server as Server
from keepstate.server.app import create_app as create_app
from keepstate.server.keys import Key as Key
from keepstate.server.keys import Keys as Keys
from keepstate.server.limits import Limits as Limits

__all__ = ["Key", "Keys", "Limits", "Server", "create_app"]
