"""Blocking twins of `keepstate.managers.state.manager`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from datetime import timedelta
from typing import Any, Self, Unpack

from keepstate._finish import entered, finish
from keepstate.engine.documents.documents import MISSING, DocumentEntry
from keepstate.managers.callbacks import StateCallback
from keepstate.managers.state import manager as managers
from keepstate.managers.state.config import StateConfig
from keepstate.managers.state.key_history import StateMoment
from keepstate.sync.managers.binding import ManagerStorage
from keepstate.sync.managers.manager import Manager
from keepstate.sync.twin import around, inner_options, single_use


class StateManager(Manager[managers.StateManager]):
    """Stores values by key, in `state/<key_prefix>`.

    Values are anything that decodes to an equal value. Reads return copies.

    Attributes:
        config: The configuration.
    """

    def __init__(self, config: StateConfig | None = None, **storage: Unpack[ManagerStorage]) -> None:
        super().__init__(managers.StateManager(config, **inner_options(storage)))

    @property
    def config(self) -> StateConfig:
        """The configuration."""
        return self._inner.config

    def save(self, key: str, value: object, *, ttl: float | None = None) -> None:
        """Write a value.

        Args:
            key: 1 to 512 bytes of UTF-8, less those of `state/<key_prefix>/` in a space that was passed in.
            value: Anything that decodes to an equal value.
            ttl: Seconds after which it expires, in place of the configured time.

        Raises:
            InvalidError: The value would not decode to an equal value; the message has the path of the part
                at fault.
        """
        finish(self._inner.save(key, value, ttl=ttl))

    def get(self, key: str, default: Any = None) -> Any:
        """Return a copy of a value, or the default if there is none."""
        return finish(self._inner.get(key, default))

    def update(
        self, key: str, patch: Mapping[str, Any] | Callable[[Any], Any], *, default: object = MISSING
    ) -> Any:
        """Change a value. Concurrent updates lose no change. An absent value starts as an empty dict.

        Args:
            key: Its name.
            patch: Top-level keys to put into a dict, or a function that gets a copy and returns the new
                value. The function may be called several times.
            default: The value an absent key starts with.

        Returns:
            The new value. The time to live continues; a new value gets the configured one.

        Raises:
            InvalidError: A dict was passed, and the value is not a dict.
        """
        return finish(self._inner.update(key, patch, default=default))

    def delete(self, key: str) -> bool:
        """Delete a value, and return whether it existed."""
        return finish(self._inner.delete(key))

    def entry(self, key: str) -> DocumentEntry[Any] | None:
        """Return a stored value with its version, or None if there is none."""
        return finish(self._inner.entry(key))

    def compare_and_set(self, key: str, value: object, *, expected_version: str | int) -> int:
        """Write a value at once if its version is unchanged, and return the new version.

        Args:
            key: Its name.
            value: The new value.
            expected_version: The version from `entry`: printed, or as a number within one handle. 0 if the
                key must be absent.

        Raises:
            ConflictError: The value has another version; `actual` is that version.
            HistoryLostError: The store lost the history that a printed version belongs to.
        """
        return finish(self._inner.compare_and_set(key, value, expected_version=expected_version))

    def list_keys(self, pattern: str = "*", *, limit: int | None = None) -> list[str]:
        """Return the keys that match a pattern, in the order of their UTF-8 bytes.

        Args:
            pattern: `*` matches any text, `?` one character, `[a-z]` one of a set; a backslash escapes the
                next character.
            limit: Maximum number of keys.
        """
        return finish(self._inner.list_keys(pattern, limit=limit))

    @single_use
    def transaction(self, *, message: str = "") -> Generator[StateManager]:
        """Yield a manager whose writes apply together when the block ends, or not at all.

        Args:
            message: Message in the history.

        Raises:
            ConflictError: Data that the block had read has changed; nothing was applied.
            InvalidError: The state has several shards, which cannot change together.
        """
        with entered(self._inner.transaction(message=message)) as inner:
            yield around(StateManager, inner)

    def flush(self) -> int:
        """Store staged writes, and return the number of keys.

        At most 300 keys of one shard apply together. Keys that could not be stored stay staged.
        """
        return finish(self._inner.flush())

    def history(self, key: str, *, limit: int = 100) -> list[StateMoment]:
        """Return the values of a key since it was last absent, newest first.

        Reads the commits in between one by one, including those of other keys.

        Args:
            key: Its name.
            limit: Maximum number of values.

        Raises:
            InvalidError: Nothing is recorded, because of the configuration or of the space that was passed
                in.
        """
        return finish(self._inner.history(key, limit=limit))

    def subscribe(self, pattern: str, callback: StateCallback) -> None:
        """Call a function with each change of matching keys: key, old value, new value.

        The subscription begins with the next call of this manager that reads or writes, before the work of
        that call. Calls of one callback do not overlap; with shards, they are in order for each key.
        Exceptions of a callback are logged and do not affect other callbacks.

        Args:
            pattern: As for `list_keys`.
            callback: A function or coroutine function; in blocking mode a function, called in a thread.
        """
        self._inner.subscribe(pattern, callback)

    def unsubscribe(self, pattern: str, callback: StateCallback) -> bool:
        """Start no further call of a callback, and return whether it was subscribed."""
        return self._inner.unsubscribe(pattern, callback)

    def drain(self) -> None:
        """Wait until callbacks were called for all changes until now.

        Raises:
            CompactedError: A callback was so slow that it missed changes.
            InvalidError: A callback called `drain`. Or a value was not delivered, because its class is not
                registered.
            UnsupportedError: A value was not delivered, because newer code wrote it.
        """
        finish(self._inner.drain())

    def __enter__(self) -> Self:
        finish(self._inner.__aenter__())
        return self

    def close(self) -> None:
        """Store staged writes, end subscriptions, and release the store.

        If a staged write cannot be stored, `close` raises the error of `flush` with a note of the lost keys,
        and the manager is closed in any case. Call `flush` first to be able to fix them.
        """
        finish(self._inner.close())

    def cleanup(self, *, older_than: timedelta) -> int:
        """Remove keys that were not written recently, and return their number.

        Write times are known from records that managers make: when they are closed, and every 20 times
        `save_interval` while they write. Keys that no record covers are not removed.

        Args:
            older_than: Minimum time since the last write, by the store's clock.
        """
        return finish(self._inner.cleanup(older_than=older_than))
