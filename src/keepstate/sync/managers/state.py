"""Blocking twins of `keepstate.managers.state.manager`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from datetime import timedelta
from os import PathLike
from typing import Any, Self

from keepstate._finish import entered, finish
from keepstate.engine.documents.documents import MISSING, DocumentEntry
from keepstate.managers.backends import Backend
from keepstate.managers.key_history import StateMoment
from keepstate.managers.state import manager as managers
from keepstate.managers.state.config import StateConfig
from keepstate.managers.state.subscriptions import StateCallback
from keepstate.stores.protocol import Store
from keepstate.sync.keepstate import Keepstate
from keepstate.sync.managers.manager import Manager
from keepstate.sync.space import Space
from keepstate.sync.transaction import Transaction
from keepstate.sync.twin import around, inner_of, single_use


class StateManager(Manager[managers.StateManager]):
    """Keeps values by key, in `state/<key_prefix>`.

    Values are anything that comes back equal. What is read is a copy.

    Attributes:
        config: How it keeps them.
    """

    def __init__(
        self,
        config: StateConfig | None = None,
        *,
        persistence: str | Backend | Store | Keepstate | None = None,
        url: str | None = None,
        redis_url: str | None = None,
        file_path: str | PathLike[str] | None = None,
        space: Space | Transaction | None = None,
    ) -> None:
        super().__init__(
            managers.StateManager(
                config,
                persistence=inner_of(persistence) if isinstance(persistence, Keepstate) else persistence,
                url=url,
                redis_url=redis_url,
                file_path=file_path,
                space=inner_of(space)
                if isinstance(space, Space)
                else inner_of(space)
                if isinstance(space, Transaction)
                else space,
                _mode="blocking",
            )
        )

    @property
    def config(self) -> StateConfig:
        """How it keeps them."""
        return self._inner.config

    def save(self, key: str, value: object, *, ttl: float | None = None) -> None:
        """Write a value.

        Args:
            key: Its name; 1 to 512 bytes of UTF-8, less those of `state/<key_prefix>/` in a space passed.
            value: Anything that comes back equal.
            ttl: After how many seconds it expires, if not as the configuration says.

        Raises:
            InvalidError: The value would not come back equal; the path of what is at fault is named.
        """
        finish(self._inner.save(key, value, ttl=ttl))

    def get(self, key: str, default: Any = None) -> Any:
        """Return a copy of a value, or the default if there is none."""
        return finish(self._inner.get(key, default))

    def update(
        self, key: str, patch: Mapping[str, Any] | Callable[[Any], Any], *, default: object = MISSING
    ) -> Any:
        """Change a value, however many others do; an absent one begins as an empty dict.

        Args:
            key: Its name.
            patch: Top-level keys to put into a dict, or a function that gets a copy and returns the new
                value, and may be called several times.
            default: What an absent value begins as instead.

        Returns:
            The new value. Its time to live goes on; a new one gets that of the configuration.

        Raises:
            InvalidError: A dict meets a value that is none.
        """
        return finish(self._inner.update(key, patch, default=default))

    def delete(self, key: str) -> bool:
        """Remove a value, and return whether there was one."""
        return finish(self._inner.delete(key))

    def entry(self, key: str) -> DocumentEntry[Any] | None:
        """Return a value with its version, as it is stored, or None if there is none."""
        return finish(self._inner.entry(key))

    def compare_and_set(self, key: str, value: object, *, expected_version: str | int) -> int:
        """Write a value at once if it is still at a version, and return the new version.

        Args:
            key: Its name.
            value: The new value.
            expected_version: The version that `entry` told, printed or within a handle as a number; 0 if
                there must be none.

        Raises:
            ConflictError: It is at another version; `actual` says at which.
            HistoryLostError: The store lost what a printed version was printed of.
        """
        return finish(self._inner.compare_and_set(key, value, expected_version=expected_version))

    def list_keys(self, pattern: str = "*", *, limit: int | None = None) -> list[str]:
        """Return the keys that fit a pattern, in the order of their UTF-8 bytes.

        Args:
            pattern: `*` any text, `?` one character, `[a-z]` one of a set; a backslash makes the next one
                plain.
            limit: At most so many.
        """
        return finish(self._inner.list_keys(pattern, limit=limit))

    @single_use
    def transaction(self, *, message: str = "") -> Generator[StateManager]:
        """Yield a manager whose writes apply together when the block ends, or not at all.

        Args:
            message: What the history says of it.

        Raises:
            ConflictError: What the block had read has changed; nothing was applied.
            InvalidError: The state is in shards, of which no two change together.
        """
        with entered(self._inner.transaction(message=message)) as inner:
            yield around(StateManager, inner)

    def flush(self) -> int:
        """Store what was staged, and return how many keys that were.

        At most 300 keys of one shard apply together. What could not be stored stays staged.
        """
        return finish(self._inner.flush())

    def history(self, key: str, *, limit: int = 100) -> list[StateMoment]:
        """Return what a key has been since it was last absent, the newest first.

        It reads the commits between, one after the other: those of other keys too.

        Args:
            key: Its name.
            limit: At most so many.

        Raises:
            InvalidError: Nothing is recorded: the configuration says so, or a space was passed that does not.
        """
        return finish(self._inner.history(key, limit=limit))

    def subscribe(self, pattern: str, callback: StateCallback) -> None:
        """Call a function with each change of keys that fit a pattern: key, old value, new value.

        It begins with the next call of this manager that asks the store, before that call's own work. Calls
        of one callback come one after the other; with shards, in order for each key. What a callback raises
        is logged, and harms nobody.

        Args:
            pattern: As for `list_keys`.
            callback: A function or coroutine function; in blocking use a function, called in a thread.
        """
        self._inner.subscribe(pattern, callback)

    def unsubscribe(self, pattern: str, callback: StateCallback) -> bool:
        """Let no further call of the callback start, and return whether it was subscribed."""
        return self._inner.unsubscribe(pattern, callback)

    def drain(self) -> None:
        """Return when callbacks have been called for all that has changed until now.

        Raises:
            CompactedError: A callback was so slow that changes were lost for it.
            InvalidError: It is called by a callback. Or a value could not be told, because its class is not
                registered.
            UnsupportedError: A value could not be told, because newer code wrote it.
        """
        finish(self._inner.drain())

    def __enter__(self) -> Self:
        finish(self._inner.__aenter__())
        return self

    def close(self) -> None:
        """Store what was staged, ends subscriptions, and let go of the store.

        Where something staged cannot be stored it raises what `flush` does, with a note of the keys that are
        lost: it is closed all the same. Call `flush` before, to mend them.
        """
        finish(self._inner.close())

    def cleanup(self, *, older_than: timedelta) -> int:
        """Remove keys that were not written for so long, and return how many.

        When a key was written is known by notes that managers make: when they are closed, and while they
        write every 20 times `save_interval`. What no note covers is kept.

        Args:
            older_than: By the store's clock.
        """
        return finish(self._inner.cleanup(older_than=older_than))
