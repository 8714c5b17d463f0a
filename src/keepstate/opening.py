"""Opening of stores by URL: the only module that imports both backends and the engine.

Handles with the same URL and options in one process, mode and event loop share one opened store. The first
handle that needs the store opens it, and the last one that releases it closes it. `memory://` is private to
each handle and its twin.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from urllib.parse import quote

import msgspec

from keepstate._deferral import defer_imports
from keepstate._files import make_folder
from keepstate._runner import (
    Mode,
    Promise,
    ThreadRunner,
    present_loop,
    reentrant_lock,
    runner_of,
)
from keepstate.engine.kernel.arguments import check_path
from keepstate.engine.kernel.observation import Observer
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import ClosedError, InvalidError, UnsupportedError
from keepstate.names import DEFAULT_URL
from keepstate.stores.base import StoreBase
from keepstate.stores.protocol import HasMode, Store
from keepstate.stores.urls import TIERED, OpensUrls, StoreUrl, backend_class, reject_url_as_path, shown
from keepstate.stores.wrappers.wrapper import StoreWrapper
from keepstate.values import codec

if TYPE_CHECKING:
    from keepstate import kv as _kv
    from keepstate.stores import kv as _kv_store
    from keepstate.stores.wrappers import encrypted as _encrypted
    from keepstate.stores.wrappers import keyless as _keyless
    from keepstate.values import pickles as _pickles
else:
    defer_imports(
        globals(),
        _kv="keepstate.kv",
        _kv_store="keepstate.stores.kv",
        _encrypted="keepstate.stores.wrappers.encrypted",
        _keyless="keepstate.stores.wrappers.keyless",
        _pickles="keepstate.values.pickles",
    )

_FILES = ("sqlite", "file")

AnyStore: TypeAlias = StoreBase | StoreWrapper
"""A store that can be opened, closed, and created again for another mode."""


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
    """Return a handle on the store, for use in an event loop.

    `async with keepstate.open(url) as ks:` or `ks = await keepstate.open(url)` opens it at once.

    Args:
        url: A store URL, the path of an SQLite file, or an opened store, which is never closed here. A
            wrapper that is not open yet is opened and closed with this handle.
        tenant: The id of a tenant, any text that is not empty. The handle then reaches this tenant's spaces
            only. Without it, the handle reaches the spaces without a tenant; see `Keepstate.tenant`.
        author: The author of writes, for events and commits.
        meta: A plain function that returns notes on each commit, such as a `traceparent`, when it is made.
        encryption: The keys to encrypt values with. Every process that opens the store needs them.
        pickle: Stores objects of unregistered classes from a list, as signed pickles.
        observe: Hears of the beginning and the end of each operation of the handle.
        values: `builtin` reads objects of classes as dicts with their type and fields, as commands print
            them, so that this process needs no class. Written back, they give the same bytes; only a pickle
            cannot be written. A `type=` of a call is still applied.

    Raises:
        InvalidError: The URL does not name a store (the error lists the possible forms), or another argument
            is wrong.
    """
    source = source_of(url, "async", encryption)
    return Keepstate(
        source,
        tenant=tenant,
        author=author,
        meta=meta,
        read=reader(values, pickle),
        pickle=pickle,
        observe=observe,
    )


def reader(values: object, pickle: _pickles.SignedPickle | None) -> Callable[[bytes], Any] | None:
    """Return the function that decodes values in the form that `open` was given; None for objects."""
    if values == "typed":
        return None
    if values == "builtin" and pickle is not None:
        raise InvalidError("`values` is 'builtin', and `pickle` makes objects; give one of them")
    if values == "builtin":
        return codec.to_builtin
    raise InvalidError(f"`values` is {values!r}; give 'typed' or 'builtin'")


def source_of(
    url: str | PathLike[str] | Store, mode: Mode, encryption: _encrypted.KeyRing | None = None
) -> OpenStore | PassedStore:
    """Return the source of the store for a handle of this mode."""
    if encryption is not None:
        _check_keys(encryption)
    if isinstance(url, str):
        return OpenStore(check_url("url", url), mode, encryption=encryption)
    if isinstance(url, PathLike):
        try:
            path = Path(url)
        except TypeError as error:  # a path of bytes
            raise InvalidError(f"the store is given as {_kind_of(url)}; give a path of text") from error
        reject_url_as_path("url", str(path))
        _require_utf8("url", str(path))
        return OpenStore(f"sqlite:///{quote(str(path.absolute()))}", mode, encryption=encryption)
    if isinstance(url, type) or not callable(getattr(url, "apply", None)):
        raise InvalidError(
            f"the store is given as {_kind_of(url)}; give a URL such as {DEFAULT_URL}, a path, or a store "
            "that is open"
        )
    if encryption is not None:
        raise InvalidError(f"{url!r} was opened already; open an EncryptedStore around it, and pass that")
    if isinstance(url, StoreWrapper) and not url.is_open:
        store = url if url.mode == mode else url.twin(runner_of(mode))
        return _owned(store, mode)
    return PassedStore(url, mode)


def check_url(what: str, url: object) -> str:
    """Return a URL as a plain str.

    Raises:
        InvalidError: It is not a str, or UTF-8 cannot encode it. The message shows no password.
    """
    if not isinstance(url, str):
        raise InvalidError(f"`{what}` is {_kind_of(url)}; give a str")
    if not _is_text(url):
        raise InvalidError(f"`{what}` is {shown(url)}, which UTF-8 cannot encode")
    return str.__str__(url)


def check_file(what: str, path: str | PathLike[str]) -> str:
    """Return the path of a file as a str.

    Raises:
        InvalidError: It is not a path, UTF-8 cannot encode it, or it is a URL, which the message does not
            show.
    """
    reject_url_as_path(what, str(path))  # also for a wrong type, so that no message shows a password
    text = check_path(what, path)
    _require_utf8(what, text)
    return text


def _require_utf8(what: str, path: str) -> None:
    if not _is_text(path):
        raise InvalidError(f"`{what}` is {path!r}, which UTF-8 cannot encode; give another name")


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def shown_url(url: str) -> str:
    """Return a URL for a message, without its password; see `keepstate.stores.urls.shown`."""
    return shown(url)


def _kind_of(given: object) -> str:
    """Return the class of a wrong argument. Its repr could show a password."""
    return f"the class {given.__name__}" if isinstance(given, type) else f"a {type(given).__name__}"


def _check_keys(encryption: object) -> None:
    from keepstate.stores.wrappers.encrypted import KeyRing

    if not isinstance(encryption, KeyRing):  # the message does not show it, because it may be a key
        raise InvalidError(f"`encryption` is a {type(encryption).__name__}; give a KeyRing")


def _owned(store: AnyStore, mode: Mode) -> PassedStore:
    """Return a source that opens the store with the first operation, and closes it with the handle."""
    own = _Shared(store, opens_again=True)
    own.users = 1
    return PassedStore(store, mode, own=own)


def source_over(values: _kv.KVStore) -> PassedStore:
    """Return the source of the store of a blocking handle on a caller's key-value store."""
    return _owned(_kv_store.KeyValueStore(values, runner=runner_of("blocking")), "blocking")


def store_class(scheme: str) -> OpensUrls:
    """Return the class that opens URLs of a scheme, also of a tiered store.

    Raises:
        InvalidError: No backend has this scheme. The error lists the known ones.
        MissingExtraError: The backend's driver is not installed.
    """
    if not scheme.startswith(TIERED):
        return backend_class(scheme)
    backend_class(scheme.removeprefix(TIERED))
    from keepstate.stores.wrappers.tiered import TieredStore  # loaded with the first tiered URL

    tiered: Any = TieredStore  # a wrapper that is used as the store that it wraps
    wrapper: OpensUrls = tiered
    return wrapper


# ---- shared stores

# Reentrant, because the garbage collector may drop a handle at any point of its thread.
_lock = reentrant_lock()
_registry: dict[tuple[object, ...], _Shared] = {}


def _forget_parent() -> None:
    """Clear the registry in a forked child, which cannot use the stores of its parent."""
    global _lock
    _registry.clear()
    _lock = reentrant_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parent)


class _Shared:
    """A store that several handles share. The first one opens it, the last one closes it.

    Args:
        store: The store, not yet opened.
        key: The key of the store in the registry.
        is_keyless: Whether to reject writes if the opened store turns out to be encrypted.
        folder: A folder to create before opening the store.
        opens_again: Whether the next handle tries to open it again after it could not be opened. Otherwise
            the next handle creates another store under the key.
    """

    def __init__(
        self,
        store: AnyStore,
        key: tuple[object, ...] = (),
        *,
        is_keyless: bool = False,
        folder: str | None = None,
        opens_again: bool = False,
    ) -> None:
        self.store, self._key, self._process = store, key, ThreadRunner()
        self._is_keyless, self._folder, self._opens_again = is_keyless, folder, opens_again
        self.users = 0
        self.is_open = self.is_over = self._is_opening = self._has_failed = False
        self._waiting: list[Promise[bool]] = []

    async def opened(self) -> bool:
        """Open the store, or wait for the handle that is opening it. Return whether it is open now.

        Only the handle that opens it gets the error if it fails. Handles that waited try themselves.
        """
        self._process.check(self.store)
        with _lock:
            if self.is_open or self.is_over:
                return self.is_open
            promise: Promise[bool] | None = None
            if self._is_opening:
                promise = runner_of(self.store.mode).promise()
                self._waiting.append(promise)
            self._is_opening = True
        if promise is not None:
            return await promise.wait()
        try:
            await self._open()
        except BaseException as error:
            self._has_failed = self._opens_again and not isinstance(error, ClosedError)
            self._settle(is_open=False, is_over=not self._has_failed)
            raise
        if self.users == 0:  # all handles were closed while it opened
            self._settle(is_open=False, is_over=True)
            await self.store.close()
            return False
        self._settle(is_open=True, is_over=False)
        return True

    async def _open(self) -> None:
        if self._folder:
            make_folder(self._folder)
        await self._open_store()
        if not self._is_keyless:
            return
        try:
            self.store = await _keyless.reject_writes_if_encrypted(self.store)
        except BaseException:
            await self.store.close()
            raise

    async def _open_store(self) -> None:
        try:
            await self.store.open()
        except ClosedError:
            if not self._has_failed:
                raise
            # A wrapper that failed has closed the store below it, which cannot be opened again.
            self.store = self.store.twin(runner_of(self.store.mode))
            await self.store.open()

    def _settle(self, *, is_open: bool, is_over: bool) -> None:
        with _lock:
            self.is_open, self.is_over, self._is_opening = is_open, is_over, False
            waiting, self._waiting = self._waiting, []
            if self.is_over:
                self._forget()
        for promise in waiting:
            promise.give(is_open)

    def left(self) -> bool:
        """Remove one user, and return whether it was the last."""
        with _lock:
            self.users -= 1
            if self.users == 0:
                self._forget()
            return self.users == 0

    def _forget(self) -> None:
        if _registry.get(self._key) is self:
            del _registry[self._key]


# ---- sources of the store of a handle


class OpenStore:
    """A store given by its URL, opened on first use.

    Args:
        url: The URL.
        mode: `async` or `blocking`.
        folder: The start of a relative path. Default: the working folder.
        private: The store itself, if it belongs to one handle and its twin only.
        encryption: The keys to encrypt values with.
        makes_folder: Whether to create the folder of the store's file.
    """

    def __init__(
        self,
        url: str,
        mode: Mode,
        *,
        folder: str | None = None,
        private: AnyStore | None = None,
        encryption: _encrypted.KeyRing | None = None,
        makes_folder: bool = False,
    ) -> None:
        self._text, self._url, self._encryption = url, StoreUrl.parse(url), encryption
        self._makes_folder = makes_folder
        if "\0" in self._url.path:
            raise InvalidError(f"{self._url!r} contains a NUL, which the name of a file cannot contain")
        self._class = store_class(self._url.scheme)
        self.runner = runner_of(mode)
        self._shared: _Shared | None = None
        self._closed = False
        self._folder = os.getcwd() if folder is None and self._is_relative else folder
        self._is_private = self._url.backend == "memory" and not self._url.host
        self._private = self._made() if self._is_private and private is None else private

    def __del__(self) -> None:
        shared = getattr(self, "_shared", None)
        if shared is None or not self.runner.is_home():
            return
        if shared.left():
            shared.store.warn_if_open()
        elif shared.is_open:
            warnings.warn(
                f"a handle on {self.url} was dropped while open; close it", ResourceWarning, stacklevel=1
            )

    @property
    def _is_relative(self) -> bool:
        at_host = self._url.backend not in _FILES or self._url.host
        return not at_host and self._url.path[:1] not in ("", "/")

    @property
    def url(self) -> str:
        """The URL without its password."""
        return str(self._url)

    def now(self) -> Store | None:
        """Return the store if it is open."""
        shared = self._shared
        return shared.store if shared is not None and shared.is_open else None

    async def opened(self) -> Store:
        """Return the store, opened by the first handle that needs it."""
        while True:
            shared = self._joined()
            if await shared.opened():
                return shared.store

    def _joined(self) -> _Shared:
        with _lock:
            if self._closed:
                raise ClosedError(f"the handle on {self.url} is closed; open it again")
            if self._shared is not None and not self._shared.is_over:
                return self._shared
            key = self._key()
            shared = _registry.get(key)
            if shared is None or (shared.is_open and not shared.store.is_open):  # closed below its handles
                # No other process can have encrypted a private store.
                is_keyless = self._encryption is None and not self._is_private
                folder = os.path.dirname(self._path) if self._makes_folder else None
                shared = _Shared(self._private or self._made(), key, is_keyless=is_keyless, folder=folder)
                _registry[key] = shared
            shared.users += 1
            self._shared = shared
            return shared

    def _key(self) -> tuple[object, ...]:
        mode = self.runner.mode
        return self._text, self._folder, mode, present_loop(mode), id(self._private), self._encryption

    @property
    def _path(self) -> str:
        return os.path.join(self._folder, self._url.path) if self._folder is not None else self._url.path

    def _made(self) -> AnyStore:
        url = msgspec.structs.replace(self._url, path=self._path)
        store = self._class.from_url(url, runner=runner_of(self.runner.mode))
        if self._encryption is None:
            return store
        from keepstate.stores.wrappers.encrypted import EncryptedStore

        return EncryptedStore(store, self._encryption)

    async def close(self) -> None:
        """Release the store. The last handle closes it."""
        with _lock:
            shared, self._shared, self._closed = self._shared, None, True
            last = shared is not None and shared.left()
        if shared is not None and last:
            await shared.store.close()

    def twin(self, mode: Mode) -> OpenStore:
        """Return the same store for another mode."""
        private = None if self._private is None else self._private.twin(runner_of(mode))
        twin = OpenStore(
            self._text,
            mode,
            folder=self._folder,
            private=private,
            encryption=self._encryption,
            makes_folder=self._makes_folder,
        )
        twin._closed = self._closed
        return twin

    def pickled(self) -> tuple[Any, ...]:
        """Return a function and its arguments that rebuild this source."""
        if self._is_private:
            raise TypeError(
                "memory:// is private to one handle and cannot be pickled; use memory://NAME, or a file"
            )
        if self._encryption is not None:
            raise TypeError(f"a handle with keys cannot be pickled; open {self.url} where it is used")
        options = {"folder": self._folder, "makes_folder": self._makes_folder}
        return _again, self._text, self.runner.mode, options


def _again(url: str, mode: Mode, options: dict[str, Any]) -> OpenStore:
    return OpenStore(url, mode, **options)


class PassedStore:
    """A store that the caller opened and closes, or a wrapper or twin that is opened for one handle."""

    def __init__(self, store: Store, mode: Mode, *, own: _Shared | None = None) -> None:
        if isinstance(store, HasMode) and store.mode != mode:
            right = "keepstate.open" if store.mode == "async" else "keepstate.sync.open"
            raise InvalidError(f"{store!r} is {store.mode}; pass it to {right}")
        self._passed, self._own = store, own
        self.runner = runner_of(mode)

    @property
    def _store(self) -> Store:
        return self._passed if self._own is None else self._own.store

    @property
    def url(self) -> str:
        """The URL of the store, or its description if it has none."""
        return self._store.url if isinstance(self._store, HasMode) else repr(self._store)

    def now(self) -> Store | None:
        """Return the store if it is open."""
        return self._store if self._own is None or self._own.is_open else None

    async def opened(self) -> Store:
        """Return the store."""
        while self._own is not None and not await self._own.opened():
            if self._own.is_over:
                raise ClosedError(f"{self._store!r} is closed, and so is the handle that it belongs to")
        return self._store

    async def close(self) -> None:
        """Close the store if this source opened it."""
        if self._own is not None and self._own.users and self._own.left():
            await self._own.store.close()

    def twin(self, mode: Mode) -> PassedStore:
        """Return the same store for another mode."""
        if not isinstance(self._store, AnyStore):
            raise UnsupportedError(
                f"{self._store!r} cannot be used in another mode; open it again in that mode"
            )
        return _owned(self._store.twin(runner_of(mode)), mode)

    def pickled(self) -> tuple[Any, ...]:
        """Raise: an opened store stays in its process."""
        raise TypeError(f"{self._store!r} cannot be pickled; open it by its URL")
