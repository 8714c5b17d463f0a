"""The storage binding of a `Versioned`: a caller's key-value store, or any store."""

from __future__ import annotations

from os import PathLike

from keepstate.engine.kernel.executor import SpaceExecutor
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import ClosedError, InvalidError
from keepstate.opening import OpenStore, PassedStore, source_of, source_over
from keepstate.stores.protocol import Store
from keepstate.values.pickles import SignedPickle
from keepstate.workspace.kv import KVStore
from keepstate.workspace.leaked_handles import close, close_dropped, close_with

MEMORY_URL = "memory://"


class WorkspaceBinding:
    """A store that several states share. The last of them closes it.

    Args:
        store: A key-value store, the URL of a store, the path of an SQLite file, or an open blocking store.
        space: The name of the space in the store.
        author: Author of commits.
        pickle: Serializer for objects of classes that are not registered.
    """

    def __init__(
        self,
        store: KVStore | Store | str | PathLike[str],
        space: str,
        author: str | None,
        pickle: SignedPickle | None,
    ) -> None:
        close_dropped()
        if isinstance(store, KVStore):
            source: OpenStore | PassedStore = source_over(store)
        elif isinstance(store, type):
            raise InvalidError(f"{store!r} is a class. Pass an object of it, such as {store.__name__}(…).")
        else:
            source = source_of(store, "blocking")
        handle = Keepstate(source, author=author, pickle=pickle)
        self.executor = SpaceExecutor(handle, handle.space(space).name, author)
        self.url = source.url
        self._handle = handle
        self.is_closed = False
        close_with(self, handle)

    def close(self) -> None:
        """Release the store. A store that was passed in open stays open."""
        self.is_closed = True
        close(self._handle)

    def require_open(self) -> None:
        """Raise `ClosedError` after `close`, because later changes could not be committed."""
        if self.is_closed:
            raise ClosedError(f"the state in {self.url} is closed. Open it again with the same store.")
