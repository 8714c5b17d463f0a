"""HOW does a store reach spaces over HTTP? By the methods of the protocol, as MessagePack, on a server.

Invariant: no module imports httpx but `client` and `hint_stream`, because the server shares `wire`. A batch
goes out under its token, so that a retry finds its outcome; every call names the mark that this handle has
seen, and the server compares it with the history that it has.

To add a call: a struct in `wire`, a method in `store`, and a row in `keepstate.server.store_endpoint`.

Not an API boundary: open a store by its URL.
"""
