"""State by key: saved, updated without loss, watched, and every moment of it readable."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from copy import copy
from dataclasses import replace
from datetime import datetime, timedelta
from heapq import merge
from os import PathLike
from typing import Any, ClassVar, Final, Self
from zlib import crc32

from keepstate._runner import Mode
from keepstate.engine.documents.documents import MISSING, DocumentEntry
from keepstate.engine.kernel.arguments import check_name, check_revision
from keepstate.engine.kernel.glob import compile_pattern, escape_pattern
from keepstate.engine.kernel.single_use import single_use
from keepstate.engine.kernel.times import check_duration_ms
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space
from keepstate.engine.space.transaction import Transaction
from keepstate.errors import InvalidError
from keepstate.home import quoted
from keepstate.managers.backends import Backend
from keepstate.managers.binding import Folder
from keepstate.managers.key_history import StateMoment, moments_of
from keepstate.managers.manager import Manager
from keepstate.managers.state.config import StateConfig
from keepstate.managers.state.staging import Staging, admit_patch
from keepstate.managers.state.subscriptions import StateCallback, Subscriptions
from keepstate.managers.write_times import note_time, remove_old
from keepstate.stores.protocol import Store
from keepstate.values import limits

_NAMED: Final = 10
_SPARSE: Final = 20
"""How many times `save_interval` lies between two notes of the time, while a manager writes."""


class StateManager(Manager):
    """Keeps values by key, in `state/<key_prefix>`.

    Values are anything that comes back equal. What is read is a copy.

    Attributes:
        config: How it keeps them.
    """

    _kind: ClassVar[str] = "state"
    config: StateConfig

    def __init__(
        self,
        config: StateConfig | None = None,
        *,
        persistence: str | Backend | Store | Keepstate | None = None,
        url: str | None = None,
        redis_url: str | None = None,
        file_path: str | PathLike[str] | None = None,
        space: Space | Transaction | None = None,
        _mode: Mode = "async",
    ) -> None:
        """Make a manager; asks the store nothing.

        Args:
            config: How to keep state, and where.
            persistence: Instead of `config.backend`.
            url: With `persistence`.
            redis_url: With `persistence`.
            file_path: With `persistence`.
            space: Instead of a store: a space or transaction.
        """
        self.config = StateConfig() if config is None else config
        if not isinstance(self.config, StateConfig):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidError(f"`config` is a {type(config).__name__}; give a StateConfig")
        place = (self.config.backend, self.config.url, self.config.redis_url, self.config.file_path)
        own = (persistence, url, redis_url, file_path)
        if any(each is not None for each in place):
            if space is not None or any(each is not None for each in own):
                raise InvalidError("`config` says where to keep state; give nothing for that beside it")
            persistence, url, redis_url, file_path = place
        self._records = self.config.ttl is None if self.config.record is None else self.config.record
        super().__init__(
            persistence=persistence,
            url=url,
            redis_url=redis_url,
            file_path=file_path,
            space=space,
            _mode=_mode,
        )
        if self.config.record:
            self._place.record()
        prefix, shards = quoted(self.config.key_prefix), self.config.shards
        ids = [prefix] if shards == 1 else [f"{prefix}~{number}" for number in range(shards)]
        self._shards = [self._place.folder(id, least=0) for id in ids]
        self._sweep_s = self.config.save_interval
        self._due_s = self._clock.monotonic_s() + self._sweep_s
        self._has_written = False
        self._begin_here()

    def _begin_here(self) -> None:
        self._staging = Staging(self._runner, self._applied)
        self._subscriptions = Subscriptions(self._runner)

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process makes the same manager of; what is staged and told of stays here."""
        return {**super().__getstate__(), "_staging": None, "_subscriptions": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin_here()

    # ---- one key

    async def save(self, key: str, value: object, *, ttl: float | None = None) -> None:
        """Write a value.

        Args:
            key: Its name; 1 to 512 bytes of UTF-8, less those of `state/<key_prefix>/` in a space passed.
            value: Anything that comes back equal.
            ttl: After how many seconds it expires, if not as the configuration says.

        Raises:
            InvalidError: The value would not come back equal; the path of what is at fault is named.
        """
        ttl_s = self.config.ttl if ttl is None else ttl
        if ttl_s is not None:
            check_duration_ms("ttl", ttl_s)
        folder = await self._place_of(key)
        if self._stages:
            self._staging.put(key, value, ttl_s)
            return
        await folder.by(f"save {key}").space.documents.put(folder.name(key), value, ttl_s=ttl_s)
        await self._wrote()

    async def get(self, key: str, default: Any = None) -> Any:
        """Return a copy of a value, or the default if there is none."""
        folder = await self._place_of(key)
        return await self._staging.get(folder, key, default)

    async def update(
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
        admit_patch(patch)
        folder = await self._place_of(key)
        first: object = dict[str, Any]() if default is MISSING else default
        if self._stages:
            return await self._staging.change(folder, key, patch, first, self.config.ttl)
        folder = folder.by(f"update {key}")
        if self.config.ttl is None:
            value = await folder.space.documents.update(folder.name(key), patch, default=first)
            await self._wrote()
            return value
        return await self._together(
            folder, lambda inside: self._update_mortal(inside, key, patch, first), message=f"update {key}"
        )

    async def _update_mortal(self, inside: Folder, key: str, patch: Any, first: object) -> Any:
        documents, name = inside.space.documents, inside.name(key)
        if await documents.entry(name) is None:
            await documents.put(name, first, ttl_s=self.config.ttl)
        return await documents.update(name, patch)

    async def delete(self, key: str) -> bool:
        """Remove a value, and return whether there was one."""
        folder = await self._place_of(key)
        if self._stages:
            return await self._staging.delete(folder, key)
        existed = await folder.by(f"delete {key}").space.documents.delete(folder.name(key))
        await self._wrote()
        return existed

    async def entry(self, key: str) -> DocumentEntry[Any] | None:
        """Return a value with its version, as it is stored, or None if there is none."""
        folder = await self._place_of(key)
        found = await folder.space.documents.entry(folder.name(key))
        return None if found is None else replace(found, key=key)

    async def compare_and_set(self, key: str, value: object, *, expected_version: str | int) -> int:
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
        if not isinstance(expected_version, str):
            check_revision("expected_version", expected_version)
        folder = (await self._place_of(key)).by(f"save {key}")
        await self._flush([key])
        version = await folder.space.documents.put(
            folder.name(key), value, expected_version=expected_version, ttl_s=self.config.ttl
        )
        await self._wrote()
        return version

    # ---- many keys

    async def list_keys(self, pattern: str = "*", *, limit: int | None = None) -> list[str]:
        r"""Return the keys that fit a pattern, in the order of their UTF-8 bytes.

        Args:
            pattern: `*` any text, `?` one character, `[a-z]` one of a set; a backslash makes the next one
                plain.
            limit: At most so many.
        """
        if limit is not None:
            limits.admit_count("limit", limit)
        glob = compile_pattern(pattern)
        await self._begun()
        staged = {key: each for key, each in list(self._staging.keys.items()) if glob.matches(key)}
        wanted = None if limit is None else limit + len(staged)
        found = merge(
            *[await self._stored_keys(folder, pattern, wanted) for folder in self._shards], key=_order
        )
        keys = [key for key in found if key not in staged]
        keys += [key for key, each in staged.items() if not each.is_deleted]
        return sorted(keys, key=_order)[:limit]

    async def _stored_keys(self, folder: Folder, pattern: str, limit: int | None) -> list[str]:
        keys: list[str] = []
        async for key in folder.space.documents.keys(escape_pattern(folder.prefix) + pattern):
            keys.append(key[len(folder.prefix) :])
            if len(keys) == limit:
                break
        return keys

    @single_use
    async def transaction(self, *, message: str = "") -> AsyncGenerator[StateManager]:
        """Yield a manager whose writes apply together when the block ends, or not at all.

        Args:
            message: What the history says of it.

        Raises:
            ConflictError: What the block had read has changed; nothing was applied.
            InvalidError: The state is in shards, of which no two change together.
        """
        await self._begun()
        await self._flush()
        if len(self._shards) > 1:
            raise InvalidError("no two shards change together; use one, or update keys one by one")
        folder = self._shards[0]
        if isinstance(folder.space, Transaction):
            yield self
            return
        async with folder.space.transaction(message=message) as tx:
            yield self._on(tx)
        await self._wrote()

    def _on(self, tx: Transaction) -> StateManager:
        inside = copy(self)
        inside.config = replace(self.config, auto_save=True)
        inside._place = self._place.on(tx)
        inside._staging = Staging(self._runner, inside._applied)
        inside._shards = [folder.on(tx) for folder in self._shards]
        return inside

    async def flush(self) -> int:
        """Store what was staged, and return how many keys that were.

        At most 300 keys of one shard apply together. What could not be stored stays staged.
        """
        await self._begun()
        return await self._flush()

    async def _flush(self, keys: list[str] | None = None) -> int:
        """Store what is staged of some keys, or of all."""
        staged, stored = [key for key in list(self._staging.keys) if keys is None or key in keys], 0
        for folder in self._shards:
            stored += await self._staging.flush(
                folder, [key for key in staged if self._shard_of(key) is folder]
            )
        if stored:
            await self._wrote()
        return stored

    async def history(self, key: str, *, limit: int = 100) -> list[StateMoment]:
        """Return what a key has been since it was last absent, the newest first.

        It reads the commits between, one after the other: those of other keys too.

        Args:
            key: Its name.
            limit: At most so many.

        Raises:
            InvalidError: Nothing is recorded: the configuration says so, or a space was passed that does not.
        """
        limits.admit_count("limit", limit)
        folder = await self._place_of(key)
        return await moments_of(folder.space, folder.name(key), limit)

    # ---- being told

    def subscribe(self, pattern: str, callback: StateCallback) -> None:
        """Call a function with each change of keys that fit a pattern: key, old value, new value.

        It begins with the next call of this manager that asks the store, before that call's own work. Calls
        of one callback come one after the other; with shards, in order for each key. What a callback raises
        is logged, and harms nobody.

        Args:
            pattern: As for `list_keys`.
            callback: A function or coroutine function; in blocking use a function, called in a thread.
        """
        self._place.require_outside_transaction("subscribing")
        self._refuse_coroutine(callback, "callback")
        self._subscriptions.add(pattern, callback)

    def unsubscribe(self, pattern: str, callback: StateCallback) -> bool:
        """Let no further call of the callback start, and return whether it was subscribed."""
        return self._subscriptions.remove(pattern, callback)

    async def drain(self) -> None:
        """Return when callbacks have been called for all that has changed until now.

        Raises:
            CompactedError: A callback was so slow that changes were lost for it.
            InvalidError: It is called by a callback. Or a value could not be told, because its class is not
                registered.
            UnsupportedError: A value could not be told, because newer code wrote it.
        """
        await self._begun()
        await self._subscriptions.drain()

    # ---- opening, closing, what is due

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        await self._begun()
        return self

    async def close(self) -> None:
        """Store what was staged, ends subscriptions, and let go of the store.

        Where something staged cannot be stored it raises what `flush` does, with a note of the keys that are
        lost: it is closed all the same. Call `flush` before, to mend them.
        """
        try:
            if self._staging.keys:
                await self._flush()
        except Exception as error:  # raised again, with what is lost by it
            keys = list(self._staging.keys)
            more = f" and {len(keys) - _NAMED} more" if len(keys) > _NAMED else ""
            names = ", ".join(repr(key) for key in keys[:_NAMED])
            error.add_note(
                f"closed without {names}{more}, which were staged; what fails in a `flush` before stays so"
            )
            raise
        finally:
            await self._let_go()

    async def _let_go(self) -> None:
        try:
            await self._subscriptions.close()
            if self._has_written:
                await self._logged(self._note_time(self.config.save_interval))
        finally:
            await super().close()

    async def _begun(self) -> None:
        """Let subscriptions begin that were registered."""
        if self._subscriptions.is_waiting:
            await self._subscriptions.begin(self._shards)

    async def _place_of(self, key: str) -> Folder:
        """Return where a key is, after subscriptions have begun.

        Raises:
            InvalidError: No key can be so.
        """
        check_name("key", key)
        folder = self._shard_of(key)
        folder.name(key)
        await self._begun()
        return folder

    def _shard_of(self, key: str) -> Folder:
        self._place.refuse_closed()
        if len(self._shards) == 1:
            return self._shards[0]
        return self._shards[crc32(key.encode()) % len(self._shards)]

    @property
    def _stages(self) -> bool:
        return not self.config.auto_save and self._place.transaction is None

    async def _wrote(self) -> None:
        self._has_written = True
        await super()._wrote()

    async def _note_time(self, least_s: float = 0.0) -> None:
        self._has_written = False
        for folder in self._shards:
            await note_time(folder, least_s)

    async def _sweep(self) -> None:
        await self._note_time(self.config.save_interval * _SPARSE)
        if self.config.ttl is not None:
            await self._place.sweep()
        await super()._sweep()

    async def cleanup(self, *, older_than: timedelta) -> int:
        """Remove keys that were not written for so long, and return how many.

        When a key was written is known by notes that managers make: when they are closed, and while they
        write every 20 times `save_interval`. What no note covers is kept.

        Args:
            older_than: By the store's clock.
        """
        await self._begun()
        self._place.require_outside_transaction("cleaning up")
        await self._note_time()
        return await super().cleanup(older_than=older_than)

    async def _folders(self) -> list[Folder]:
        return self._shards

    async def _clean(self, folder: Folder, before: datetime) -> int:
        removed = await remove_old(folder, before, self._together)
        if self.config.record is not False:
            await self._prune(folder, before)
        return removed


def _order(key: str) -> bytes:
    return key.encode()
