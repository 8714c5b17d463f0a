"""`KeepstateKeyValue`: the store of py-key-value, and so of FastMCP, with a space for each collection.

A value passes through py-key-value's JSON first, so that this store refuses what its other stores refuse. A
document with a time to live expires by the clock of the store.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, SupportsFloat, Unpack, cast

from keepstate.adapters.base import (
    BoundSpace,
    RecordingAdapter,
    RecordingOptions,
    StoreLike,
    outlast_cancellation,
)
from keepstate.engine.documents.documents import DocumentEntry
from keepstate.engine.kernel.executor import is_coroutine_function
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space, Transaction
from keepstate.errors import InvalidError, MissingExtraError
from keepstate.names import DEFAULT_URL, segment, unescape
from keepstate.sessions.namespace import make_deletion
from keepstate.values import limits

try:
    from key_value.aio._utils.managed_entry import ManagedEntry
    from key_value.aio._utils.time_to_live import prepare_ttl
    from key_value.aio.stores.base import (
        BaseCullStore,
        BaseDestroyCollectionStore,
        BaseEnumerateCollectionsStore,
        BaseEnumerateKeysStore,
        BaseStore,
    )
except ImportError as error:
    raise MissingExtraError.of("key-value", "py-key-value-aio") from error

_AT_ONCE: Final = 900
"""Keys written in one batch, which has room for `limits.BATCH_WRITES`."""
_SHORTEST_S: Final = 0.001


class KeepstateKeyValue(
    RecordingAdapter,
    BaseEnumerateKeysStore,
    BaseEnumerateCollectionsStore,
    BaseDestroyCollectionStore,
    BaseCullStore,
):
    """A key-value store of py-key-value, for FastMCP and others. Processes and event loops may share one.

    `put_many` and `delete_many` write up to 900 keys in one batch, and more in several. A cancelled write is
    waited for.

    Args:
        store: A store URL, the path of an SQLite file, an open store, or a handle on one.
        owner: The person whose collections these are, if any. `erase` removes all of an owner.
        default_collection: The collection of calls that name none.
        options: `tenant`, `author`, `encryption` and `record`; see `RecordingOptions`.

    Raises:
        InvalidError: An argument is wrong, or the URL names no store.
    """

    kind = "kv"

    def __init__(
        self,
        store: StoreLike = DEFAULT_URL,
        *,
        owner: str | None = None,
        default_collection: str | None = None,
        **options: Unpack[RecordingOptions],
    ) -> None:
        RecordingAdapter.__init__(self, store, **options)
        BaseStore.__init__(self, default_collection=default_collection, stable_api=True)
        self._owner, self._begin = owner, f"{self.space_name(owner=owner)}/"

    def _collection(self, name: str) -> BoundSpace:
        return self.space(name, owner=self._owner)

    # ---- one change that nothing comes between

    async def update(
        self,
        key: str,
        fn: Callable[[dict[str, Any] | None], Mapping[str, Any]],
        *,
        collection: str | None = None,
        ttl: SupportsFloat | None = None,
    ) -> dict[str, Any]:
        """Change the value of a key by a function, and return the new value. No concurrent change is lost.

        Args:
            key: The key.
            fn: A function that takes a copy of the value, or None if there is none, and returns the new
                value. It may be called several times, and in another thread.
            collection: The collection; by default the default collection.
            ttl: Seconds until the key expires. By default, the time to live of the key continues.

        Raises:
            InvalidError: The function is a coroutine function, or returned something other than a mapping.
            InvalidTTLError: `ttl` is not a positive number.
            SerializationError: The new value is not JSON.
        """
        if is_coroutine_function(fn):
            raise InvalidError(
                f"the function passed to update({key!r}) is a coroutine function; give a plain one"
            )
        ttl_s, name = prepare_ttl(t=ttl), segment(key)
        collection = collection or self.default_collection
        space = self._collection(collection)

        async def work(tx: Transaction) -> dict[str, Any]:
            entry = await tx.documents.entry(name)
            new = cast("object", fn(None if entry is None else dict(_managed(entry).value)))
            if not isinstance(new, Mapping):
                raise InvalidError(
                    f"the function passed to update({key!r}) returned {type(new).__name__}; "
                    "return the new value, a dict"
                )
            now = await tx.now()
            remaining_s = ttl_s
            if remaining_s is None and entry is not None and entry.expires_at is not None:
                remaining_s = max((entry.expires_at - now).total_seconds(), _SHORTEST_S)
            created_at: datetime | None = now if entry is None else _managed(entry).created_at
            made = ManagedEntry(value=cast("Mapping[str, Any]", new), created_at=created_at)
            record = _record(key, made, space, collection)
            await tx.documents.put(name, record, ttl_s=remaining_s)
            value: dict[str, Any] = record["value"]
            return value

        return (await space.transact(work, message=f"update {key!r}")).value

    # ---- the calls of py-key-value's base

    async def _get_managed_entry(self, *, collection: str, key: str) -> ManagedEntry | None:
        name = segment(key)
        entry = await self._collection(collection).call(lambda space: space.documents.entry(name))
        return None if entry is None else _managed(entry)

    async def _get_managed_entries(
        self, *, collection: str, keys: Sequence[str]
    ) -> list[ManagedEntry | None]:
        names = [segment(key) for key in keys]

        async def work(space: Space) -> dict[str, ManagedEntry]:
            found: dict[str, ManagedEntry] = {}
            for at in range(0, len(names), limits.BATCH_CHECKS):
                entries = await space.documents.entries(*names[at : at + limits.BATCH_CHECKS])
                found |= {name: _managed(entry) for name, entry in entries.items()}
            return found

        found = await self._collection(collection).call(work)
        return [found.get(name) for name in names]

    async def _put_managed_entry(self, *, collection: str, key: str, managed_entry: ManagedEntry) -> None:
        await self._put_all(collection, [key], [managed_entry])

    async def _put_managed_entries(
        self,
        *,
        collection: str,
        keys: Sequence[str],
        managed_entries: Sequence[ManagedEntry],
        ttl: float | None,
        created_at: datetime,
        expires_at: datetime | None,
    ) -> None:
        await self._put_all(collection, keys, managed_entries)

    async def _put_all(self, collection: str, keys: Sequence[str], entries: Sequence[ManagedEntry]) -> None:
        space = self._collection(collection)
        rows = [
            (
                segment(key),
                _record(key, entry, space, collection),
                None if entry.ttl is None else max(entry.ttl, _SHORTEST_S),
            )
            for key, entry in zip(keys, entries, strict=True)
        ]

        async def work(target: Space) -> None:
            if len(rows) == 1:
                ((name, record, ttl_s),) = rows
                await space.shorten_log(target, await target.documents.put(name, record, ttl_s=ttl_s))
                return
            for at in range(0, len(rows), _AT_ONCE):
                async with target.transaction() as tx:
                    for name, record, ttl_s in rows[at : at + _AT_ONCE]:
                        await tx.documents.put(name, record, ttl_s=ttl_s)
                await space.shorten_log(target, tx.revision)

        await outlast_cancellation(space.call(work))

    async def _delete_managed_entry(self, *, key: str, collection: str) -> bool:
        return await self._delete_managed_entries(keys=[key], collection=collection) == 1

    async def _delete_managed_entries(self, *, keys: Sequence[str], collection: str) -> int:
        space, names = self._collection(collection), [segment(key) for key in keys]

        async def delete_all() -> int:
            removed = 0
            for at in range(0, len(names), _AT_ONCE):
                removed += (await space.transact(make_deletion(names[at : at + _AT_ONCE]))).value
            return removed

        return await outlast_cancellation(delete_all())

    # ---- listings and ends

    async def _get_collection_keys(self, *, collection: str, limit: int | None = None) -> list[str]:
        async def work(space: Space) -> list[str]:
            listed = space.documents.items(limit=limit)
            return [record.get("key", unescape(name)) async for name, record in listed]

        return await self._collection(collection).call(work)

    async def _get_collection_names(self, *, limit: int | None = None) -> list[str]:
        begin = self._begin

        async def work(ks: Keepstate) -> list[str]:
            names = [name.removeprefix(begin) async for name in ks.spaces(begin)]
            own = [name for name in names if "/" not in name]  # not those of an owner
            found: list[str] = []
            for name in own:
                if limit is not None and len(found) >= limit:
                    break
                first = ks.space(begin + name).documents.items(limit=1)
                found += [record.get("collection", unescape(name)) async for _, record in first]
            return found

        return await self.call(work)

    async def _delete_collection(self, *, collection: str) -> bool:
        name = self._collection(collection).name
        return await outlast_cancellation(self.call(lambda ks: ks.drop(name)))

    async def _cull(self) -> None:
        await self.sweep()

    async def sweep(self) -> int:
        """Remove expired entries of the store, and return their number. They are never read in any case."""
        return await outlast_cancellation(self.call(lambda ks: ks.sweep()))


def _managed(entry: DocumentEntry[Any]) -> ManagedEntry:
    record = entry.value
    return ManagedEntry(value=record["value"], created_at=record["at"], expires_at=entry.expires_at)


def _record(key: str, entry: ManagedEntry, space: BoundSpace, collection: str) -> dict[str, Any]:
    """Return the document of a key, with the key and the collection where their names do not give them."""
    record: dict[str, Any] = {"value": json.loads(entry.value_as_json), "at": entry.created_at}
    if unescape(segment(key)) != key:
        record["key"] = key
    if unescape(space.name.rpartition("/")[2]) != collection:
        record["collection"] = collection
    return record
