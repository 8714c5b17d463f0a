"""Opens stores by URL: the one place where backends meet the engine.

Handles on one URL, with one set of options, in one process, colour and event loop share one opened store. It
is opened by the first that needs it and closed by the last that lets go. `memory://` is private to each
handle.
"""

from __future__ import annotations

import os
from os import PathLike
from pathlib import Path
from typing import Any

from keepstate._runner import Colour, Lock, Promise, Runner, TaskRunner, ThreadRunner
from keepstate.engine.keepstate import Keepstate
from keepstate.errors import ClosedError, InvalidError, UnsupportedError
from keepstate.stores.base import StoreBase
from keepstate.stores.protocol import Store
from keepstate.stores.urls import StoreUrl, store_class

DEFAULT_URL = "sqlite:///keepstate.db"


def open(
    url: str | PathLike[str] | Store = DEFAULT_URL, *, namespace: str = "", author: str | None = None
) -> Keepstate:
    """Returns a handle on the store, for use in an event loop.

    `async with keepstate.open(url) as ks:` or `ks = await keepstate.open(url)` opens it at once.

    Args:
        url: A store URL, the path of an SQLite file, or an opened store, which is never closed here.
        namespace: Stands before the names of all spaces of the handle.
        author: Who writes, in what is recorded.

    Raises:
        InvalidError: The URL names no store; what it could be is listed.
    """
    return Keepstate(source_of(url, "async"), namespace=namespace, author=author)


def source_of(url: str | PathLike[str] | Store, colour: Colour) -> OpenStore | PassedStore:
    """Returns where a handle of this colour gets its store from."""
    if isinstance(url, (str, PathLike)):
        return OpenStore(_text_of(url), colour)
    return PassedStore(url, colour)


def _text_of(url: str | PathLike[str]) -> str:
    if isinstance(url, str):
        StoreUrl.parse(url)  # a malformed one is told here, not at the first operation
        return url
    return f"sqlite:///{Path(url).absolute()}"


class _Shared:
    """A store that handles share: how many do, and who waits until it is open."""

    def __init__(self, store: StoreBase) -> None:
        self.store, self.users, self.ready = store, 0, False
        self.waiting: list[Promise[bool]] = []

    def is_open(self) -> bool:
        """Whether it can be used."""
        return self.ready


_registry: dict[tuple[Any, ...], _Shared] = {}
_lock = Lock()


def _forget_parent() -> None:
    """Lets a forked child open its own stores; those of its parent are of no use to it."""
    global _lock
    _registry.clear()
    _lock = Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parent)


def _runner(colour: Colour) -> Runner:
    return TaskRunner() if colour == "async" else ThreadRunner()


class OpenStore:
    """A store named by its URL, opened when it is first needed."""

    def __init__(self, url: str, colour: Colour, *, beside: OpenStore | None = None) -> None:
        self._text, self._url = url, StoreUrl.parse(url)
        self._class = store_class(self._url.scheme)
        self.runner = _runner(colour)
        self._beside = beside
        self._shared: _Shared | None = None
        self._closed = False

    @property
    def url(self) -> str:
        """Returns the URL without its password."""
        return str(self._url)

    def now(self) -> Store | None:
        """Returns the store if it is open."""
        return self._shared.store if self._shared is not None and self._shared.is_open() else None

    async def opened(self) -> Store:
        """Returns the store, opened by the first handle that needs it."""
        while True:
            shared, first = self._join()
            if shared.is_open():
                return shared.store
            if first:
                await self._open(shared)
                return shared.store
            promise: Promise[bool] = self.runner.promise()
            with _lock:
                if shared.is_open():
                    return shared.store
                shared.waiting.append(promise)
            if not await promise.wait():  # who opened it could not; try to, and meet the reason
                self._shared = None

    def _join(self) -> tuple[_Shared, bool]:
        if self._closed:
            raise ClosedError(f"the handle on {self.url} is closed; open it again")
        with _lock:
            if self._shared is not None:
                return self._shared, False
            key = self._key()
            shared = _registry.get(key)
            first = shared is None
            if shared is None:
                shared = _registry[key] = _Shared(self._made())
            shared.users += 1
            self._shared = shared
            return shared, first

    def _key(self) -> tuple[Any, ...]:
        private = self if self._is_private else None
        return self._text, self.runner.colour, self.runner.place(), private

    @property
    def _is_private(self) -> bool:
        return self._text == "memory://"

    def _made(self) -> StoreBase:
        runner = _runner(self.runner.colour)
        if self._is_private and self._beside is not None and self._beside._shared is not None:
            return self._beside._shared.store.twin(runner)
        return self._class.from_url(self._url, runner=runner)

    async def _open(self, shared: _Shared) -> None:
        try:
            await shared.store.open()
        except BaseException:
            with _lock:
                _registry.pop(self._key(), None)
                waiting, shared.waiting = shared.waiting, []
            self._shared = None
            for promise in waiting:
                promise.give(False)
            raise
        with _lock:
            shared.ready = True
            waiting, shared.waiting = shared.waiting, []
        for promise in waiting:
            promise.give(True)

    async def close(self) -> None:
        """Lets go of the store; the last handle to do so closes it."""
        with _lock:
            shared, self._shared, self._closed = self._shared, None, True
            if shared is None:
                return
            shared.users -= 1
            last = shared.users == 0
            if last:
                for key in [key for key, other in _registry.items() if other is shared]:
                    del _registry[key]
        if last:
            await shared.store.close()

    def twin(self, colour: Colour) -> OpenStore:
        """Returns the same store for another colour."""
        return OpenStore(self._text, colour, beside=self)

    def pickled(self) -> tuple[Any, ...]:
        """Returns a function and its arguments that make this source again."""
        if self._is_private:
            raise TypeError(
                "memory:// is private to one handle and cannot be pickled; use memory://NAME, or a file"
            )
        return OpenStore, self._text, self.runner.colour


class PassedStore:
    """A store that the caller opened, and closes."""

    def __init__(self, store: Store, colour: Colour, *, owned: bool = False) -> None:
        if isinstance(store, StoreBase) and store.colour != colour:
            right = "keepstate.open" if store.colour == "async" else "keepstate.sync.open"
            raise InvalidError(f"{store!r} is {store.colour}; hand it to {right}")
        self._store, self._owned = store, owned
        self.runner = _runner(colour)
        self._ready = not owned

    @property
    def url(self) -> str:
        """Returns what names the store."""
        return self._store.url if isinstance(self._store, StoreBase) else repr(self._store)

    def now(self) -> Store | None:
        """Returns the store if it is open."""
        return self._store if self._ready else None

    async def opened(self) -> Store:
        """Returns the store."""
        if not self._ready and isinstance(self._store, StoreBase):
            await self._store.open()
            self._ready = True
        return self._store

    async def close(self) -> None:
        """Closes only what it opened itself."""
        if self._owned and self._ready:
            await self._store.close()

    def twin(self, colour: Colour) -> PassedStore:
        """Returns the same store for another colour."""
        if not isinstance(self._store, StoreBase):
            raise UnsupportedError(f"{self._store!r} has no twin in another colour; open it there")
        return PassedStore(self._store.twin(_runner(colour)), colour, owned=True)

    def pickled(self) -> tuple[Any, ...]:
        """Raises: an opened store stays in its process."""
        raise TypeError(f"{self._store!r} cannot be pickled; open it by its URL")
