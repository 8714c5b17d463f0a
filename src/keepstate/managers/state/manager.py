"""State by key: saved, updated without lost updates, watched, with every version readable."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from copy import copy
from dataclasses import replace
from datetime import datetime, timedelta
from heapq import merge
from typing import Any, ClassVar, Final, Self, Unpack
from zlib import crc32

from keepstate.engine.documents.documents import MISSING, DocumentEntry
from keepstate.engine.kernel.arguments import check_duration_ms, check_name, check_revision, single_use
from keepstate.engine.kernel.glob import compile_pattern, escape_pattern
from keepstate.engine.space.space import Transaction
from keepstate.errors import InvalidError
from keepstate.managers.binding import ManagerStorage, Namespace
from keepstate.managers.callbacks import Follower, StateCallback
from keepstate.managers.manager import Manager
from keepstate.managers.state.config import StateConfig, storage_of
from keepstate.managers.state.key_history import (
    StateMoment,
    delete_old_keys,
    read_key_history,
    record_time,
)
from keepstate.managers.state.staging import Staging, check_patch
from keepstate.names import escape
from keepstate.values import limits

_NAMED: Final = 10
_SPARSE: Final = 20
"""Number of `save_interval`s between two records of the time, while a manager writes."""


class StateManager(Manager):
    """Stores values by key, in `state/<key_prefix>`.

    Values are anything that decodes to an equal value. Reads return copies.

    Attributes:
        config: The configuration.
    """

    _kind: ClassVar[str] = "state"
    _local: ClassVar[tuple[str, ...]] = (*Manager._local, "_staging")
    config: StateConfig

    def __init__(self, config: StateConfig | None = None, **storage: Unpack[ManagerStorage]) -> None:
        """Make a manager, without a read.

        Args:
            config: The configuration, including the backend.
            persistence: The backend, in place of `config.backend`.
            url: With `persistence`.
            redis_url: With `persistence`.
            file_path: With `persistence`.
            space: A space or transaction, in place of a store.
        """
        self.config = StateConfig() if config is None else config
        if not isinstance(self.config, StateConfig):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidError(f"`config` is a {type(config).__name__}. Pass a StateConfig.")
        if configured := storage_of(self.config):
            if any(value is not None for name, value in storage.items() if name != "_mode"):
                raise InvalidError("`config` names the backend already. Pass no other storage with it.")
            storage |= configured
        self._records = self.config.ttl is None if self.config.record is None else self.config.record
        super().__init__(**storage)
        if self.config.record:
            self._binding.record()
        prefix, shards = escape(self.config.key_prefix), self.config.shards
        ids = [prefix] if shards == 1 else [f"{prefix}~{number}" for number in range(shards)]
        self._shards = [self._binding.namespace(id, least=0) for id in ids]
        self._sweep_s = self.config.save_interval
        self._due_s = self._clock.monotonic_s() + self._sweep_s
        self._has_written = False

    def _init_local(self) -> None:
        super()._init_local()
        self._staging = Staging(self._runner, self._apply)

    # ---- one key

    async def save(self, key: str, value: object, *, ttl: float | None = None) -> None:
        """Write a value.

        Args:
            key: 1 to 512 bytes of UTF-8, less those of `state/<key_prefix>/` in a space that was passed in.
            value: Anything that decodes to an equal value.
            ttl: Seconds after which it expires, in place of the configured time.

        Raises:
            InvalidError: The value would not decode to an equal value; the message has the path of the part
                at fault.
        """
        ttl_s = self.config.ttl if ttl is None else ttl
        if ttl_s is not None:
            check_duration_ms("ttl", ttl_s)
        namespace = await self._namespace_of(key)
        if self._stages:
            self._staging.put(key, value, ttl_s)
            return
        await namespace.by(f"save {key}").space.documents.put(namespace.name(key), value, ttl_s=ttl_s)
        await self._after_write()

    async def get(self, key: str, default: Any = None) -> Any:
        """Return a copy of a value, or the default if there is none."""
        namespace = await self._namespace_of(key)
        return await self._staging.get(namespace, key, default)

    async def update(
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
        check_patch(patch)
        namespace = await self._namespace_of(key)
        first: object = dict[str, Any]() if default is MISSING else default
        if self._stages:
            return await self._staging.change(namespace, key, patch, first, self.config.ttl)
        namespace = namespace.by(f"update {key}")
        if self.config.ttl is None:
            value = await namespace.space.documents.update(namespace.name(key), patch, default=first)
            await self._after_write()
            return value
        return await self._run_together(
            namespace,
            lambda inside: self._update_expiring(inside, key, patch, first),
            message=f"update {key}",
        )

    async def _update_expiring(self, inside: Namespace, key: str, patch: Any, first: object) -> Any:
        documents, name = inside.space.documents, inside.name(key)
        if await documents.entry(name) is None:
            await documents.put(name, first, ttl_s=self.config.ttl)
        return await documents.update(name, patch)

    async def delete(self, key: str) -> bool:
        """Delete a value, and return whether it existed."""
        namespace = await self._namespace_of(key)
        if self._stages:
            return await self._staging.delete(namespace, key)
        existed = await namespace.by(f"delete {key}").space.documents.delete(namespace.name(key))
        await self._after_write()
        return existed

    async def entry(self, key: str) -> DocumentEntry[Any] | None:
        """Return a stored value with its version, or None if there is none."""
        namespace = await self._namespace_of(key)
        found = await namespace.space.documents.entry(namespace.name(key))
        return None if found is None else replace(found, key=key)

    async def compare_and_set(self, key: str, value: object, *, expected_version: str | int) -> int:
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
        if not isinstance(expected_version, str):
            check_revision("expected_version", expected_version)
        namespace = (await self._namespace_of(key)).by(f"save {key}")
        await self._flush([key])
        version = await namespace.space.documents.put(
            namespace.name(key), value, expected_version=expected_version, ttl_s=self.config.ttl
        )
        await self._after_write()
        return version

    # ---- many keys

    async def list_keys(self, pattern: str = "*", *, limit: int | None = None) -> list[str]:
        r"""Return the keys that match a pattern, in the order of their UTF-8 bytes.

        Args:
            pattern: `*` matches any text, `?` one character, `[a-z]` one of a set; a backslash escapes the
                next character.
            limit: Maximum number of keys.
        """
        if limit is not None:
            limits.admit_count("limit", limit)
        glob = compile_pattern(pattern)
        await self._start_subscriptions()
        staged = {key: each for key, each in list(self._staging.keys.items()) if glob.matches(key)}
        wanted = None if limit is None else limit + len(staged)
        found = merge(
            *[await self._stored_keys(namespace, pattern, wanted) for namespace in self._shards],
            key=_utf8_bytes,
        )
        keys = [key for key in found if key not in staged]
        keys += [key for key, each in staged.items() if not each.is_deleted]
        return sorted(keys, key=_utf8_bytes)[:limit]

    async def _stored_keys(self, namespace: Namespace, pattern: str, limit: int | None) -> list[str]:
        keys: list[str] = []
        async for key in namespace.space.documents.keys(escape_pattern(namespace.prefix) + pattern):
            keys.append(key[len(namespace.prefix) :])
            if len(keys) == limit:
                break
        return keys

    @single_use
    async def transaction(self, *, message: str = "") -> AsyncGenerator[StateManager]:
        """Yield a manager whose writes apply together when the block ends, or not at all.

        Args:
            message: Message in the history.

        Raises:
            ConflictError: Data that the block had read has changed; nothing was applied.
            InvalidError: The state has several shards, which cannot change together.
        """
        await self._start_subscriptions()
        await self._flush()
        if len(self._shards) > 1:
            raise InvalidError("shards cannot change together. Use one shard, or update keys one by one.")
        namespace = self._shards[0]
        if isinstance(namespace.space, Transaction):
            yield self
            return
        async with namespace.space.transaction(message=message) as tx:
            yield self._in_transaction(tx)
        await self._after_write()

    def _in_transaction(self, tx: Transaction) -> StateManager:
        inside = copy(self)
        inside.config = replace(self.config, auto_save=True)
        inside._binding = self._binding.in_transaction(tx)
        inside._staging = Staging(self._runner, inside._apply)
        inside._shards = [namespace.with_space(tx) for namespace in self._shards]
        return inside

    async def flush(self) -> int:
        """Store staged writes, and return the number of keys.

        At most 300 keys of one shard apply together. Keys that could not be stored stay staged.
        """
        await self._start_subscriptions()
        return await self._flush()

    async def _flush(self, keys: list[str] | None = None) -> int:
        """Store the staged writes of some keys, or of all."""
        staged, stored = [key for key in list(self._staging.keys) if keys is None or key in keys], 0
        for namespace in self._shards:
            stored += await self._staging.flush(
                namespace, [key for key in staged if self._shard_of(key) is namespace]
            )
        if stored:
            await self._after_write()
        return stored

    async def history(self, key: str, *, limit: int = 100) -> list[StateMoment]:
        """Return the values of a key since it was last absent, newest first.

        Reads the commits in between one by one, including those of other keys.

        Args:
            key: Its name.
            limit: Maximum number of values.

        Raises:
            InvalidError: Nothing is recorded, because of the configuration or of the space that was passed
                in.
        """
        limits.admit_count("limit", limit)
        namespace = await self._namespace_of(key)
        return await read_key_history(namespace.space, namespace.name(key), limit)

    # ---- subscriptions

    def subscribe(self, pattern: str, callback: StateCallback) -> None:
        """Call a function with each change of matching keys: key, old value, new value.

        The subscription begins with the next call of this manager that reads or writes, before the work of
        that call. Calls of one callback do not overlap; with shards, they are in order for each key.
        Exceptions of a callback are logged and do not affect other callbacks.

        Args:
            pattern: As for `list_keys`.
            callback: A function or coroutine function; in blocking mode a function, called in a thread.
        """
        self._binding.require_outside_transaction("subscribing")
        self._check_callback(callback, "callback")
        compile_pattern(pattern)
        self._subscriptions.register(pattern, callback)

    def unsubscribe(self, pattern: str, callback: StateCallback) -> bool:
        """Start no further call of a callback, and return whether it was subscribed."""
        return self._subscriptions.remove(pattern, callback) is not None

    async def drain(self) -> None:
        """Wait until callbacks were called for all changes until now.

        Raises:
            CompactedError: A callback was so slow that it missed changes.
            InvalidError: A callback called `drain`. Or a value was not delivered, because its class is not
                registered.
            UnsupportedError: A value was not delivered, because newer code wrote it.
        """
        await self._start_subscriptions()
        await self._subscriptions.drain()

    # ---- opening, closing, sweeps

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        await self._start_subscriptions()
        return self

    async def close(self) -> None:
        """Store staged writes, end subscriptions, and release the store.

        If a staged write cannot be stored, `close` raises the error of `flush` with a note of the lost keys,
        and the manager is closed in any case. Call `flush` first to be able to fix them.
        """
        try:
            if self._staging.keys:
                await self._flush()
        except Exception as error:  # raised again, with a note of the lost keys
            keys = list(self._staging.keys)
            more = f" and {len(keys) - _NAMED} more" if len(keys) > _NAMED else ""
            names = ", ".join(repr(key) for key in keys[:_NAMED])
            error.add_note(
                f"Closed without storing {names}{more}. Call flush() before close() to keep such keys staged."
            )
            raise
        finally:
            await self._release()

    async def _release(self) -> None:
        try:
            await self._subscriptions.close()
            if self._has_written:
                await self._run_logged(self._record_time(self.config.save_interval))
        finally:
            await super().close()

    async def _start_subscriptions(self) -> None:
        """Start the subscriptions that were registered."""
        if self._subscriptions.is_waiting:
            await self._subscriptions.begin(self._follow)

    def _follow(self, pattern: str, callback: StateCallback) -> list[Follower]:
        return [
            Follower(self._runner, namespace, pattern, callback, repr(pattern)) for namespace in self._shards
        ]

    async def _namespace_of(self, key: str) -> Namespace:
        """Return the namespace of a key, after starting subscriptions.

        Raises:
            InvalidError: The key is invalid.
        """
        check_name("key", key)
        namespace = self._shard_of(key)
        namespace.name(key)
        await self._start_subscriptions()
        return namespace

    def _shard_of(self, key: str) -> Namespace:
        self._binding.require_open()
        if len(self._shards) == 1:
            return self._shards[0]
        return self._shards[crc32(key.encode()) % len(self._shards)]

    @property
    def _stages(self) -> bool:
        return not self.config.auto_save and self._binding.transaction is None

    async def _after_write(self) -> None:
        self._has_written = True
        await super()._after_write()

    async def _record_time(self, least_s: float = 0.0) -> None:
        self._has_written = False
        for namespace in self._shards:
            await record_time(namespace, least_s)

    async def _sweep(self) -> None:
        await self._record_time(self.config.save_interval * _SPARSE)
        if self.config.ttl is not None:
            await self._binding.sweep()
        await super()._sweep()

    async def cleanup(self, *, older_than: timedelta) -> int:
        """Remove keys that were not written recently, and return their number.

        Write times are known from records that managers make: when they are closed, and every 20 times
        `save_interval` while they write. Keys that no record covers are not removed.

        Args:
            older_than: Minimum time since the last write, by the store's clock.
        """
        await self._start_subscriptions()
        self._binding.require_outside_transaction("cleaning up")
        await self._record_time()
        return await super().cleanup(older_than=older_than)

    async def _namespaces(self) -> list[Namespace]:
        return self._shards

    async def _clean(self, namespace: Namespace, before: datetime) -> int:
        removed = await delete_old_keys(namespace, before, self._run_together)
        if self.config.record is not False:
            await self._prune(namespace, before)
        return removed


def _utf8_bytes(key: str) -> bytes:
    return key.encode()
