"""Opens stores for blocking use, and finds the blocking twin of what was opened for an event loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from os import PathLike
from typing import TYPE_CHECKING, Literal

from keepstate import opening
from keepstate._deferral import defer_imports
from keepstate._finish import finish
from keepstate.engine.kernel.arguments import require_instance
from keepstate.engine.kernel.observation import Observer
from keepstate.engine.space import keepstate as engine
from keepstate.errors import InvalidError
from keepstate.names import DEFAULT_URL
from keepstate.stores.protocol import Store
from keepstate.sync.keepstate import Keepstate

if TYPE_CHECKING:
    from keepstate.stores.wrappers import encrypted as _encrypted
    from keepstate.values import pickles as _pickles
else:
    defer_imports(
        globals(),
        _encrypted="keepstate.stores.wrappers.encrypted",
        _pickles="keepstate.values.pickles",
    )


def open(
    url: str | PathLike[str] | Store = DEFAULT_URL,
    *,
    tenant: str | None = None,
    author: str | None = None,
    meta: Callable[[], Mapping[str, str]] | None = None,
    encryption: _encrypted.KeyRing | None = None,
    pickle: _pickles.SignedPickle | None = None,
    observe: Observer | None = None,
    values: Literal["typed", "builtin"] = "typed",
) -> Keepstate:
    """Open the store and return a handle on it, which is also a context manager that closes it.

    It works in any thread, also beside a running event loop, as in a notebook.

    Args:
        url: A store URL, the path of an SQLite file, or a store opened for blocking use, which is never
            closed here.
        tenant: Any text but the empty one: the handle names the spaces of this tenant, and reaches no others.
            Without one it names spaces that have no tenant, and `Keepstate.tenant` gives the others.
        author: Who writes, in what is recorded.
        meta: A plain function that returns notes on each commit, such as a `traceparent`, when it is made.
        encryption: The keys that values are encrypted under; all who open the store need them.
        pickle: Stores objects of classes that nobody registered, signed and from a list.
        observe: Hears of the beginning and the end of each operation of the handle.
        values: `builtin` reads objects of classes as dicts with their type and fields, as commands print
            them, so that this process needs no class. Written back, they give the same bytes; only a pickle
            cannot be written. A `type=` of a call is still applied.

    Raises:
        InvalidError: The URL names no store; what it could be is listed.
        StoreUnavailableError: The store cannot be reached.
    """
    source = opening.source_of(url, "blocking", encryption)
    inner = engine.Keepstate(
        source,
        tenant=tenant,
        author=author,
        meta=meta,
        read=opening.reader(values, pickle),
        pickle=pickle,
        observe=observe,
    )
    finish(inner.opened())
    return Keepstate(inner)


def of(ks: engine.Keepstate) -> Keepstate:
    """Return the blocking twin of an asynchronous handle: the same data, closed with it.

    It opens a store of its own with its first operation. A call blocks the thread that makes it: a thread
    beside the event loop, or the loop itself.

    Raises:
        InvalidError: It is no asynchronous handle.
    """
    given: object = ks
    if isinstance(given, Keepstate):
        raise InvalidError(f"{given!r} is blocking already; use it as it is")
    require_instance("ks", ks, engine.Keepstate)
    return Keepstate(ks.for_blocking())
